//! A process of ours that does not outlive us, and that is started again some time after it died.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use mongod::LastWill;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

/// Longer than a lease of `headwater dev`: another pod takes over, and is seen to.
const AGAIN_AFTER: Duration = Duration::from_secs(4);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What to run; its output goes to the end of its log.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) log: PathBuf,
}

#[derive(Debug)]
pub(super) struct Child {
    program: Program,
    state: State,
}

#[derive(Debug)]
enum State {
    Up(std::process::Child),
    /// Set when it is found dead.
    Down {
        since: Instant,
    },
}

impl Child {
    pub(super) fn start(program: Program) -> anyhow::Result<Self> {
        let process = program.spawn()?;
        Ok(Self { program, state: State::Up(process) })
    }

    pub(super) fn name(&self) -> &str {
        &self.program.name
    }

    pub(super) fn log(&self) -> &Path {
        &self.program.log
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match &self.state {
            State::Up(process) => Some(process.id()),
            State::Down { .. } => None,
        }
    }

    /// Whether it still runs.
    pub(super) fn is_up(&mut self) -> bool {
        match &mut self.state {
            State::Up(process) => matches!(process.try_wait(), Ok(None)),
            State::Down { .. } => false,
        }
    }

    /// One look: notes a death, and starts it again when its time has come. What there is to say.
    pub(super) fn tend(&mut self) -> anyhow::Result<Option<String>> {
        let Self { program: Program { name, log, .. }, state } = self;
        match state {
            State::Up(process) => {
                let pid = process.id();
                let Some(status) = process.try_wait().with_context(|| format!("wait for {name}"))? else {
                    return Ok(None);
                };
                *state = State::Down { since: Instant::now() };
                let (how, log) = (how(status), log.display());
                Ok(Some(format!(
                    "{name} (pid {pid}) {how}; it is started again in {} s; its log is {log}",
                    AGAIN_AFTER.as_secs()
                )))
            }
            State::Down { since } if since.elapsed() < AGAIN_AFTER => Ok(None),
            State::Down { .. } => {
                let process = self.program.spawn()?;
                let news = format!("{} is back (pid {})", self.program.name, process.id());
                self.state = State::Up(process);
                Ok(Some(news))
            }
        }
    }

    /// SIGTERM, then waits for a clean end; kills it, and says so, when that takes too long.
    pub(super) async fn stop(&mut self, within: Duration) -> anyhow::Result<()> {
        let Self { program: Program { name, log, .. }, state } = self;
        let State::Up(process) = state else { return Ok(()) };
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
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!("{name} {}; its log is {}", how(status), log.display()),
            None => {
                end(process);
                anyhow::bail!("{name} did not stop within {within:?} and was killed; its log is {}", log.display())
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let State::Up(process) = &mut self.state {
            end(process);
        }
    }
}

/// Both fail only if it is gone already.
fn end(process: &mut std::process::Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Whether a pod, a broker or what they are built of would take it as a setting.
fn is_for_a_pod(variable: &OsStr) -> bool {
    let name = variable.as_encoded_bytes();
    [&b"HEADWATER_"[..], b"OTEL_"].iter().any(|prefix| name.starts_with(prefix))
}

impl Program {
    /// The same executable as this one.
    fn spawn(&self) -> anyhow::Result<std::process::Child> {
        let start = || format!("start {}", self.name);
        let executable = std::env::current_exe().with_context(start)?;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("write `{}`", self.log.display()))?;
        // A broker and a pod lose nothing by kill -9; asked politely, they would wait for a MongoDB that goes as well.
        let mut command = mongod::child::command(&executable, LastWill::Kill);
        // What a shell has for a pod of its own, say of production, is not for these: they have their file.
        std::env::vars_os().map(|(name, _)| name).filter(|name| is_for_a_pod(name)).for_each(|name| {
            command.env_remove(name);
        });
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().with_context(start)?).stderr(log);
        mongod::child::spawn(command).with_context(start)
    }
}
