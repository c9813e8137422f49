//! One mongod or mongos process: start, readiness, signals, stop, restart on the same port.
//!
//! Ready means that this process logged that it listens, and then replied to `hello`. A server is killed when dropped, and also
//! when this process ends without dropping it (see [`ParentDeathSignal`]).

mod config;
mod log;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::doc;
use mongodb::options::{ClientOptions, ServerAddress};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

pub use config::{ParentDeathSignal, ServerConfig, ServerRole};

use crate::child;
use crate::port::ReservedPort;
use crate::program_paths::ProgramPaths;
use log::ServerLog;

/// How often the state of the process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The exit status of a mongod that cannot bind its port.
const COULD_NOT_LISTEN: i32 = 48;
const PORTS_TO_TRY: usize = 10;

#[derive(Debug)]
pub struct MongoServer {
    binaries: ProgramPaths,
    config: ServerConfig,
    port: ReservedPort,
    log: ServerLog,
    child: Option<Child>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no mongos next to `{mongod}`")]
    NoMongos { mongod: PathBuf },
    #[error("no free port found")]
    NoPort(#[source] io::Error),
    #[error("failed to use `{path}`")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to start `{program}`")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{address} exited before it was ready ({status}); last log lines:\n{log_tail}")]
    Ended { address: String, status: ExitStatus, log_tail: String },
    #[error("{address} was not ready within {within:?}; last log lines:\n{log_tail}")]
    NotReady { address: String, within: Duration, log_tail: String },
    #[error("`hello` to {address} failed")]
    Hello {
        address: String,
        #[source]
        source: mongodb::error::Error,
    },
    #[error("{address} is not running")]
    NotRunning { address: String },
    #[error("failed to send {signal} to {address}")]
    Signal {
        address: String,
        signal: Signal,
        #[source]
        source: nix::Error,
    },
    #[error("failed to wait for the exit of {address}")]
    Wait {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("{address} did not stop within {within:?} and was killed; last log lines:\n{log_tail}")]
    StopTooSlow { address: String, within: Duration, log_tail: String },
}

impl Error {
    /// Whether another port can fix it.
    pub(crate) fn is_port_conflict(&self) -> bool {
        match self {
            Self::NoPort(_) => true,
            Self::Ended { status, .. } => status.code() == Some(COULD_NOT_LISTEN),
            _ => false,
        }
    }
}

impl MongoServer {
    /// Starts the process on a free port (or the configured one) and returns when it is ready.
    pub async fn start(binaries: &ProgramPaths, config: ServerConfig) -> Result<Self, Error> {
        std::fs::create_dir_all(config.database_folder())
            .map_err(|source| Error::File { path: config.database_folder(), source })?;
        let log = ServerLog::at(config.folder.join("mongod.log"));
        let mut tries = 0;
        loop {
            tries += 1;
            let port = ReservedPort::reserve(config.port).map_err(Error::NoPort)?;
            let mut server =
                Self { binaries: binaries.clone(), config: config.clone(), port, log: log.clone(), child: None };
            match server.launch().await {
                // Another process took the port between our check and the bind of mongod.
                Err(error) if error.is_port_conflict() && config.port.is_none() && tries < PORTS_TO_TRY => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `host:port`, as in URIs and in a replica set's configuration.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn log_file(&self) -> &Path {
        self.log.path()
    }

    pub fn config_mut(&mut self) -> &mut ServerConfig {
        &mut self.config
    }

    /// Whether the process exists; a paused one does.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// A client that talks to this server alone, whatever its state in a replica set.
    pub fn direct_client(&self) -> Result<Client, Error> {
        let mut options = ClientOptions::default();
        options.hosts = vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(self.port()) }];
        options.direct_connection = Some(true);
        options.server_selection_timeout = Some(Duration::from_secs(5));
        options.connect_timeout = Some(Duration::from_secs(2));
        Client::with_options(options).map_err(|source| self.hello_error(source))
    }

    /// Starts the process again after [`Self::kill`] or [`Self::stop`]: same port, same data, current configuration.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.kill().await?;
        self.launch().await
    }

