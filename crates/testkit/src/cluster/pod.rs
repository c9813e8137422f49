//! One pod: its process, its configuration, its two links.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::timeout;

use super::blueprint::Blueprint;
use super::metrics::Metrics;
use super::{ANSWER_WITHIN, Broker, Error, Store, http, write};
use crate::nemesis::FarEnd;
use crate::process::{Process, Program};
use crate::proxy::Proxy;

/// Whether a process of the house runs, as far as the house has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Up,
    Paused,
    Down,
}

#[derive(Debug)]
pub struct Pod {
    name: String,
    config: PathBuf,
    program: Program,
    process: Option<Process>,
    standing: Standing,
    /// `None` where the driver goes around it.
    store_link: Option<Proxy>,
    broker_link: Proxy,
}

/// A pod that ended on its own, or badly.
#[derive(Debug)]
pub struct Death {
    pub pod: String,
    pub status: ExitStatus,
    /// The last it said.
    pub tail: String,
}

impl Pod {
    pub(super) async fn lay(
        number: usize,
        blueprint: &Blueprint,
        store: &Store,
        broker: &Broker,
        folder: &Path,
    ) -> Result<Self, Error> {
        let name = format!("pod-{number}");
        let laid = Error::io("lay a link");
        let broker_link = Proxy::start(broker.address()).await.map_err(laid)?;
        let (store_link, uri) = store.link().await?;
        let config = folder.join(format!("{name}.yaml"));
        let text = blueprint.configuration(&uri, store.source(), store.coordination(), broker_link.address());
        write(&config, &text)?;
        let headwater =
            || Program::new(&blueprint.binary).args([OsStr::new("run"), OsStr::new("--config"), config.as_os_str()]);
        let program = blueprint.pod.clone().unwrap_or_else(headwater).named(&name);
        let program = program.env("HOSTNAME", &name).env("HEADWATER_CONFIG", &config);
        let program = blueprint.environment.iter().fold(program, |program, (key, value)| program.env(key, value));
        Ok(Self { name, config, program, process: None, standing: Standing::Down, store_link, broker_link })
    }

    /// Also its pod id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file it is configured by.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The process, if one was started and not killed.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub fn start(&mut self) -> Result<(), Error> {
        self.process = Some(self.program.start()?);
        self.standing = Standing::Up;
        Ok(())
    }

    /// SIGKILL; whether it still ran.
    pub async fn kill(&mut self) -> bool {
        let Some(process) = self.running() else { return false };
        process.kill().await;
        self.process = None;
        self.standing = Standing::Down;
        true
    }

    /// SIGSTOP.
    pub async fn pause(&mut self) {
        if let Some(process) = self.running() {
            process.pause().await;
            self.standing = Standing::Paused;
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        if self.standing == Standing::Paused {
            self.standing = Standing::Up;
            if let Some(process) = self.running() {
                process.resume();
            }
        }
    }

    /// SIGTERM. It counts as down from now on, and need not have ended yet.
    pub fn terminate(&mut self) {
        if let Some(process) = self.running() {
            process.terminate();
            self.standing = Standing::Down;
        }
    }

    /// SIGTERM, unless it was terminated already; returns when it has ended.
    pub async fn stop(&mut self, within: Duration) {
        self.resume();
        if self.standing == Standing::Up {
            self.terminate();
        }
        if let Some(process) = self.process.as_ref() {
            process.wait_for_exit(within).await;
        }
    }

    /// What it has counted since it was started; `None` while it cannot be asked.
    pub async fn metrics(&self) -> Option<Metrics> {
        let address = self.running().filter(|_| self.standing == Standing::Up).and_then(admin)?;
        let request = "GET /metrics HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n";
        let answered = timeout(ANSWER_WITHIN, http::exchange(address, request)).await;
        answered.ok()?.ok().map(|(_, page)| Metrics::of(page))
    }

    /// The way to one of the two, if it leads through the house.
    pub fn link(&self, to: FarEnd) -> Option<&Proxy> {
        match to {
            FarEnd::Store => self.store_link.as_ref(),
            FarEnd::Broker => Some(&self.broker_link),
        }
    }

    /// Says once that it ended though nobody asked it to, or not well though it was asked.
    pub(super) fn died(&mut self) -> Option<Death> {
        let process = self.process.as_ref()?;
        let status = process.exit_status()?;
        if self.standing == Standing::Down && status.success() {
            self.process = None;
            return None;
        }
        let death = Death { pod: self.name.clone(), status, tail: process.tail().to_string() };
        self.process = None;
        self.standing = Standing::Down;
        Some(death)
    }

    /// Frees its links and lets it run on.
    pub(super) async fn release(&mut self) {
        for link in [self.link(FarEnd::Store), self.link(FarEnd::Broker)].into_iter().flatten() {
            link.heal().await;
        }
        self.resume();
    }

    fn running(&self) -> Option<&Process> {
        self.process.as_ref().filter(|process| process.exit_status().is_none())
    }
}

/// Where it is asked, once it has said so: it takes any port that is free.
fn admin(process: &Process) -> Option<SocketAddr> {
    let line = process.find_line("dashboard, metrics and health are served")?;
    let (_, after) = line.text.split_once("\"address\":\"")?;
    after.split('"').next()?.parse().ok()
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended ({}); its last lines:\n{}", self.pod, self.status, self.tail)
    }
}
