//! A test of this very program, run once more in a process of its own with a defect planted: it must fail, or it holds nothing.

use std::process::Stdio;

use crate::mongo::shared;

/// Whether the test passed with this variable set.
///
/// # Panics
/// When it did not run: no test is called so, or the program could not be started.
pub async fn passes_with(variable: &str, value: &str, test: &str) -> bool {
    let shared = shared().await.unwrap_or_else(|error| panic!("{error:?}"));
    let program = std::env::current_exe().expect("a process has a program");
    let run = tokio::process::Command::new(program)
        .args(["--exact", test])
        .env(variable, value)
        .env(crate::mongo::URI_VARIABLE, shared.uri())
        .stderr(Stdio::null())
        .output();
    let run = run.await.expect("a test program can be started");
    // A name that is nobody's runs nothing, and that passes too.
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("running 1 test\n"), "`{test}` did not run");
    run.status.success()
}
