//! Running other programs: what is run is printed first, and a failure says which program and how it ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

/// The folder of the workspace's Cargo.toml: xtask's own manifest lies one below it.
pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies inside the workspace").to_owned()
}

/// A command of cargo's, in the workspace.
pub(crate) fn cargo<S: AsRef<OsStr>>(root: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo xtask` itself runs inside cargo: what it set for us must not leak into the builds we start.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST") {
            command.env_remove(&*name);
        }
    }
    command.args(arguments).current_dir(root);
    command
}

/// Runs to the end with our own output; an exit other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs to the end and gives back what it printed to its standard output, which is shown as well.
pub(crate) fn run_and_read(command: &mut Command) -> anyhow::Result<String> {
    let shown = shown(command);
    let output =
        command.stderr(Stdio::inherit()).stdin(Stdio::null()).output().with_context(|| format!("start `{shown}`"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() {
        bail!("`{shown}` ended with {}", output.status);
    }
    Ok(text)
}

/// True when the program answers to these arguments; its words are not shown.
pub(crate) fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Prints a heading, does the work, prints how long it took.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("\n── {name}");
    let began = Instant::now();
    let result = work().with_context(|| name.to_owned());
    let word = if result.is_ok() { "done" } else { "FAILED" };
    println!("── {name}: {word} in {:.1} s", began.elapsed().as_secs_f64());
    result
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
