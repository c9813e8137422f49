//! Running the machine's own tools, quietly, keeping what they said for the error.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Error, at};
use crate::environment::Environment;

/// One program with the caller's environment, working in a folder of its own.
pub(super) struct Tool<'a> {
    name: &'static str,
    program: PathBuf,
    environment: &'a Environment,
    folder: &'a Path,
}

impl<'a> Tool<'a> {
    pub(super) fn find(name: &'static str, environment: &'a Environment, folder: &'a Path) -> Result<Self, Error> {
        let program = environment.find_program(name).ok_or(Error::MissingTool { tool: name })?;
        Ok(Self { name, program, environment, folder })
    }

    /// Runs to the end and returns what it printed.
    pub(super) fn run(&self, arguments: &[&OsStr]) -> Result<String, Error> {
        self.run_while(arguments, |_| Ok(()))
    }

    /// Runs to the end; `watch` gets the child and may look around until it wants to wait.
    pub(super) fn run_while(
        &self,
        arguments: &[&OsStr],
        watch: impl FnOnce(&mut Child) -> io::Result<()>,
    ) -> Result<String, Error> {
        let (said, printed) = (self.folder.join("stderr"), self.folder.join("stdout"));
        let started = |source| Error::Start { tool: self.name, source };
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .envs(self.environment.variables())
            .current_dir(self.folder)
            .stdin(Stdio::null())
            // Files, not pipes: nothing has to be drained while the child is watched.
            .stdout(File::create(&printed).map_err(at(&printed))?)
            .stderr(File::create(&said).map_err(at(&said))?)
            .spawn()
            .map_err(started)?;
        let status = watch(&mut child).and_then(|()| child.wait()).map_err(started)?;
        self.outcome(status, &said, &printed)
    }

    fn outcome(&self, status: ExitStatus, said: &Path, printed: &Path) -> Result<String, Error> {
        if status.success() {
            return fs::read_to_string(printed).map_err(at(printed));
        }
        let said = fs::read_to_string(said).unwrap_or_default();
        Err(Error::Failed { tool: self.name, status, said: first_lines(&said, 4) })
    }
}

/// npm and apt alike begin with the reason and end with advice.
fn first_lines(text: &str, count: usize) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(count).collect::<Vec<_>>().join("; ")
}
