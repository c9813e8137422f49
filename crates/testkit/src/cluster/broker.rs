//! The broker of a test cluster, and the names of its entities.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use local_cluster::{BrokerOptions, BrokerProcess, ProcessState};
use servicebus::Client;

use super::config::{OBSERVER, REPUBLISH, SUBSCRIPTION, TOPIC, TestClusterConfig};
use super::{Error, write_file};
use crate::bus::{self, access};

#[derive(Debug)]
pub struct ClusterBroker(BrokerProcess);

impl ClusterBroker {
    pub(super) async fn start(config: &TestClusterConfig, folder: &Path) -> Result<Self, Error> {
        let entities = folder.join("entities.json");
        write_file(&entities, &config.entities())?;
        let arguments = config.broker_arguments.clone();
        let (binary, data_dir) = (config.binary.clone(), folder.join("broker"));
        let access = config.pods_key.map(|_| access::create_access(folder)).transpose();
        let access = access.map_err(Error::io("create keys and certificates"))?;
        let options = BrokerOptions { binary, data_dir, entities: Some(entities), test_hooks: true, access, arguments };
        Ok(Self(BrokerProcess::start(&options).await?))
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
        Ok(self.0.active_messages(path).await?)
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

    pub(super) async fn heal(&mut self) -> Result<(), Error> {
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
        &self.0
    }
}

impl DerefMut for ClusterBroker {
    fn deref_mut(&mut self) -> &mut BrokerProcess {
        &mut self.0
    }
}
