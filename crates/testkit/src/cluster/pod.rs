//! One pod: its process, its configuration file, its two links.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::timeout;

use super::config::TestClusterConfig;
use super::metrics::PodMetrics;
use super::{ClusterBroker, ClusterMongo, Error, RESPONSE_TIMEOUT, http, write_file};
use crate::nemesis::LinkTarget;
use crate::process::{Process, Program};
use crate::proxy::Proxy;

/// Whether the cluster runs a process. A process that exited on its own still counts as running until the cluster notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Paused,
    Stopped,
}

#[derive(Debug)]
pub struct ClusterPod {
    name: String,
    config: PathBuf,
    program: Program,
    process: Option<Process>,
    state: ProcessState,
    /// `None` where drivers connect directly.
    mongo_link: Option<Proxy>,
    broker_link: Proxy,
}

/// A pod that exited on its own, or with a failure.
#[derive(Debug)]
pub struct UnexpectedExit {
    pub pod: String,
    pub status: ExitStatus,
    /// Its last lines of output.
    pub tail: String,
}

impl ClusterPod {
    /// Starts the links and writes the configuration file; does not start the pod.
    pub(super) async fn prepare(
        number: usize,
        config: &TestClusterConfig,
        mongo: &ClusterMongo,
        broker: &ClusterBroker,
        folder: &Path,
    ) -> Result<Self, Error> {
        let name = format!("pod-{number}");
        let broker_link = Proxy::start(broker.address()).await.map_err(Error::io("start a link to the broker"))?;
        let (mongo_link, uri) = mongo.start_link().await?;
        let file = folder.join(format!("{name}.yaml"));
        let text = config.pod_config(&uri, mongo.source(), mongo.coordination(), broker_link.address());
        write_file(&file, &text)?;
        let headwater =
            || Program::new(&config.binary).args([OsStr::new("run"), OsStr::new("--config"), file.as_os_str()]);
        let program = config.pod_program.clone().unwrap_or_else(headwater).named(&name);
        let program = program.env("HOSTNAME", &name).env("HEADWATER_CONFIG", &file);
        let program = config.environment.iter().fold(program, |program, (key, value)| program.env(key, value));
        Ok(Self { name, config: file, program, process: None, state: ProcessState::Stopped, mongo_link, broker_link })
    }

    /// Also its pod id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// The process, if one was started and not killed.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub fn start(&mut self) -> Result<(), Error> {
        self.process = Some(self.program.start()?);
        self.state = ProcessState::Running;
        Ok(())
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

    /// SIGTERM. The pod counts as stopped from now on, even while its process still ends.
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
        if let Some(process) = self.process.as_ref() {
            process.wait_for_exit(within).await;
        }
    }

    /// Its metrics since its start; `None` while it does not respond.
    pub async fn metrics(&self) -> Option<PodMetrics> {
        let is_running = self.state == ProcessState::Running;
        let address = self.running_process().filter(|_| is_running).and_then(find_admin_address)?;
        let request = "GET /metrics HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n";
        let response = timeout(RESPONSE_TIMEOUT, http::send_request(address, request)).await;
        response.ok()?.ok().map(|(_, page)| PodMetrics::new(page))
    }

    /// The proxy to MongoDB or the broker, if there is one.
    pub fn link(&self, to: LinkTarget) -> Option<&Proxy> {
        match to {
            LinkTarget::Mongo => self.mongo_link.as_ref(),
            LinkTarget::Broker => Some(&self.broker_link),
        }
    }

    /// Reports once that it exited without a request, or failed after one.
    pub(super) fn take_unexpected_exit(&mut self) -> Option<UnexpectedExit> {
        let process = self.process.as_ref()?;
        let status = process.exit_status()?;
        if self.state == ProcessState::Stopped && status.success() {
            self.process = None;
            return None;
        }
        let exit = UnexpectedExit { pod: self.name.clone(), status, tail: process.tail().to_string() };
        self.process = None;
        self.state = ProcessState::Stopped;
        Some(exit)
    }

    /// Heals its links and resumes it if it is paused.
    pub(super) async fn heal(&mut self) {
        for link in [self.link(LinkTarget::Mongo), self.link(LinkTarget::Broker)].into_iter().flatten() {
            link.heal().await;
        }
        self.resume();
    }

    fn running_process(&self) -> Option<&Process> {
        self.process.as_ref().filter(|process| process.exit_status().is_none())
    }
}

/// Its admin address, once it has logged it: it listens on any free port.
fn find_admin_address(process: &Process) -> Option<SocketAddr> {
    let line = process.find_line("admin server listening")?;
    let (_, after) = line.text.split_once("\"address\":\"")?;
    after.split('"').next()?.parse().ok()
}

impl fmt::Display for UnexpectedExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exited ({}); its last lines:\n{}", self.pod, self.status, self.tail)
    }
}
