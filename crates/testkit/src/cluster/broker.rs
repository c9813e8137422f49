//! The broker of a test cluster, and the names of its entities.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use local_cluster::{BrokerOptions, BrokerProcess, ProcessState};
use servicebus::Client;

use super::config::{OBSERVER, REPUBLISH, SUBSCRIPTION, TOPIC, TestClusterConfig};
use super::{Error, write_file};
use crate::bus::{self, access};
use crate::disk_fault::{DiskFault, FaultyDisk};
use crate::wall_clock::AdjustableClock;

#[derive(Debug)]
pub struct ClusterBroker {
    process: BrokerProcess,
    /// `None` without [system faults](super::TestClusterConfig::system_faults).
    system: Option<BrokerSystem>,
}

/// What the broker sees of the machine.
#[derive(Debug)]
struct BrokerSystem {
    clock: AdjustableClock,
    disk: FaultyDisk,
}

impl BrokerSystem {
    fn new(folder: &Path) -> io::Result<Self> {
        let clock = AdjustableClock::new(&folder.join("broker.clock"))?;
        Ok(Self { clock, disk: FaultyDisk::new(&folder.join("broker.disk"))? })
    }

    fn variables(&self) -> Vec<(String, String)> {
        let ((clock_shim, clock), (disk_shim, disk)) = (self.clock.preload(), self.disk.preload());
        vec![("LD_PRELOAD".into(), format!("{clock_shim} {disk_shim}")), clock, disk]
    }
}

impl ClusterBroker {
    pub(super) async fn start(config: &TestClusterConfig, folder: &Path) -> Result<Self, Error> {
        let entities = folder.join("entities.json");
        write_file(&entities, &config.entities())?;
        let mut arguments = config.broker_arguments.clone();
        if let Some((name, scale)) =
            bus::profile().filter(|_| !arguments.iter().any(|argument| argument == "--profile"))
        {
            arguments.extend(["--profile".to_owned(), name, "--profile-scale".to_owned(), scale.to_string()]);
        }
        let (binary, data_dir) = (config.binary.clone(), folder.join("broker"));
        let access = config.pods_key.map(|_| access::create_access(folder)).transpose();
        let access = access.map_err(Error::io("create keys and certificates"))?;
        let system = config.system_faults.then(|| BrokerSystem::new(folder)).transpose();
        let system = system.map_err(Error::io("create the controls of clock and disk"))?;
        let mut environment = config.broker_environment.clone();
        environment.extend(system.iter().flat_map(BrokerSystem::variables));
        let (entities, test_hooks) = (Some(entities), true);
        let options = BrokerOptions { binary, data_dir, entities, test_hooks, access, arguments, environment };
        Ok(Self { process: BrokerProcess::start(&options).await?, system })
    }

    pub fn topic(&self) -> &'static str {
        TOPIC
    }

    /// The path of the pods' subscription.
    pub fn subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{SUBSCRIPTION}")
    }

    /// The path of the subscription without sessions, if [configured](super::TopicConfig).
    pub fn republish_subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{REPUBLISH}")
    }

    /// The path of the subscription that a test reads beside the pods, if [configured](super::TopicConfig).
    pub fn observer_subscription(&self) -> String {
        format!("{TOPIC}/Subscriptions/{OBSERVER}")
    }

    /// Active messages of the pods' subscription.
    pub async fn active_messages(&self) -> Result<u64, Error> {
        self.active_messages_of(&self.subscription()).await
    }

    /// Active messages of a queue or subscription; those that a receiver has locked count too.
    pub async fn active_messages_of(&self, path: &str) -> Result<u64, Error> {
        Ok(self.process.active_messages(path).await?)
    }

    /// A client with full rights.
    pub fn client(&self, config: servicebus::Config) -> Client {
        bus::client(self.endpoint(), config)
    }

    /// Restarts the broker with only these keys.
    pub async fn restart_with_keys(&mut self, names: &[&str]) -> Result<(), Error> {
        if let Some(access) = &self.endpoint().access {
            access::write_keys(&access.keys, names).map_err(Error::io("write the keys"))?;
        }
        self.stop(super::STOP_TIMEOUT).await;
        Ok(self.restart().await?)
    }

    /// Sets the wall clock wrong by this many seconds; `false` without control of it.
    pub(crate) fn set_clock(&self, offset: i64) -> bool {
        self.system.as_ref().is_some_and(|system| system.clock.set_offset(offset).is_ok())
    }

    /// `false` without control of the disk.
    pub(crate) fn set_disk(&self, fault: DiskFault) -> bool {
        self.system.as_ref().is_some_and(|system| system.disk.set(fault).is_ok())
    }

    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        self.set_clock(0);
        self.set_disk(DiskFault::default());
        self.resume();
        if self.state() == ProcessState::Stopped {
            self.restart().await?;
        }
        Ok(self.clear_faults().await?)
    }
}

impl Deref for ClusterBroker {
    type Target = BrokerProcess;

    fn deref(&self) -> &BrokerProcess {
        &self.process
    }
}

impl DerefMut for ClusterBroker {
    fn deref_mut(&mut self) -> &mut BrokerProcess {
        &mut self.process
    }
}
