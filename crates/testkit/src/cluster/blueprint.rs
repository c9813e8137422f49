//! What a house is to be: how many pods, which store, what kind of topic, and what a pod's configuration says of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::process::Program;

pub(super) const PIPELINE: &str = "shop";
pub(super) const COLLECTION: &str = "events";
pub(super) const TOPIC: &str = "events";
pub(super) const SUBSCRIPTION: &str = "read-models";
pub(super) const ECHO: &str = "echo";
pub(super) const COPY: &str = "copy";

/// Which MongoDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The test run's, in databases of the house's own; linked through proxies, and nobody may kill it.
    Shared,
    /// A replica set of one, linked through proxies.
    One,
    /// A replica set of three, which a driver reaches directly.
    Three,
    /// Two shards behind a mongos that is linked through proxies; nobody may kill them.
    Sharded,
}

/// The topic and its subscription.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// `None`: no duplicate detection.
    pub duplicate_window: Option<Duration>,
    pub partitioned: bool,
    /// Of a session.
    pub lock: Duration,
    /// A second subscription, without sessions, for whoever wants to say everything once more.
    pub echo: bool,
    /// Another one, with sessions, for whoever reads the topic beside the pods.
    pub copy: bool,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            // Longer than any soak pauses, as the promise has it.
            duplicate_window: Some(Duration::from_secs(1_200)),
            partitioned: false,
            lock: Duration::from_secs(30),
            echo: false,
            copy: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    pub ttl: Duration,
    pub renew_deadline: Duration,
    pub heartbeat: Duration,
}

impl Default for LeaseTimes {
    /// Short, so that a soak sees many takeovers.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1_300),
            heartbeat: Duration::from_millis(400),
        }
    }
}

/// How to build a [`House`](super::House).
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The `headwater` program.
    pub binary: PathBuf,
    pub pods: usize,
    pub store: StoreKind,
    pub topic: Topic,
    pub lease: LeaseTimes,
    /// Whether pods are told of the events' `version`; without it only the position orders.
    pub sequence: bool,
    /// The inside of `producer:`.
    pub producer: String,
    /// More of the configuration, as lines of YAML.
    pub more: String,
    /// What every pod finds in its environment, besides its `HOSTNAME`.
    pub environment: Vec<(String, String)>,
    /// Another program in the place of `headwater run`; it finds its configuration by `HEADWATER_CONFIG`.
    pub pod: Option<Program>,
}

impl Blueprint {
    /// Three pods on a set of three.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            pods: 3,
            store: StoreKind::Three,
            topic: Topic::default(),
            lease: LeaseTimes::default(),
            sequence: true,
            producer: "start: beginning, checkpoint: 200ms, body: bson".into(),
            more: String::new(),
            environment: vec![],
            pod: None,
        }
    }

    /// One pod's file.
    pub(super) fn configuration(&self, uri: &str, source: &str, coordination: &str, broker: SocketAddr) -> String {
        let LeaseTimes { ttl, renew_deadline, heartbeat } = self.lease;
        let [ttl, renew_deadline, heartbeat] = [ttl, renew_deadline, heartbeat].map(|time| time.as_millis());
        let connection_string = connection_string(broker);
        let Self { producer, more, .. } = self;
        let sequence = if self.sequence { ", sequence: version" } else { "" };
        format!(
            r#"format: 1
pipeline: {PIPELINE}
source: {{ uri: "{uri}", database: {source}, collection: {COLLECTION}, kind: events, aggregate_id: aggregateId, event_type: type{sequence} }}
coordination: {{ database: {coordination}, lease: {{ ttl: {ttl}ms, renew_deadline: {renew_deadline}ms, heartbeat: {heartbeat}ms }} }}
service_bus: {{ connection_string: "{connection_string}", topic: {TOPIC}, subscription: {SUBSCRIPTION} }}
producer: {{ {producer} }}
{more}"#
        )
    }

    /// The entities, as the official emulator's file has them.
    pub(super) fn entities(&self) -> String {
        let Topic { duplicate_window, partitioned, lock, echo, copy } = self.topic;
        let detection = duplicate_window.map_or(String::new(), |window| {
            let seconds = window.as_secs();
            format!(r#""RequiresDuplicateDetection": true, "DuplicateDetectionHistoryTimeWindow": "PT{seconds}S", "#)
        });
        let lock = lock.as_secs();
        let sessions = format!(r#""RequiresSession": true, "LockDuration": "PT{lock}S", "#);
        let subscription =
            |name, kind: &str| format!(r#"{{ "Name": "{name}", "Properties": {{ {kind}"MaxDeliveryCount": 2000 }} }}"#);
        let mut subscriptions = vec![subscription(SUBSCRIPTION, &sessions)];
        subscriptions.extend(echo.then(|| subscription(ECHO, "")));
        subscriptions.extend(copy.then(|| subscription(COPY, &sessions)));
        let subscriptions = subscriptions.join(", ");
        format!(
            r#"{{ "UserConfig": {{ "Namespaces": [ {{ "Name": "house", "Topics": [ {{
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