    /// Sends SIGKILL and returns when the process is gone.
    pub async fn kill(&mut self) -> Result<(), Error> {
        if let Some(child) = &mut self.child {
            // Fails only if the process has exited already.
            let _ = child.kill();
            self.wait_for_exit(Duration::from_secs(30)).await?;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for a clean exit. If that takes too long, kills the process and returns an error.
    pub async fn stop(&mut self, within: Duration) -> Result<(), Error> {
        if self.child.is_none() {
            return Ok(());
        }
        self.signal(Signal::SIGTERM)?;
        if self.wait_for_exit(within).await?.is_some() {
            return Ok(());
        }
        self.kill().await?;
        Err(Error::StopTooSlow { address: self.address(), within, log_tail: self.log.tail() })
    }

    /// Sends SIGSTOP: connections stay open without replies. Returns when the process has stopped.
    pub async fn pause(&mut self) -> Result<(), Error> {
        self.signal(Signal::SIGSTOP)?;
        let pid = self.raw_pid()?;
        loop {
            match waitpid(pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Stopped(..)) => return Ok(()),
                Ok(WaitStatus::StillAlive) => tokio::time::sleep(POLL_INTERVAL).await,
                // The process exited meanwhile, and this call has reaped it.
                Ok(_) | Err(_) => {
                    self.child = None;
                    return Err(Error::NotRunning { address: self.address() });
                }
            }
        }
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::SIGCONT)
    }

    /// Returns when the process exits by itself, which is a failure.
    pub async fn wait_until_exited(&mut self) -> Result<ExitStatus, Error> {
        let address = self.address();
        let child = self.child.as_mut().ok_or(Error::NotRunning { address: address.clone() })?;
        loop {
            if let Some(status) = child.try_wait().map_err(|source| Error::Wait { address: address.clone(), source })? {
                return Ok(status);
            }
            // cancel-safe: nothing is held between two polls
            tokio::time::sleep(POLL_INTERVAL * 10).await;
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = self.raw_pid()?;
        kill(pid, signal).map_err(|source| Error::Signal { address: self.address(), signal, source })
    }

    fn raw_pid(&self) -> Result<Pid, Error> {
        let pid = self.pid().ok_or_else(|| Error::NotRunning { address: self.address() })?;
        Ok(Pid::from_raw(pid.try_into().expect("a pid fits in an i32")))
    }

    async fn launch(&mut self) -> Result<(), Error> {
        self.log.begin_new_start().map_err(|source| Error::File { path: self.log.path().into(), source })?;
        let command = self.config.command(&self.binaries, self.port(), &self.log)?;
        // Only for the error message; `command` already has the right program.
        let program = self.binaries.mongod.clone();
        self.child = Some(child::spawn(command).map_err(|source| Error::Start { program, source })?);
        let deadline = Instant::now() + self.config.ready_within;
        self.wait_until_listening(deadline).await?;
        self.wait_until_replying().await
    }

    /// Reads the log, not a connection: the server behind the port could be another one.
    async fn wait_until_listening(&mut self, deadline: Instant) -> Result<(), Error> {
        while !self.log.contains_listening() {
            let child = self.child.as_mut().expect("just started");
            let ended =
                child.try_wait().map_err(|source| Error::Wait { address: format!("pid {}", child.id()), source })?;
            if let Some(status) = ended {
                self.child = None;
                return Err(Error::Ended { address: self.address(), status, log_tail: self.log.tail() });
            }
            if Instant::now() > deadline {
                let within = self.config.ready_within;
                return Err(Error::NotReady { address: self.address(), within, log_tail: self.log.tail() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn wait_until_replying(&self) -> Result<(), Error> {
        let client = self.direct_client()?;
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
        hello.map(drop).map_err(|source| self.hello_error(source))
    }

    /// The exit status, or `None` if the process still runs at the deadline.
    async fn wait_for_exit(&mut self, within: Duration) -> Result<Option<ExitStatus>, Error> {
        let address = self.address();
        let Some(child) = &mut self.child else { return Ok(None) };
        let deadline = Instant::now() + within;
        loop {
            let ended = child.try_wait().map_err(|source| Error::Wait { address: address.clone(), source })?;
            if ended.is_some() {
                self.child = None;
                return Ok(ended);
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn hello_error(&self, source: mongodb::error::Error) -> Error {
        Error::Hello { address: self.address(), source }
    }
}

impl Drop for MongoServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only if the process is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
