//! A program with at most one process, which can be killed, paused, stopped and started again.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use crate::process::{Error, Process, Program};

const SIGTERM: i32 = 15;

/// What its owner last requested. A process that exited on its own counts as running until
/// [`ManagedProcess::take_unexpected_exit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Paused,
    Stopped,
}

#[derive(Debug)]
pub struct ManagedProcess {
    program: Program,
    process: Option<Process>,
    state: ProcessState,
}

/// A process that exited on its own, or with a failure.
#[derive(Debug)]
pub struct UnexpectedExit {
    pub name: String,
    pub status: ExitStatus,
    /// Its last lines of output.
    pub tail: String,
}

impl ManagedProcess {
    /// Does not start it.
    pub fn new(program: Program) -> Self {
        Self { program, process: None, state: ProcessState::Stopped }
    }

    pub fn name(&self) -> &str {
        self.program.name()
    }

    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// The process, if one was started and not killed.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The process, if it has not ended.
    pub fn running_process(&self) -> Option<&Process> {
        self.process().filter(|process| process.exit_status().is_none())
    }

    /// The next start runs this executable.
    pub fn set_executable(&mut self, path: &Path) {
        self.program = self.program.clone().with_executable(path);
    }

    pub fn start(&mut self) -> Result<&Process, Error> {
        self.state = ProcessState::Running;
        Ok(self.process.insert(self.program.start()?))
    }

    /// SIGKILL; returns whether it was running.
    pub async fn kill(&mut self) -> bool {
        let Some(process) = self.running_process() else { return false };
        process.kill().await;
        self.process = None;
        self.state = ProcessState::Stopped;
        true
    }

    /// SIGSTOP.
    pub async fn pause(&mut self) {
        if let Some(process) = self.running_process() {
            process.pause().await;
            self.state = ProcessState::Paused;
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        if self.state == ProcessState::Paused {
            self.state = ProcessState::Running;
            if let Some(process) = self.running_process() {
                process.resume();
            }
        }
    }

    /// SIGTERM. It counts as stopped from now on, even while its process still ends.
    pub fn terminate(&mut self) {
        if let Some(process) = self.running_process() {
            process.terminate();
            self.state = ProcessState::Stopped;
        }
    }

    /// SIGTERM, unless it was already terminated; returns when the process has ended.
    pub async fn stop(&mut self, within: Duration) {
        // A paused process would not see SIGTERM.
        self.resume();
        if self.state == ProcessState::Running {
            self.terminate();
        }
        if let Some(process) = self.process() {
            process.wait_for_exit(within).await;
        }
    }

    /// Reports once that it exited without a request, or failed after one.
    pub fn take_unexpected_exit(&mut self) -> Option<UnexpectedExit> {
        let process = self.process()?;
        let status = process.exit_status()?;
        // A program that has printed nothing had not begun to handle signals.
        let is_stopped_early = status.signal() == Some(SIGTERM) && process.lines().is_empty();
        let is_expected = self.state == ProcessState::Stopped && (status.success() || is_stopped_early);
        let exit = UnexpectedExit { name: self.name().to_owned(), status, tail: process.tail().to_string() };
        self.process = None;
        self.state = ProcessState::Stopped;
        (!is_expected).then_some(exit)
    }
}

impl fmt::Display for UnexpectedExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exited ({}); its last lines:\n{}", self.name, self.status, self.tail)
    }
}
