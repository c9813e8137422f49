//! A child process that ends with `headwater dev` and is restarted some time after it exits.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, bail};
use local_cluster::process::{Process, Program};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Longer than a lease of `headwater dev`, so that another pod takes over visibly.
const RESTART_DELAY: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Killed when dropped. Broker and pods survive a kill without loss; on SIGTERM they would wait for a MongoDB that ends at the same time.
#[derive(Debug)]
pub(super) struct SupervisedProcess {
    program: Program,
    state: SupervisedState,
}

#[derive(Debug)]
enum SupervisedState {
    Running(Process),
    /// Set when its exit is found.
    Exited {
        since: Instant,
    },
}

impl SupervisedProcess {
    pub(super) fn start(program: Program) -> anyhow::Result<Self> {
        // The shell may set variables for another pod, for example in production. These processes have their own file.
        let program = program.without_env_prefix("HEADWATER_").without_env_prefix("OTEL_");
        let process = program.start()?;
        Ok(Self { program, state: SupervisedState::Running(process) })
    }

    pub(super) fn name(&self) -> &str {
        self.program.name()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match &self.state {
            SupervisedState::Running(process) => Some(process.pid()),
            SupervisedState::Exited { .. } => None,
        }
    }

    /// Waits until something listens on its address.
    pub(super) async fn wait_until_listening(&self, address: SocketAddr, within: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        while TcpStream::connect(address).await.is_err() {
            let is_running =
                matches!(&self.state, SupervisedState::Running(process) if process.exit_status().is_none());
            if !is_running || Instant::now() > deadline {
                bail!("{} did not start; log: {}", self.name(), self.log());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Notices an exit, and restarts the process after the delay. Returns a message for the user.
    pub(super) fn restart_if_exited(&mut self) -> anyhow::Result<Option<String>> {
        let (name, log) = (self.name(), self.log());
        match &self.state {
            SupervisedState::Running(process) => {
                let Some(status) = process.exit_status() else { return Ok(None) };
                let (pid, how, delay) = (process.pid(), describe_exit(status), RESTART_DELAY.as_secs());
                let message = format!("{name} (pid {pid}) {how}; it restarts in {delay} s; log: {log}");
                self.state = SupervisedState::Exited { since: Instant::now() };
                Ok(Some(message))
            }
            SupervisedState::Exited { since } if since.elapsed() < RESTART_DELAY => Ok(None),
            SupervisedState::Exited { .. } => {
                let process = self.program.start()?;
                let message = format!("{name} restarted (pid {})", process.pid());
                self.state = SupervisedState::Running(process);
                Ok(Some(message))
            }
        }
    }

    /// Sends SIGTERM and waits for a clean end; after the timeout it kills the process and fails.
    pub(super) async fn stop(&mut self, within: Duration) -> anyhow::Result<()> {
        let (name, log) = (self.name(), self.log());
        let SupervisedState::Running(process) = &self.state else { return Ok(()) };
        process.terminate_if_running();
        let deadline = Instant::now() + within;
        while process.exit_status().is_none() && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        match process.exit_status() {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{name} {}; log: {log}", describe_exit(status)),
            None => {
                process.kill().await;
                bail!("{name} did not stop within {within:?} and was killed; log: {log}")
            }
        }
    }

    fn log(&self) -> String {
        self.program.log().map(|log| log.display().to_string()).unwrap_or_default()
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// This executable.
pub(super) fn this_program() -> anyhow::Result<std::path::PathBuf> {
    std::env::current_exe().context("failed to find this executable")
}
