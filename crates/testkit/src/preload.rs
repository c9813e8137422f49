//! Small C libraries that change what a process sees of the system (LD_PRELOAD), compiled when a test needs one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compiles a library into the folder of temporary files: a few kilobytes.
///
/// # Panics
/// When there is no C compiler; Rust needs one as well.
pub(crate) fn compile(name: &str, source: &str) -> PathBuf {
    let folder = tempfile::tempdir().expect("a temporary folder can be created").keep();
    let path = folder.join(name);
    run_compiler(source, &path);
    path
}

fn run_compiler(source: &str, to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-x", "c", "-", "-o"]).arg(to).stdin(Stdio::piped());
    let mut cc = cc.spawn().expect("`cc` can be started");
    let mut input = cc.stdin.take().expect("its input is piped");
    input.write_all(source.as_bytes()).expect("`cc` reads its input");
    drop(input);
    assert!(cc.wait().expect("`cc` ends").success(), "`cc` compiles {}", to.display());
}
