//! A child process that ends with `headwater dev` and is restarted some time after it exits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use mongod::ParentDeathSignal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

/// Longer than a lease of `headwater dev`, so that another pod takes over visibly.
const RESTART_DELAY: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A program; its output is appended to its log.
#[derive(Clone, Debug)]
pub(super) struct DevProgram {
    pub(super) name: String,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) log: PathBuf,
}

#[derive(Debug)]
pub(super) struct SupervisedProcess {
    program: DevProgram,
    state: SupervisedState,
}

#[derive(Debug)]
enum SupervisedState {
    Running(std::process::Child),
    /// Set when its exit is found.
    Exited {
        since: Instant,
    },
}

impl SupervisedProcess {
    pub(super) fn start(program: DevProgram) -> anyhow::Result<Self> {
        let process = program.spawn()?;
        Ok(Self { program, state: SupervisedState::Running(process) })
    }

    pub(super) fn name(&self) -> &str {
        &self.program.name
    }

    pub(super) fn log(&self) -> &Path {
        &self.program.log
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match &self.state {
            SupervisedState::Running(process) => Some(process.id()),
            SupervisedState::Exited { .. } => None,
        }
    }

    /// Whether it is still running.
    pub(super) fn is_up(&mut self) -> bool {
        match &mut self.state {
            SupervisedState::Running(process) => matches!(process.try_wait(), Ok(None)),
            SupervisedState::Exited { .. } => false,
        }
    }

    /// Notices an exit, and restarts the process after the delay. Returns a message for the user.
    pub(super) fn restart_if_exited(&mut self) -> anyhow::Result<Option<String>> {
        let Self { program: DevProgram { name, log, .. }, state } = self;
        match state {
            SupervisedState::Running(process) => {
                let pid = process.id();
                let Some(status) = process.try_wait().with_context(|| format!("wait for {name}"))? else {
                    return Ok(None);
                };
                *state = SupervisedState::Exited { since: Instant::now() };
                let (how, log) = (describe_exit(status), log.display());
                Ok(Some(format!("{name} (pid {pid}) {how}; it restarts in {} s; log: {log}", RESTART_DELAY.as_secs())))
            }
            SupervisedState::Exited { since } if since.elapsed() < RESTART_DELAY => Ok(None),
            SupervisedState::Exited { .. } => {
                let process = self.program.spawn()?;
                let message = format!("{} restarted (pid {})", self.program.name, process.id());
                self.state = SupervisedState::Running(process);
                Ok(Some(message))
            }
        }
    }

    /// Sends SIGTERM and waits for a clean end; after the timeout it kills the process and fails.
    pub(super) async fn stop(&mut self, within: Duration) -> anyhow::Result<()> {
        let Self { program: DevProgram { name, log, .. }, state } = self;
        let SupervisedState::Running(process) = state else { return Ok(()) };
        let ended = |process: &mut std::process::Child| process.try_wait().ok().flatten();
        if ended(process).is_none() {
            let pid = Pid::from_raw(process.id().try_into().expect("a pid fits in an i32"));
            kill(pid, Signal::SIGTERM).with_context(|| format!("stop {name}"))?;
        }
        let deadline = Instant::now() + within;
        let status = loop {
            match ended(process) {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!("{name} {}; log: {}", describe_exit(status), log.display()),
            None => {
                kill_and_reap(process);
                anyhow::bail!("{name} did not stop within {within:?} and was killed; log: {}", log.display())
            }
        }
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        if let SupervisedState::Running(process) = &mut self.state {
            kill_and_reap(process);
        }
    }
}

/// Both fail only if it has already ended.
fn kill_and_reap(process: &mut std::process::Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Whether a pod, a broker or one of their libraries reads this variable.
fn is_headwater_variable(variable: &OsStr) -> bool {
    let name = variable.as_encoded_bytes();
    [&b"HEADWATER_"[..], b"OTEL_"].iter().any(|prefix| name.starts_with(prefix))
}

impl DevProgram {
    /// Runs this executable.
    fn spawn(&self) -> anyhow::Result<std::process::Child> {
        let start = || format!("start {}", self.name);
        let executable = std::env::current_exe().with_context(start)?;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("failed to write `{}`", self.log.display()))?;
        // Broker and pods survive kill -9 without loss. On SIGTERM they would wait for a MongoDB that ends at the same time.
        let mut command = mongod::child::command(&executable, ParentDeathSignal::Kill);
        // Variables that the shell sets for another pod, for example in production, must not reach these; they have their own file.
        std::env::vars_os().map(|(name, _)| name).filter(|name| is_headwater_variable(name)).for_each(|name| {
            command.env_remove(name);
        });
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().with_context(start)?).stderr(log);
        mongod::child::spawn(command).with_context(start)
    }
}
