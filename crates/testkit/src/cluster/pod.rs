//! One pod: its process, its configuration file, its two links.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use local_cluster::process::Process;
use local_cluster::{ManagedProcess, ProcessState, pod_program, send_request};
use tokio::time::timeout;

use super::config::TestClusterConfig;
use super::metrics::PodMetrics;
use super::{ClusterBroker, ClusterMongo, Error, RESPONSE_TIMEOUT, write_file};
use crate::nemesis::LinkTarget;
use crate::proxy::Proxy;
use crate::wall_clock::AdjustableClock;

#[derive(Debug)]
pub struct ClusterPod {
    process: ManagedProcess,
    config: PathBuf,
    /// `None` where drivers connect directly.
    mongo_link: Option<Proxy>,
    broker_link: Proxy,
    /// `None` without [system faults](TestClusterConfig::system_faults).
    clock: Option<AdjustableClock>,
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
        let linked = broker.endpoint().at(broker_link.address());
        let text = config.pod_config(&uri, mongo.source(), mongo.coordination(), &linked);
        write_file(&file, &text)?;
        let program = config.pod_program.clone().unwrap_or_else(|| pod_program(&config.binary, &file)).named(&name);
        let program = program.env("HOSTNAME", &name).env("HEADWATER_CONFIG", &file);
        let clock = config.system_faults.then(|| AdjustableClock::new(&folder.join(format!("{name}.clock"))));
        let clock = clock.transpose().map_err(Error::io("create the control of a clock"))?;
        let program = clock
            .iter()
            .map(AdjustableClock::preload)
            .fold(program, |program, (library, (name, path))| program.env("LD_PRELOAD", library).env(name, path));
        let program = config.environment.iter().fold(program, |program, (key, value)| program.env(key, value));
        Ok(Self { process: ManagedProcess::new(program), config: file, mongo_link, broker_link, clock })
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Its metrics since its start; `None` while it does not respond.
    pub async fn metrics(&self) -> Option<PodMetrics> {
        let is_running = self.state() == ProcessState::Running;
        let address = self.running_process().filter(|_| is_running).and_then(find_admin_address)?;
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let response = timeout(RESPONSE_TIMEOUT, send_request(address, request)).await;
        response.ok()?.ok().map(|(_, page)| PodMetrics::new(page))
    }

    /// The proxy to MongoDB or the broker, if there is one.
    pub fn link(&self, to: LinkTarget) -> Option<&Proxy> {
        match to {
            LinkTarget::Mongo => self.mongo_link.as_ref(),
            LinkTarget::Broker => Some(&self.broker_link),
        }
    }

    /// Sets the wall clock wrong by this many seconds; `false` without control of it.
    pub(crate) fn set_clock(&self, offset: i64) -> bool {
        self.clock.as_ref().is_some_and(|clock| clock.set_offset(offset).is_ok())
    }

    /// Heals its links and its clock, and resumes it if it is paused.
    pub(super) async fn heal(&mut self) {
        self.set_clock(0);
        for link in [self.link(LinkTarget::Mongo), self.link(LinkTarget::Broker)].into_iter().flatten() {
            link.heal().await;
        }
        self.resume();
    }
}

impl Deref for ClusterPod {
    type Target = ManagedProcess;

    fn deref(&self) -> &ManagedProcess {
        &self.process
    }
}

impl DerefMut for ClusterPod {
    fn deref_mut(&mut self) -> &mut ManagedProcess {
        &mut self.process
    }
}

/// Its admin address, once it has logged it: it listens on any free port.
fn find_admin_address(process: &Process) -> Option<SocketAddr> {
    let line = process.find_line("admin server listening")?;
    let (_, after) = line.text.split_once("\"address\":\"")?;
    after.split('"').next()?.parse().ok()
}
