//! Runs other programs. A failure names the program and its exit status.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

/// The folder of the workspace's Cargo.toml.
///
/// Read at run time, not compiled in: two checkouts that share a target folder also share the xtask binary. cargo sets the
/// variable for `cargo run` and for tests; without cargo, the current folder decides.
pub(crate) fn workspace_root() -> anyhow::Result<PathBuf> {
    if let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR") {
        let root = Path::new(&manifest).parent().context("CARGO_MANIFEST_DIR has no parent folder")?;
        return Ok(root.to_owned());
    }
    let output = Command::new("cargo").args(["locate-project", "--workspace", "--message-format", "plain"]).output();
    let output = output.context("failed to start `cargo locate-project`")?;
    let manifest = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    manifest.parent().map(Path::to_owned).context("no Cargo workspace here; run xtask inside the repository")
}

/// A cargo command in the workspace.
pub(crate) fn cargo<S: AsRef<OsStr>>(root: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo xtask` runs inside cargo: the variables of that run must not leak into the builds it starts.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST") {
            command.env_remove(&*name);
        }
    }
    command.args(arguments).current_dir(root);
    command
}

/// Runs the command with our own output; an exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    let status = command.status().with_context(|| format!("failed to start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    Ok(())
}

/// Runs the command; prints its standard output and returns it.
pub(crate) fn run_and_read(command: &mut Command) -> anyhow::Result<String> {
    let line = command_line(command);
    let output = command
        .stderr(Stdio::inherit())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start `{line}`"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() {
        bail!("`{line}` failed with {}", output.status);
    }
    Ok(text)
}

/// Runs the command; prints its standard output line by line, and returns it.
pub(crate) fn run_and_store(command: &mut Command) -> anyhow::Result<String> {
    let line = command_line(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("failed to start `{line}`"))?;
    let mut text = String::new();
    for printed in BufReader::new(child.stdout.take().context("the output is piped")?).lines() {
        let printed = printed.with_context(|| format!("output of `{line}`"))?;
        println!("{printed}");
        text.push_str(&printed);
        text.push('\n');
    }
    let status = child.wait().with_context(|| format!("failed to wait for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    Ok(text)
}

/// Runs the command and returns its standard output without the line break at the end.
pub(crate) fn read(command: &mut Command) -> anyhow::Result<String> {
    let line = command_line(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8(output.stdout).with_context(|| format!("output of `{line}`"))?.trim_end().to_owned())
}

/// Whether the program runs with these arguments and exits with 0. Its output is not shown.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Prints a heading, does the work, and prints its duration.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("\n── {name}");
    let began = Instant::now();
    let result = work().with_context(|| name.to_owned());
    let word = if result.is_ok() { "done" } else { "FAILED" };
    println!("── {name}: {word} in {:.1} s", began.elapsed().as_secs_f64());
    result
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
