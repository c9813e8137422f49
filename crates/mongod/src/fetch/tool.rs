//! Runs installed tools quietly, and keeps their output for the error message.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Error, at};
use crate::environment::Environment;

/// One program with the caller's environment and its own working folder.
pub(super) struct ExternalTool<'a> {
    name: &'static str,
    program: PathBuf,
    environment: &'a Environment,
    folder: &'a Path,
}

impl<'a> ExternalTool<'a> {
    pub(super) fn find(name: &'static str, environment: &'a Environment, folder: &'a Path) -> Result<Self, Error> {
        let program = environment.find_program(name).ok_or(Error::MissingTool { tool: name })?;
        Ok(Self { name, program, environment, folder })
    }

    /// Runs the tool and returns its standard output.
    pub(super) fn run(&self, arguments: &[&OsStr]) -> Result<String, Error> {
        self.run_while(arguments, |_| Ok(()))
    }

    /// Runs the tool; `watch` gets the child while it runs.
    pub(super) fn run_while(
        &self,
        arguments: &[&OsStr],
        watch: impl FnOnce(&mut Child) -> io::Result<()>,
    ) -> Result<String, Error> {
        let (stderr, stdout) = (self.folder.join("stderr"), self.folder.join("stdout"));
        let started = |source| Error::Start { tool: self.name, source };
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .envs(self.environment.variables())
            .current_dir(self.folder)
            .stdin(Stdio::null())
            // Files, not pipes: a full pipe would block the child while it is watched.
            .stdout(File::create(&stdout).map_err(at(&stdout))?)
            .stderr(File::create(&stderr).map_err(at(&stderr))?)
            .spawn()
            .map_err(started)?;
        let status = watch(&mut child).and_then(|()| child.wait()).map_err(started)?;
        self.read_result(status, &stderr, &stdout)
    }

    fn read_result(&self, status: ExitStatus, stderr: &Path, stdout: &Path) -> Result<String, Error> {
        if status.success() {
            return fs::read_to_string(stdout).map_err(at(stdout));
        }
        let stderr = fs::read_to_string(stderr).unwrap_or_default();
        Err(Error::Failed { tool: self.name, status, output: first_lines(&stderr, 4) })
    }
}

/// npm and apt print the reason first and advice last.
fn first_lines(text: &str, count: usize) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(count).collect::<Vec<_>>().join("; ")
}
