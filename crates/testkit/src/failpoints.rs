//! Runs a test of this test program again in a separate process, with a failpoint active. The test must fail, or it proves nothing.

use std::process::Stdio;

use crate::mongo::shared;

/// Whether the test passed with this environment variable set.
///
/// # Panics
/// When no test of that name ran, or the program could not be started.
pub async fn test_passes_with(variable: &str, value: &str, test: &str) -> bool {
    let shared = shared().await.unwrap_or_else(|error| panic!("{error:?}"));
    let program = std::env::current_exe().expect("a process has a program");
    let run = tokio::process::Command::new(program)
        .args(["--exact", test])
        .env(variable, value)
        .env(crate::mongo::URI_VARIABLE, shared.uri())
        .stderr(Stdio::null())
        .output();
    let run = run.await.expect("a test program can be started");
    // A wrong name runs no test, and that passes too.
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(output.contains("running 1 test\n"), "`{test}` did not run");
    run.status.success()
}
