//! The configuration of a test cluster, and the files that its processes read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::process::Program;

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

#[derive(Clone, Copy, Debug)]
pub struct LeaseTimings {
    pub ttl: Duration,
    pub renew_deadline: Duration,
    pub heartbeat: Duration,
}

impl Default for LeaseTimings {
    /// Short, so that a soak has many takeovers.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1_300),
            heartbeat: Duration::from_millis(400),
        }
    }
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
    /// Further configuration, as lines of YAML.
    pub extra_yaml: String,
    /// Environment variables of every pod, besides `HOSTNAME`.
    pub environment: Vec<(String, String)>,
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
            extra_yaml: String::new(),
            environment: vec![],
            pod_program: None,
        }
    }

    /// The configuration file of one pod.
    pub(super) fn pod_config(&self, uri: &str, source: &str, coordination: &str, broker: SocketAddr) -> String {
        let LeaseTimings { ttl, renew_deadline, heartbeat } = self.lease;
        let [ttl, renew_deadline, heartbeat] = [ttl, renew_deadline, heartbeat].map(|time| time.as_millis());
        let connection_string = connection_string(broker);
        let Self { producer, extra_yaml, .. } = self;
        let sequence = if self.with_sequence { ", sequence: version" } else { "" };
        format!(
            r#"format: 1
pipeline: {PIPELINE}
source: {{ uri: "{uri}", database: {source}, collection: {COLLECTION}, kind: events, aggregate_id: aggregateId, event_type: type{sequence} }}
coordination: {{ database: {coordination}, lease: {{ ttl: {ttl}ms, renew_deadline: {renew_deadline}ms, heartbeat: {heartbeat}ms }} }}
service_bus: {{ connection_string: "{connection_string}", topic: {TOPIC}, subscription: {SUBSCRIPTION} }}
producer: {{ {producer} }}
{extra_yaml}"#
        )
    }

    /// The entities, in the format of the official emulator's configuration.
    pub(super) fn entities(&self) -> String {
        let TopicConfig { duplicate_window, partitioned, lock, republish_subscription, observer_subscription } =
            self.topic;
        let detection = duplicate_window.map_or(String::new(), |window| {
            let seconds = window.as_secs();
            format!(r#""RequiresDuplicateDetection": true, "DuplicateDetectionHistoryTimeWindow": "PT{seconds}S", "#)
        });
        let lock = lock.as_secs();
        let sessions = format!(r#""RequiresSession": true, "LockDuration": "PT{lock}S", "#);
        let subscription =
            |name, kind: &str| format!(r#"{{ "Name": "{name}", "Properties": {{ {kind}"MaxDeliveryCount": 2000 }} }}"#);
        let mut subscriptions = vec![subscription(SUBSCRIPTION, &sessions)];
        subscriptions.extend(republish_subscription.then(|| subscription(REPUBLISH, "")));
        subscriptions.extend(observer_subscription.then(|| subscription(OBSERVER, &sessions)));
        let subscriptions = subscriptions.join(", ");
        format!(
            r#"{{ "UserConfig": {{ "Namespaces": [ {{ "Name": "cluster", "Topics": [ {{
  "Name": "{TOPIC}",
  "Properties": {{ {detection}"EnablePartitioning": {partitioned} }},
  "Subscriptions": [ {subscriptions} ]
}} ] }} ] }} }}"#
        )
    }
}

pub(super) fn connection_string(broker: SocketAddr) -> String {
    format!("Endpoint=sb://{broker};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true")
}
