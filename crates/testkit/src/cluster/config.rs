//! The configuration of a test cluster, and the files that its processes read.

use std::path::PathBuf;
use std::time::Duration;

use local_cluster::process::Program;
use local_cluster::{BrokerEndpoint, LeaseTimings, PodConfig, SubscriptionEntity, TopicEntity, emulator_config};

use crate::bus::{credential, is_secured};

pub(super) const PIPELINE: &str = "shop";
pub(super) const COLLECTION: &str = "events";
pub(super) const TOPIC: &str = "events";
pub(super) const SUBSCRIPTION: &str = "read-models";
pub(super) const REPUBLISH: &str = "republish";
pub(super) const OBSERVER: &str = "observer";

/// Which MongoDB a cluster uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MongoTopology {
    /// The test run's shared server, in separate databases, through proxies. It must not be killed.
    Shared,
    /// A replica set of one, through proxies.
    SingleNode,
    /// A replica set of three, which drivers reach directly.
    ThreeNodes,
    /// Two shards behind a mongos, through proxies. They must not be killed.
    Sharded,
}

/// The topic and its subscriptions.
#[derive(Clone, Copy, Debug)]
pub struct TopicConfig {
    /// `None`: no duplicate detection.
    pub duplicate_window: Option<Duration>,
    pub partitioned: bool,
    /// Session lock duration.
    pub lock: Duration,
    /// Adds a subscription without sessions, for a test that republishes messages.
    pub republish_subscription: bool,
    /// Adds a subscription with sessions, for a test that reads the topic beside the pods.
    pub observer_subscription: bool,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            // Longer than any pause of a soak, as the guarantee requires.
            duplicate_window: Some(Duration::from_secs(1_200)),
            partitioned: false,
            lock: Duration::from_secs(30),
            republish_subscription: false,
            observer_subscription: false,
        }
    }
}

/// The read-model database of a further pipeline.
pub(super) fn further_views(source: &str, name: &str) -> String {
    format!("{source}_{name}")
}

/// How to start a [`TestCluster`](super::TestCluster).
#[derive(Clone, Debug)]
pub struct TestClusterConfig {
    /// The `headwater` program.
    pub binary: PathBuf,
    pub pods: usize,
    pub mongo: MongoTopology,
    pub topic: TopicConfig,
    pub lease: LeaseTimings,
    /// Whether pods read the sequence from the events' `version`. Without it only the position gives the order.
    pub with_sequence: bool,
    /// The content of `producer:`.
    pub producer: String,
    /// The content of `audit:`. Off by default: the audit would repair what a planted defect breaks.
    pub audit: String,
    /// Further pipelines in the same pods: name, and read models as flow-style YAML besides those of `extra_yaml`.
    pub pipelines: Vec<(String, String)>,
    /// Further configuration, as lines of YAML.
    pub extra_yaml: String,
    /// Environment variables of every pod, besides `HOSTNAME`.
    pub environment: Vec<(String, String)>,
    /// The name of the pods' key, if the broker requires TLS and keys. In a [secured](is_secured) test run it is the key with
    /// full rights, because many tests read message counts, which needs Manage.
    pub pods_key: Option<&'static str>,
    /// Further arguments of the broker.
    pub broker_arguments: Vec<String>,
    /// Further environment variables of the broker.
    pub broker_environment: Vec<(String, String)>,
    /// Whether the clocks of pods and broker and the disk of the broker can be faulted.
    pub system_faults: bool,
    /// The size of the oplog, where the cluster has a replica set of its own.
    pub oplog_megabytes: Option<u32>,
    /// What [`extra_yaml`](Self::extra_yaml) is after each rollout, in turn; the first one is `extra_yaml` itself.
    pub rollouts: Vec<String>,
    /// A program that runs instead of `headwater run`. It finds its configuration in `HEADWATER_CONFIG`.
    pub pod_program: Option<Program>,
}

impl TestClusterConfig {
    /// Three pods on a replica set of three.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            pods: 3,
            mongo: MongoTopology::ThreeNodes,
            topic: TopicConfig::default(),
            lease: LeaseTimings::default(),
            with_sequence: true,
            producer: "start: beginning, checkpoint: 200ms, body: bson".into(),
            audit: "enabled: false".into(),
            pipelines: vec![],
            extra_yaml: String::new(),
            environment: vec![],
            pods_key: is_secured().then_some("root"),
            broker_arguments: vec![],
            broker_environment: vec![],
            system_faults: false,
            oplog_megabytes: None,
            rollouts: vec![],
            pod_program: None,
        }
    }

    /// The configuration file of one pod.
    pub(super) fn pod_config(&self, uri: &str, source: &str, coordination: &str, broker: &BrokerEndpoint) -> String {
        let connection_string = match self.pods_key.zip(broker.access.as_ref()) {
            None => broker.connection_string(),
            Some((key, access)) => access.connection_string(broker.address, &credential(key)),
        };
        let sequence = if self.with_sequence { ", sequence: version" } else { "" };
        let config = PodConfig {
            pipeline: self.pipelines.is_empty().then_some(PIPELINE),
            mongodb_uri: uri,
            database: source,
            source: &format!("kind: events, aggregate_id: aggregateId, event_type: type{sequence}"),
            coordination,
            lease: self.lease,
            connection_string: &connection_string,
            topic: TOPIC,
            ca_file: broker.ca_file(),
            extra_yaml: &format!(
                "producer: {{ {} }}\naudit: {{ {} }}\n{}{}",
                self.producer,
                self.audit,
                self.extra_yaml,
                self.pipelines_yaml(source)
            ),
        };
        config.to_yaml()
    }

    /// The first pipeline is that of every other cluster. The others have a collection, a topic and a read-model database of their own.
    fn pipelines_yaml(&self, source: &str) -> String {
        if self.pipelines.is_empty() {
            return String::new();
        }
        let entry = |(name, read_models): &(String, String)| {
            let database = further_views(source, name);
            format!(
                "  {name}: {{ source: {{ collection: {name} }}, service_bus: {{ topic: {name} }}, \
                 read_models: {{ database: {database}, {read_models} }} }}\n"
            )
        };
        let entries: String = self.pipelines.iter().map(entry).collect();
        format!("pipelines:\n  {PIPELINE}:\n{entries}")
    }

    /// The entities, in the format of the official emulator's configuration.
    pub(super) fn entities(&self) -> String {
        let TopicConfig { duplicate_window, partitioned, lock, republish_subscription, observer_subscription } =
            self.topic;
        let subscription = |name: &str, session_lock: Option<Duration>| SubscriptionEntity {
            name: name.into(),
            session_lock,
            dead_letter_on_expiration: false,
        };
        let mut subscriptions = vec![subscription(SUBSCRIPTION, Some(lock))];
        subscriptions.extend(republish_subscription.then(|| subscription(REPUBLISH, None)));
        subscriptions.extend(observer_subscription.then(|| subscription(OBSERVER, Some(lock))));
        let topic =
            |name: &str, subscriptions| TopicEntity { name: name.into(), duplicate_window, partitioned, subscriptions };
        let further = self.pipelines.iter().map(|(name, _)| topic(name, vec![subscription(SUBSCRIPTION, Some(lock))]));
        let topics: Vec<_> = [topic(TOPIC, subscriptions)].into_iter().chain(further).collect();
        emulator_config(&topics)
    }
}
