//! Every key there is: its type, its default and its reason. The one table behind loading, `config print`, the commented reference
//! file and the JSON schema for editors.

use std::time::Duration;

use super::formats;

pub(crate) struct ConfigKey {
    /// Dotted.
    pub(crate) path: &'static str,
    pub(crate) kind: ValueKind,
    pub(crate) default: KeyDefault,
    /// What it means, and why the default is what it is.
    pub(crate) about: &'static str,
}

impl ConfigKey {
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, ValueKind::Secret { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueKind {
    Text,
    /// Never shown. May also be given as a file, under the same name with `_file` behind it.
    Secret {
        /// What is wrong with it, without quoting it.
        check: fn(&str) -> Result<(), String>,
    },
    Flag,
    Count {
        least: u64,
        most: u64,
    },
    Duration {
        least: Duration,
        most: Duration,
    },
    /// Bytes.
    Size {
        least: u64,
        most: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words, or what the rule says, as `example` shows; where that is empty, the key's own example does.
    Pattern {
        rule: &'static str,
        example: &'static str,
        fits: fn(&str) -> bool,
    },
    Texts,
    /// A list of documents in MongoDB's own language.
    Documents,
    /// Read models by name, as `pipeline::view` has them: the section's other keys, whatever they are called.
    ReadModels,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyDefault {
    /// Must be given; an example of it.
    Required(&'static str),
    /// May be left out; an example of it, which a file to start from has.
    Suggested(&'static str),
    /// May be left out; an example of it.
    Optional(&'static str),
    /// As it would be written.
    Value(&'static str),
}

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

const DATABASE: ValueKind = ValueKind::Pattern {
    rule: "the name of a database, without spaces, `/`, `\\`, `.`, `\"` and `$`, and none of the server's own",
    example: "",
    fits: formats::is_database,
};
const PATH: ValueKind =
    ValueKind::Pattern { rule: "a dotted path of field names", example: "", fits: formats::is_path };
const MONGODB_URI: ValueKind = ValueKind::Secret { check: formats::check_mongodb_uri };

pub(crate) const OTLP_ENDPOINT: &str = "an http or https address without a user and a path";

/// What a section is for, shown above it.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    ("source", "Where the events are."),
    ("coordination", "Where pods agree on who leads and how far they have come."),
    ("coordination.lease", "ttl > renew_deadline > heartbeat."),
    ("service_bus", "The bus: Azure Service Bus, or `headwater broker`."),
    ("producer", "The leader's part: change stream to topic."),
    (
        "producer.window",
        "How much may be under way to the bus at once, over all aggregates; none may fill more than an eighth of it.",
    ),
    ("producer.read_ahead", "How much is read from the change stream before the bus takes it."),
    ("consumer", "Every pod's part: sessions of the subscription to read models."),
    (
        "read_models",
        "What is built from the events: collections by name, and where they are. None: this pod only publishes. docs/read-models.md has recipes.",
    ),
    (
        "admin",
        "The HTTP side of a pod: dashboard, `/api/status`, `/metrics`, `/healthz`, `/readyz`; all of it only for reading, unless there is a `token`.",
    ),
    ("telemetry", "OpenTelemetry: traces of events from insert to read model, across the bus."),
];

pub(crate) const KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "format",
        kind: ValueKind::Count { least: 1, most: 1 },
        default: KeyDefault::Required("1"),
        about: "The shape of this file.",
    },
    ConfigKey {
        path: "pipeline",
        kind: ValueKind::Text,
        default: KeyDefault::Value("changeStreamPublisher"),
        about: "Names this deployment: its lease, checkpoint and cursors. Two pipelines in one database don't touch each other.",
    },
    ConfigKey {
        path: "pod_id",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("pod-1"),
        about: "What this pod is called, in logs and in the lease. Left out: HOSTNAME, else something random.",
    },
    ConfigKey {
        path: "source.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Required("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "The MongoDB that holds the events: a replica set or a sharded cluster.",
    },
    ConfigKey {
        path: "source.database",
        kind: DATABASE,
        default: KeyDefault::Required("shop"),
        about: "The database of the collections below.",
    },
    ConfigKey {
        path: "source.collection",
        kind: ValueKind::Pattern { rule: "the name of a collection", example: "events", fits: formats::is_collection },
        default: KeyDefault::Suggested("events"),
        about: "One collection, or several under `collections`.",
    },
    ConfigKey {
        path: "source.collections",
        kind: ValueKind::Texts,
        default: KeyDefault::Optional("[orders, customers]"),
        about: "Several collections of one kind; their events share one stream.",
    },
    ConfigKey {
        path: "source.kind",
        kind: ValueKind::Choice(&["events", "documents"]),
        default: KeyDefault::Value("events"),
        about: "`events`: an append-only collection; each insert is an event. `documents`: ordinary documents; each change is an event.",
    },
    ConfigKey {
        path: "source.aggregate_id",
        kind: PATH,
        default: KeyDefault::Value("aggregateId"),
        about: "Dotted path to the id whose events stay in order. For `documents` it is always the document's `_id`.",
    },
    ConfigKey {
        path: "source.event_type",
        kind: PATH,
        default: KeyDefault::Value("type"),
        about: "Dotted path to the event's type. For `documents` the type is the operation.",
    },
    ConfigKey {
        path: "source.sequence",
        kind: PATH,
        default: KeyDefault::Suggested("version"),
        about: "Dotted path to the aggregate's own count of its events (1, 2, 3 …). With it, gaps are seen and healed.",
    },
    ConfigKey {
        path: "source.full_document",
        kind: ValueKind::Choice(&["lookup", "post_image"]),
        default: KeyDefault::Value("lookup"),
        about: "For `documents`: look the state up when a change is read, or use the post-images that the collection keeps (exact, and faster).",
    },
    ConfigKey {
        path: "coordination.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Optional("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "Left out: the source's.",
    },
    ConfigKey {
        path: "coordination.database",
        kind: DATABASE,
        default: KeyDefault::Value("headwater"),
        about: "Lease, checkpoints, and what pods keep for themselves. Not the read models.",
    },
    ConfigKey {
        path: "coordination.lease.ttl",
        kind: ValueKind::Duration { least: seconds(1), most: seconds(600) },
        default: KeyDefault::Value("15s"),
        about: "How long a standby must see nothing of the leader before it takes over: what a crash costs.",
    },
    ConfigKey {
        path: "coordination.lease.renew_deadline",
        kind: ValueKind::Duration { least: millis(100), most: seconds(600) },
        default: KeyDefault::Value("10s"),
        about: "How long the leader may rely on its last acknowledged renewal.",
    },
    ConfigKey {
        path: "coordination.lease.heartbeat",
        kind: ValueKind::Duration { least: millis(50), most: seconds(600) },
        default: KeyDefault::Value("5s"),
        about: "How long the leader waits between two renewals.",
    },
    ConfigKey {
        path: "coordination.lease.poll",
        kind: ValueKind::Duration { least: millis(10), most: seconds(600) },
        default: KeyDefault::Optional("1s"),
        about: "How often a standby looks at the lease. Left out: a fifth of `heartbeat`.",
    },
    ConfigKey {
        path: "coordination.lease.watch",
        kind: ValueKind::Flag,
        default: KeyDefault::Value("true"),
        about: "Whether standbys also watch the lease, and so take over milliseconds after a release. Turn it off for large fleets.",
    },
    ConfigKey {
        path: "coordination.lease.max_clock_skew",
        kind: ValueKind::Duration { least: millis(0), most: seconds(86_400) },
        default: KeyDefault::Optional("1m"),
        about: "A promise about the clocks of the MongoDB servers; lets a pod that has just started take an expired lease at once.",
    },
    ConfigKey {
        path: "service_bus.connection_string",
        kind: ValueKind::Secret { check: formats::check_connection_string },
        default: KeyDefault::Required(
            "Endpoint=sb://localhost;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true",
        ),
        about: "As Azure's portal and SDKs have it.",
    },
    ConfigKey {
        path: "service_bus.topic",
        kind: ValueKind::Pattern {
            rule: "a name of up to 260 letters, digits, `.`, `-`, `_` and `/`, with a letter or digit at both ends",
            example: "events",
            fits: formats::is_topic,
        },
        default: KeyDefault::Value("events"),
        about: "Where every event is sent. `headwater topology apply` creates it.",
    },
    ConfigKey {
        path: "service_bus.subscription",
        kind: ValueKind::Pattern {
            rule: "a name of up to 50 letters, digits, `.`, `-` and `_`, with a letter or digit at both ends",
            example: "read-models",
            fits: formats::is_subscription,
        },
        default: KeyDefault::Value("read-models"),
        about: "Session-enabled. Publishing pauses while it does not exist: a topic accepts what no subscription keeps.",
    },
    ConfigKey {
        path: "service_bus.ca_file",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("/etc/headwater/ca.pem"),
        about: "PEM file of the authorities to trust instead of the public ones.",
    },
    ConfigKey {
        path: "producer.start",
        kind: ValueKind::Pattern {
            rule: "`beginning`, `now` or a time",
            example: "2026-01-31T00:00:00Z",
            fits: |text| formats::parse_start(text).is_some(),
        },
        default: KeyDefault::Value("beginning"),
        about: "Where a new pipeline begins. `beginning` reads what the source holds, then follows the stream.",
    },
    ConfigKey {
        path: "producer.on_history_lost",
        kind: ValueKind::Choice(&["halt", "snapshot"]),
        default: KeyDefault::Value("halt"),
        about: "When the oplog no longer holds the checkpoint: wait for an operator, or read the whole source again.",
    },
    ConfigKey {
        path: "producer.filter",
        kind: ValueKind::Documents,
        default: KeyDefault::Value("[]"),
        about: "Stages of an aggregation pipeline that the change stream passes, e.g. `- $match: { fullDocument.region: eu }`.",
    },
    ConfigKey {
        path: "producer.body",
        kind: ValueKind::Choice(&["bson", "json"]),
        default: KeyDefault::Value("bson"),
        about: "`bson` loses nothing; `json` (relaxed Extended JSON) where others read the topic.",
    },
    ConfigKey {
        path: "producer.sessions",
        kind: ValueKind::Pattern {
            rule: "`aggregate` or `buckets(n)`",
            example: "buckets(256)",
            fits: |text| formats::parse_sessions(text).is_some(),
        },
        default: KeyDefault::Value("aggregate"),
        about: "One session per aggregate, or one per bucket of aggregates: for millions that live shortly.",
    },
    ConfigKey {
        path: "producer.checkpoint",
        kind: ValueKind::Pattern {
            rule: "a duration or `each`",
            example: "200ms",
            fits: |text| formats::parse_checkpoint(text).is_some(),
        },
        default: KeyDefault::Value("200ms"),
        about: "How often the checkpoint is saved (and every 1,000 events). `each` saves per event, at a fiftieth of the rate.",
    },
    ConfigKey {
        path: "producer.window.events",
        kind: ValueKind::Count { least: 16, most: 1_000_000 },
        default: KeyDefault::Value("8192"),
        about: "In events; more keep a distant bus busy.",
    },
    ConfigKey {
        path: "producer.window.bytes",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 31 },
        default: KeyDefault::Value("8MiB"),
        about: "In bytes of messages; whichever is reached first.",
    },
    ConfigKey {
        path: "producer.read_ahead.events",
        kind: ValueKind::Count { least: 1, most: 1_000_000 },
        default: KeyDefault::Value("16000"),
        about: "In events.",
    },
    ConfigKey {
        path: "producer.read_ahead.bytes",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 31 },
        default: KeyDefault::Value("8MiB"),
        about: "In bytes; whichever is reached first.",
    },
    ConfigKey {
        path: "producer.drain",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Value("10s"),
        about: "How long a leader that stops may take to send what it has read, before it gives the lease back.",
    },
    ConfigKey {
        path: "consumer.max_concurrent_sessions",
        kind: ValueKind::Count { least: 1, most: 10_000 },
        default: KeyDefault::Value("256"),
        about: "SessionMapping one pod holds at a time. Each is cheap; what they hold is bounded by `bytes_in_flight`.",
    },
    ConfigKey {
        path: "consumer.on_poison",
        kind: ValueKind::Choice(&["park", "dead_letter"]),
        default: KeyDefault::Value("park"),
        about: "An event that cannot be applied parks its aggregate in that read model; `dead_letter` also puts its message there.",
    },
    ConfigKey {
        path: "consumer.connections",
        kind: ValueKind::Count { least: 1, most: 64 },
        default: KeyDefault::Value("2"),
        about: "Connections to the bus that the sessions are spread over.",
    },
    ConfigKey {
        path: "consumer.transactions",
        kind: ValueKind::Count { least: 1, most: 64 },
        default: KeyDefault::Value("2"),
        about: "Transactions side by side; two keep a server of two cores busy.",
    },
    ConfigKey {
        path: "consumer.credit",
        kind: ValueKind::Count { least: 2, most: 100_000 },
        default: KeyDefault::Value("1000"),
        about: "Messages one session may hold unsettled; half of them are a batch, so that the next comes in meanwhile.",
    },
    ConfigKey {
        path: "consumer.bytes_in_flight",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 33 },
        default: KeyDefault::Value("64MiB"),
        about: "What all sessions of a pod may hold together.",
    },
    ConfigKey {
        path: "consumer.session_idle_timeout",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Value("1s"),
        about: "How long a session without messages is kept, while nobody waits for its place.",
    },
    ConfigKey {
        path: "consumer.max_session_duration",
        kind: ValueKind::Duration { least: millis(100), most: seconds(3_600) },
        default: KeyDefault::Value("10s"),
        about: "After this time, or after `max_session_events`, a session is let go, so that others have their turn.",
    },
    ConfigKey {
        path: "consumer.max_session_events",
        kind: ValueKind::Count { least: 1, most: 10_000_000 },
        default: KeyDefault::Value("5000"),
        about: "See `max_session_duration`.",
    },
    ConfigKey {
        path: "consumer.lock_duration",
        kind: ValueKind::Duration { least: seconds(5), most: seconds(300) },
        default: KeyDefault::Value("1m"),
        about: "The subscription's own; locks are renewed at half of it.",
    },
    ConfigKey {
        path: "consumer.gap_timeout",
        kind: ValueKind::Duration { least: millis(0), most: seconds(3_600) },
        default: KeyDefault::Value("10s"),
        about: "How long a gap may stay that the source does not fill, before what lies behind it is parked.",
    },
    ConfigKey {
        path: "consumer.first_sequence",
        kind: ValueKind::Count { least: 0, most: 1_000_000 },
        default: KeyDefault::Value("1"),
        about: "What an aggregate's first event is numbered.",
    },
    ConfigKey {
        path: "consumer.drain",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Value("20s"),
        about: "How long a stop may take: what is in hand is applied and settled, then sessions are let go.",
    },
    ConfigKey {
        path: "read_models.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Optional("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "The MongoDB that holds the read models. Left out: the source's.",
    },
    ConfigKey {
        path: "read_models.database",
        kind: DATABASE,
        default: KeyDefault::Optional("shop_views"),
        about: "Left out: the source's database with `_views` behind it.",
    },
    ConfigKey {
        path: READ_MODELS,
        kind: ValueKind::ReadModels,
        default: KeyDefault::Optional(
            "{ when: { OrderPlaced: { $set: { status: placed, customer: $$event.payload.customer } }, OrderCancelled: delete }, indexes: [ { keys: { customer: 1 } } ] }",
        ),
        about: "Every other key is a read model: a collection, and per event type an update document, a pipeline or `delete`.",
    },
    ConfigKey {
        path: "admin.listen",
        kind: ValueKind::Pattern {
            rule: "an address with a port",
            example: "0.0.0.0:8080",
            fits: |text| formats::parse_listen(text).is_some(),
        },
        default: KeyDefault::Optional("127.0.0.1:8080"),
        about: "Left out: 127.0.0.1:8080, or any other port of 127.0.0.1 where that is taken. Whoever reaches it sees how the pipeline is, and no event.",
    },
    ConfigKey {
        path: "admin.token",
        kind: ValueKind::Secret { check: formats::check_token },
        default: KeyDefault::Optional("what openssl rand -hex 16 prints"),
        about: "Whoever shows it may also act, from the dashboard and over HTTP. Left out: nobody can, and all of it is only for reading. It goes over the wire as it is: where `listen` is not this machine alone, put TLS in front.",
    },
    ConfigKey {
        path: "telemetry.otlp_endpoint",
        kind: ValueKind::Pattern {
            rule: OTLP_ENDPOINT,
            example: "http://127.0.0.1:4318",
            fits: |text| formats::parse_endpoint(text).is_some(),
        },
        default: KeyDefault::Optional("http://127.0.0.1:4318"),
        about: "A collector that takes OTLP over HTTP; `/v1/traces` is added. Left out: `OTEL_EXPORTER_OTLP_ENDPOINT`, and without that nothing is traced. Keys for it go into `OTEL_EXPORTER_OTLP_HEADERS`.",
    },
    ConfigKey {
        path: "telemetry.trace_one_in",
        kind: ValueKind::Count { least: 1, most: 1_000_000_000 },
        default: KeyDefault::Value("100"),
        about: "One event in so many is traced; 1: every event. Four spans each. All pods pick the same events.",
    },
];

/// Keys that had another name before: a file that still uses the old name is refused with the new name.
const RENAMED: &[(&str, &str)] = &[
    ("consumer.idle", "consumer.session_idle_timeout"),
    ("consumer.longest_hold", "consumer.max_session_duration"),
    ("consumer.most_events", "consumer.max_session_events"),
    ("consumer.unhealable_after", "consumer.gap_timeout"),
];

/// The key that replaces this path, if the path is the old name of a key.
pub(crate) fn renamed_key(path: &str) -> Option<&'static ConfigKey> {
    RENAMED.iter().find(|(old, _)| *old == path).and_then(|(_, new)| key(new))
}

/// Stands for every key of its section that has no line of its own.
pub(crate) const READ_MODELS: &str = "read_models.*";

/// An example of a name, where the table has a star.
pub(crate) const EXAMPLE_READ_MODEL: &str = "order_summary";

/// The key of this path.
pub(crate) fn key(path: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether there are keys below this path.
pub(crate) fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The key for names that have none of their own, in a section that takes any.
pub(crate) fn wildcard_key(section: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.path.strip_suffix(".*") == Some(section))
}

/// The names directly below this path (empty: at the top), in the table's order.
pub(crate) fn child_names(path: &str) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for key in KEYS {
        let rest = if path.is_empty() {
            Some(key.path)
        } else {
            key.path.strip_prefix(path).and_then(|rest| rest.strip_prefix('.'))
        };
        if let Some(name) = rest.and_then(|rest| rest.split('.').next())
            && name != "*"
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}
