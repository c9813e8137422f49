//! The table of all configuration keys: type, default and description. Loading, `config print`, the reference file and the JSON
//! schema for editors all use it.

use std::borrow::Cow;
use std::time::Duration;

use pipeline::{audit, capture, publish, session, view};

use super::formats;
use super::units::{format_duration, format_size};

pub(crate) struct ConfigKey {
    /// Dotted, such as `source.uri`.
    pub(crate) path: &'static str,
    pub(crate) kind: ValueKind,
    pub(crate) default: KeyDefault,
    /// What the key does, and why the default is what it is. Shown to users.
    pub(crate) about: &'static str,
}

impl ConfigKey {
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, ValueKind::Secret { .. })
    }

    /// The default, or an example if there is none, as a user would write it.
    pub(crate) fn example(&self) -> Cow<'static, str> {
        match self.default {
            KeyDefault::Required(text)
            | KeyDefault::Suggested(text)
            | KeyDefault::Optional(text)
            | KeyDefault::Value(text) => text.into(),
            KeyDefault::Service(read) => read(&ServiceDefaults::default()).into(),
        }
    }

    pub(crate) fn has_default(&self) -> bool {
        matches!(self.default, KeyDefault::Value(_) | KeyDefault::Service(_))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueKind {
    Text,
    /// Never shown. Can also be read from a file, with the same key and the suffix `_file`.
    Secret {
        /// Returns what is wrong, without quoting the secret.
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
    /// In bytes.
    Size {
        least: u64,
        most: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text that `fits` accepts. `rule` and `example` explain it in error messages; an empty example means that of the key.
    Pattern {
        rule: &'static str,
        example: &'static str,
        fits: fn(&str) -> bool,
    },
    Texts,
    /// A list of MongoDB documents.
    Documents,
    /// A map from names to lists of MongoDB documents.
    NamedDocuments,
    /// Read models by name: all keys of the section that are not listed here.
    ReadModels,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyDefault {
    /// Must be set. The text is an example.
    Required(&'static str),
    /// Optional. The text is an example, and the reference file sets it.
    Suggested(&'static str),
    /// Optional. The text is an example, and the reference file shows it as a comment.
    Optional(&'static str),
    /// The default, as a user would write it.
    Value(&'static str),
    /// The default of the service that the key configures. The number is stated only there.
    Service(fn(&ServiceDefaults) -> String),
}

/// The defaults of the services, in their own code.
#[derive(Default)]
pub(crate) struct ServiceDefaults {
    lease: lease::Config,
    capture: capture::Config,
    publish: publish::Config,
    session: session::Config,
    view: view::Config,
    audit: audit::Config,
}

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

const DATABASE: ValueKind = ValueKind::Pattern {
    rule: "a database name without spaces, `/`, `\\`, `.`, `\"` and `$`, other than `admin`, `config` and `local`",
    example: "",
    fits: formats::is_database,
};
const PATH: ValueKind =
    ValueKind::Pattern { rule: "a dotted path of field names", example: "", fits: formats::is_path };
const MONGODB_URI: ValueKind = ValueKind::Secret { check: formats::check_mongodb_uri };

pub(crate) const OTLP_ENDPOINT: &str = "an http or https URL without user and path";

/// The description of each section, shown above it.
const SECTIONS: &[(&str, &str)] = &[
    ("source", "The source: where the events are."),
    ("coordination", "Where pods elect a leader and store checkpoints."),
    ("coordination.lease", "ttl > renew_deadline > heartbeat."),
    ("service_bus", "Azure Service Bus, or `headwater broker`."),
    (
        "service_bus.entra",
        "Tokens of Entra ID, for `fully_qualified_namespace`. On Kubernetes with workload identity nothing needs to be set.",
    ),
    (
        "message_signing",
        "Signs messages, so that consumers apply only those that a pod of this pipeline has published. Off without keys. docs/operations.md says how to turn it on and how to change a key.",
    ),
    ("producer", "Used by the leader: from the change stream to the topic."),
    (
        "producer.window",
        "How much may be in flight to Service Bus, over all aggregates. One aggregate gets at most an eighth of it.",
    ),
    ("producer.read_ahead", "How much is read from the change stream before Service Bus has accepted it."),
    ("consumer", "Used by every pod: from the sessions of the subscription to the read models."),
    (
        "read_models",
        "The read models and the database they are in. Without read models a pod only publishes. docs/read-models.md has recipes.",
    ),
    (
        "audit",
        "Compares the source with the read models in the background, and heals what is missing. Needs `source.sequence` and the index on it.",
    ),
    (
        "admin",
        "The HTTP server of a pod: dashboard, `/api/status`, `/metrics`, `/healthz`, `/readyz`. Read-only, unless `token` is set.",
    ),
    ("telemetry", "OpenTelemetry: traces of events from insert to read model, across Service Bus."),
];

pub(crate) const KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "format",
        kind: ValueKind::Count { least: 1, most: 1 },
        default: KeyDefault::Required("1"),
        about: "Version of the format of this file.",
    },
    ConfigKey {
        path: "pipeline",
        kind: ValueKind::Text,
        default: KeyDefault::Value("changeStreamPublisher"),
        about: "Name of this deployment. Its lease, checkpoint and cursors are stored under this name, so several pipelines can share one database.",
    },
    ConfigKey {
        path: "pod_id",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("pod-1"),
        about: "Name of this pod in logs and in the lease. Default: HOSTNAME, or a random name.",
    },
    ConfigKey {
        path: "source.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Required("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "URI of the MongoDB that holds the events: a replica set or a sharded cluster.",
    },
    ConfigKey {
        path: "source.database",
        kind: DATABASE,
        default: KeyDefault::Required("shop"),
        about: "Database of the collections below.",
    },
    ConfigKey {
        path: "source.collection",
        kind: ValueKind::Pattern { rule: "a collection name", example: "events", fits: formats::is_collection },
        default: KeyDefault::Suggested("events"),
        about: "One collection. For several, use `collections`.",
    },
    ConfigKey {
        path: "source.collections",
        kind: ValueKind::Texts,
        default: KeyDefault::Optional("[orders, customers]"),
        about: "Several collections of the same kind, read as one change stream.",
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
        about: "Dotted path to the aggregate id. Events with the same id stay in order. For `documents` it is always the document's `_id`.",
    },
    ConfigKey {
        path: "source.event_type",
        kind: PATH,
        default: KeyDefault::Value("type"),
        about: "Dotted path to the event type. For `documents` the type is the operation.",
    },
    ConfigKey {
        path: "source.sequence",
        kind: PATH,
        default: KeyDefault::Suggested("version"),
        about: "Dotted path to the sequence number of the event in its aggregate (1, 2, 3 …): a whole number of any numeric type. With it, gaps are detected and filled, and events without it are rejected.",
    },
    ConfigKey {
        path: "source.full_document",
        kind: ValueKind::Choice(&["lookup", "post_image"]),
        default: KeyDefault::Value("lookup"),
        about: "For `documents`: `lookup` reads the current document when a change is read; `post_image` uses the post-images of the collection (exact, and faster).",
    },
    ConfigKey {
        path: "source.upcast",
        kind: ValueKind::NamedDocuments,
        default: KeyDefault::Value("{}"),
        about: "For `events`: by event type, stages (`$set`, `$unset`, `$project`, `$replaceWith`) that bring an old event into its present form before read models see it. They cannot change its id, aggregate, sequence or type. A change rebuilds the read models that handle the type.",
    },
    ConfigKey {
        path: "coordination.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Optional("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "URI of the MongoDB for leases and checkpoints. Default: the source's.",
    },
    ConfigKey {
        path: "coordination.database",
        kind: DATABASE,
        default: KeyDefault::Value("headwater"),
        about: "Database of leases, checkpoints and the other data that pods share. Read models are not here.",
    },
    ConfigKey {
        path: "coordination.balance_interval",
        kind: ValueKind::Duration { least: seconds(1), most: seconds(86_400) },
        default: KeyDefault::Value("30s"),
        about: "Of several pipelines: a pod that leads at least two more than another pod hands one over, at most once in this time. Each handover costs that pipeline less than a second.",
    },
    ConfigKey {
        path: "coordination.lease.ttl",
        kind: ValueKind::Duration { least: seconds(1), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.lease.ttl)),
        about: "A standby takes over when it has seen no renewal for this long: the time without a leader after a crash.",
    },
    ConfigKey {
        path: "coordination.lease.renew_deadline",
        kind: ValueKind::Duration { least: millis(100), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.lease.renew_deadline)),
        about: "The leader stops when its last acknowledged renewal is older than this.",
    },
    ConfigKey {
        path: "coordination.lease.heartbeat",
        kind: ValueKind::Duration { least: millis(50), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.lease.heartbeat)),
        about: "Interval between two renewals by the leader.",
    },
    ConfigKey {
        path: "coordination.lease.poll",
        kind: ValueKind::Duration { least: millis(10), most: seconds(600) },
        default: KeyDefault::Optional("1s"),
        about: "Interval at which a standby reads the lease. Default: a fifth of `heartbeat`.",
    },
    ConfigKey {
        path: "coordination.lease.watch",
        kind: ValueKind::Flag,
        default: KeyDefault::Service(|it| it.lease.watch.to_string()),
        about: "Standbys also watch the lease by change stream and take over within milliseconds of a release. Turn it off for large fleets: every watcher makes the server scan the oplog once more.",
    },
    ConfigKey {
        path: "coordination.lease.max_clock_skew",
        kind: ValueKind::Duration { least: millis(0), most: seconds(86_400) },
        default: KeyDefault::Optional("1m"),
        about: "Upper bound that you guarantee for the clock skew between the MongoDB servers. With it, a pod that has just started can take an expired lease at once.",
    },
    ConfigKey {
        path: "service_bus.connection_string",
        kind: ValueKind::Secret { check: formats::check_connection_string },
        default: KeyDefault::Suggested(
            "Endpoint=sb://localhost;SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true",
        ),
        about: "Connection string, as the Azure portal and the SDKs use it. Or set `fully_qualified_namespace`.",
    },
    ConfigKey {
        path: "service_bus.fully_qualified_namespace",
        kind: ValueKind::Pattern {
            rule: "a host name, with a port if it is not 5671",
            example: "",
            fits: formats::is_namespace,
        },
        default: KeyDefault::Optional("shop.servicebus.windows.net"),
        about: "Host name of the namespace. Instead of a connection string: pods then authenticate with tokens of Entra ID, see `entra`.",
    },
    ConfigKey {
        path: "service_bus.entra.credential",
        kind: ValueKind::Choice(super::service_bus::CREDENTIALS),
        default: KeyDefault::Value("environment"),
        about: "Who the pod is. `environment`: workload identity, client secret or client certificate if their variables (AZURE_FEDERATED_TOKEN_FILE, AZURE_CLIENT_SECRET, AZURE_CLIENT_CERTIFICATE_PATH) are set, else managed identity. `azure_cli` is for development.",
    },
    ConfigKey {
        path: "service_bus.entra.tenant_id",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("00000000-0000-0000-0000-000000000000"),
        about: "Tenant that issues the tokens. Default: AZURE_TENANT_ID.",
    },
    ConfigKey {
        path: "service_bus.entra.client_id",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("00000000-0000-0000-0000-000000000000"),
        about: "Client id of the application or of the user-assigned identity. Default: AZURE_CLIENT_ID.",
    },
    ConfigKey {
        path: "service_bus.entra.client_secret",
        kind: ValueKind::Secret { check: |_| Ok(()) },
        default: KeyDefault::Optional("the secret of the application"),
        about: "Secret of the application. Default: AZURE_CLIENT_SECRET. `client_secret_file` is read for every token, so that a new secret needs no restart.",
    },
    ConfigKey {
        path: "service_bus.entra.certificate_file",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("/etc/headwater/client.pem"),
        about: "PEM file with the certificate of the application and its RSA key, read for every token. Default: AZURE_CLIENT_CERTIFICATE_PATH.",
    },
    ConfigKey {
        path: "service_bus.entra.authority",
        kind: ValueKind::Pattern { rule: "an https URL without a path", example: "", fits: formats::is_https_origin },
        default: KeyDefault::Optional("https://login.microsoftonline.us"),
        about: "Authority of another cloud. Default: AZURE_AUTHORITY_HOST, or that of the public cloud.",
    },
    ConfigKey {
        path: "service_bus.entra.audience",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("https://servicebus.azure.net"),
        about: "Resource that tokens are for. Default: Service Bus of all clouds.",
    },
    ConfigKey {
        path: "service_bus.topic",
        kind: ValueKind::Pattern {
            rule: "a name of up to 260 letters, digits, `.`, `-`, `_` and `/`, with a letter or digit at both ends",
            example: "events",
            fits: formats::is_topic,
        },
        default: KeyDefault::Value("events"),
        about: "Topic that every event is sent to. `headwater topology apply` creates it.",
    },
    ConfigKey {
        path: "service_bus.subscription",
        kind: ValueKind::Pattern {
            rule: "a name of up to 50 letters, digits, `.`, `-` and `_`, with a letter or digit at both ends",
            example: "read-models",
            fits: formats::is_subscription,
        },
        default: KeyDefault::Value("read-models"),
        about: "Session-enabled subscription that pods receive from. Publishing pauses while it does not exist, because a topic without a subscription drops its messages.",
    },
    ConfigKey {
        path: "service_bus.ca_file",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("/etc/headwater/ca.pem"),
        about: "PEM file with the certificate authorities to trust, instead of those of the system (SSL_CERT_FILE) and the public ones.",
    },
    ConfigKey {
        path: "service_bus.transport",
        kind: ValueKind::Choice(&["amqp", "web_socket"]),
        default: KeyDefault::Value("amqp"),
        about: "`web_socket` for networks that allow only HTTPS: AMQP over WebSocket, on port 443 unless another port is given, and through the proxy of HTTPS_PROXY.",
    },
    ConfigKey {
        path: "message_signing.keys",
        kind: ValueKind::Secret { check: formats::check_message_keys },
        default: KeyDefault::Optional("2026-11:the output of openssl rand -base64 32"),
        about: "Keys, each as `id:base64` with at least 32 bytes, separated by spaces or line breaks. Every pod needs the same keys, and a pipeline needs its own. Consumers accept messages that are signed with any of them. Default: messages are neither signed nor verified.",
    },
    ConfigKey {
        path: "message_signing.sign_with",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("2026-11"),
        about: "Id of the key that signs. Default: the first one.",
    },
    ConfigKey {
        path: "message_signing.accept_unsigned_until",
        kind: ValueKind::Pattern {
            rule: "a time",
            example: "2026-12-01T00:00:00Z",
            fits: |text| formats::parse_time(text).is_some(),
        },
        default: KeyDefault::Optional("2026-12-01T00:00:00Z"),
        about: "Until then consumers also accept messages without a signature, by the clock of the pod: for the time in which signing is turned on. Default: no unsigned message is accepted.",
    },
    ConfigKey {
        path: "producer.start",
        kind: ValueKind::Pattern {
            rule: "`beginning`, `now` or a time",
            example: "2026-01-31T00:00:00Z",
            fits: |text| formats::parse_start(text).is_some(),
        },
        default: KeyDefault::Value("beginning"),
        about: "Where a new pipeline starts: `beginning` reads everything the source holds and then follows the change stream; `now`; or a time.",
    },
    ConfigKey {
        path: "producer.on_history_lost",
        kind: ValueKind::Choice(&["halt", "snapshot"]),
        default: KeyDefault::Value("halt"),
        about: "What the leader does when the oplog no longer holds the checkpoint: `halt` waits for an operator; `snapshot` reads the whole source again.",
    },
    ConfigKey {
        path: "producer.filter",
        kind: ValueKind::Documents,
        default: KeyDefault::Value("[]"),
        about: "Aggregation stages that the server applies to the change stream, e.g. `- $match: { fullDocument.region: eu }`.",
    },
    ConfigKey {
        path: "producer.body",
        kind: ValueKind::Choice(&["bson", "json"]),
        default: KeyDefault::Value("bson"),
        about: "Format of message bodies. `bson` keeps every type; use `json` (relaxed Extended JSON) if other programs read the topic.",
    },
    ConfigKey {
        path: "producer.sessions",
        kind: ValueKind::Pattern {
            rule: "`aggregate` or `buckets(n)`",
            example: "buckets(256)",
            fits: |text| formats::parse_sessions(text).is_some(),
        },
        default: KeyDefault::Value("aggregate"),
        about: "`aggregate`: one session per aggregate. `buckets(n)`: aggregates share n sessions; for millions of short-lived aggregates. On a running pipeline it may change only with `source.sequence`.",
    },
    ConfigKey {
        path: "producer.checkpoint",
        kind: ValueKind::Pattern {
            rule: "a duration, or `each` for every event",
            example: "200ms",
            fits: |text| formats::parse_checkpoint(text).is_some(),
        },
        default: KeyDefault::Value("200ms"),
        about: "Interval at which the checkpoint is saved; it is also saved every 1,000 events. `each` saves after every event, at a fiftieth of the rate.",
    },
    ConfigKey {
        path: "producer.window.events",
        kind: ValueKind::Count { least: 16, most: 1_000_000 },
        default: KeyDefault::Service(|it| it.publish.window_events.to_string()),
        about: "In events. A larger window keeps a distant Service Bus busy.",
    },
    ConfigKey {
        path: "producer.window.bytes",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 31 },
        default: KeyDefault::Service(|it| format_size(it.publish.window_bytes.get() as u64)),
        about: "In bytes of messages. The limit that is reached first applies.",
    },
    ConfigKey {
        path: "producer.read_ahead.events",
        kind: ValueKind::Count { least: 1, most: 1_000_000 },
        default: KeyDefault::Service(|it| it.capture.read_ahead_events.to_string()),
        about: "In events.",
    },
    ConfigKey {
        path: "producer.read_ahead.bytes",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 31 },
        default: KeyDefault::Service(|it| format_size(it.capture.read_ahead_bytes.get().into())),
        about: "In bytes. The limit that is reached first applies.",
    },
    ConfigKey {
        path: "producer.drain",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.publish.drain)),
        about: "On a stop, how long the leader may take to publish what it has read, before it releases the lease.",
    },
    ConfigKey {
        path: "consumer.max_concurrent_sessions",
        kind: ValueKind::Count { least: 1, most: 10_000 },
        default: KeyDefault::Service(|it| it.session.max_concurrent_sessions.to_string()),
        about: "Sessions that one pod holds at a time. A session is cheap; `bytes_in_flight` bounds the memory of their messages.",
    },
    ConfigKey {
        path: "consumer.on_poison",
        kind: ValueKind::Choice(&["park", "dead_letter"]),
        default: KeyDefault::Value("park"),
        about: "What happens to an event that cannot be applied: `park` parks its aggregate in that read model; `dead_letter` also dead-letters the message.",
    },
    ConfigKey {
        path: "consumer.connections",
        kind: ValueKind::Count { least: 1, most: 64 },
        default: KeyDefault::Service(|it| it.session.connections.to_string()),
        about: "Connections to Service Bus that the sessions share.",
    },
    ConfigKey {
        path: "consumer.transactions",
        kind: ValueKind::Count { least: 1, most: 64 },
        default: KeyDefault::Service(|it| it.view.connections.to_string()),
        about: "MongoDB transactions at a time. Two keep a server with two cores busy.",
    },
    ConfigKey {
        path: "consumer.credit",
        kind: ValueKind::Count { least: 2, most: 100_000 },
        default: KeyDefault::Service(|it| it.session.credit.to_string()),
        about: "Link credit: unsettled messages that one session may hold. Half of them are one batch, so that the next batch arrives meanwhile.",
    },
    ConfigKey {
        path: "consumer.bytes_in_flight",
        kind: ValueKind::Size { least: 1 << 20, most: 1 << 33 },
        default: KeyDefault::Service(|it| format_size(it.session.bytes_in_flight.get() as u64)),
        about: "Bytes of unsettled messages that all sessions of a pod may hold together.",
    },
    ConfigKey {
        path: "consumer.session_idle_timeout",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.session.session_idle_timeout)),
        about: "A session without messages is closed after this time; at once, if other sessions need its slot.",
    },
    ConfigKey {
        path: "consumer.max_session_duration",
        kind: ValueKind::Duration { least: millis(100), most: seconds(3_600) },
        default: KeyDefault::Service(|it| format_duration(it.session.max_session_duration)),
        about: "A session is closed after this time, or after `max_session_events`, so that other sessions get a turn.",
    },
    ConfigKey {
        path: "consumer.max_session_events",
        kind: ValueKind::Count { least: 1, most: 10_000_000 },
        default: KeyDefault::Service(|it| it.session.max_session_events.to_string()),
        about: "See `max_session_duration`.",
    },
    ConfigKey {
        path: "consumer.lock_duration",
        kind: ValueKind::Duration { least: seconds(5), most: seconds(300) },
        default: KeyDefault::Service(|it| format_duration(it.session.lock_duration)),
        about: "Lock duration of the subscription. Locks are renewed at half of it.",
    },
    ConfigKey {
        path: "consumer.gap_timeout",
        kind: ValueKind::Duration { least: millis(0), most: seconds(3_600) },
        default: KeyDefault::Service(|it| format_duration(it.view.gap_timeout)),
        about: "How long the consumer waits for the source to fill a gap before it parks the aggregate.",
    },
    ConfigKey {
        path: "consumer.first_sequence",
        kind: ValueKind::Count { least: 0, most: 1_000_000 },
        default: KeyDefault::Service(|it| it.view.first_sequence.to_string()),
        about: "Sequence number of the first event of an aggregate.",
    },
    ConfigKey {
        path: "consumer.drain",
        kind: ValueKind::Duration { least: millis(0), most: seconds(600) },
        default: KeyDefault::Service(|it| format_duration(it.session.drain_within)),
        about: "On a stop, how long the consumer may take to apply and settle its unsettled messages before it closes its sessions.",
    },
    ConfigKey {
        path: "read_models.uri",
        kind: MONGODB_URI,
        default: KeyDefault::Optional("mongodb://localhost:27017/?replicaSet=rs0"),
        about: "URI of the MongoDB that holds the read models. Default: the source's.",
    },
    ConfigKey {
        path: "read_models.database",
        kind: DATABASE,
        default: KeyDefault::Optional("shop_views"),
        about: "Database of the read models. Default: the source's database name with the suffix `_views`.",
    },
    ConfigKey {
        path: "read_models.on_change",
        kind: ValueKind::Choice(&["rebuild", "wait"]),
        default: KeyDefault::Value("rebuild"),
        about: "When all pods declare other read models than those that serve: `rebuild` builds what is new from the source and switches to it, `wait` leaves that to `headwater read-model rebuild`.",
    },
    ConfigKey {
        path: "read_models.change_delay",
        kind: ValueKind::Duration { least: millis(0), most: seconds(3_600) },
        default: KeyDefault::Value("10s"),
        about: "How long all live pods must declare the same read models before they are changed. A rollout takes longer than a restart.",
    },
    ConfigKey {
        path: READ_MODELS,
        kind: ValueKind::ReadModels,
        default: KeyDefault::Optional(
            "{ when: { OrderPlaced: { $set: { status: placed, customer: $$event.payload.customer } }, OrderCancelled: delete }, indexes: [ { keys: { customer: 1 } } ] }",
        ),
        about: "Every other key is a read model: the name of its collection, and for each event type an update document, an update pipeline or `delete`.",
    },
    ConfigKey {
        path: "audit.enabled",
        kind: ValueKind::Flag,
        default: KeyDefault::Service(|it| it.audit.enabled.to_string()),
        about: "Off: a message that Service Bus loses stays lost, and `status` says `unaudited`.",
    },
    ConfigKey {
        path: "audit.period",
        kind: ValueKind::Duration { least: seconds(1), most: seconds(30 * 86_400) },
        default: KeyDefault::Service(|it| format_duration(it.audit.period)),
        about: "Every aggregate is compared once in this time; `status` is not healthy if one was not. A round starts half of it after the last one ended.",
    },
    ConfigKey {
        path: "audit.budget_percent",
        kind: ValueKind::Count { least: 1, most: 100 },
        default: KeyDefault::Service(|it| it.audit.budget_percent.to_string()),
        about: "Percent of the time in which the audit may read, on the one pod that audits: its load on a core, and on a core of the MongoDB servers.",
    },
    ConfigKey {
        path: "admin.listen",
        kind: ValueKind::Pattern {
            rule: "an address with a port",
            example: "0.0.0.0:8080",
            fits: |text| formats::parse_listen(text).is_some(),
        },
        default: KeyDefault::Optional("127.0.0.1:8080"),
        about: "Address of the HTTP server. Default: 127.0.0.1:8080, or another free port of 127.0.0.1. Everyone who can reach it sees the state of the pipeline, but no event.",
    },
    ConfigKey {
        path: "admin.token",
        kind: ValueKind::Secret { check: formats::check_token },
        default: KeyDefault::Optional("the output of openssl rand -hex 16"),
        about: "Operator token. Requests with it can change things, from the dashboard and over HTTP. Default: no token, and the HTTP server is read-only. The token is sent in clear text unless TLS is used: set `certificate_file` and `key_file`, or use TLS in front of the pod, unless `listen` is a loopback address.",
    },
    ConfigKey {
        path: "admin.certificate_file",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("/etc/headwater/tls/tls.crt"),
        about: "PEM file with the certificate chain of the HTTP server, which then serves only HTTPS; needs `key_file`. Probes and scrapers must use HTTPS too. Both files are read again when they change.",
    },
    ConfigKey {
        path: "admin.key_file",
        kind: ValueKind::Text,
        default: KeyDefault::Optional("/etc/headwater/tls/tls.key"),
        about: "PEM file with the private key of `certificate_file`.",
    },
    ConfigKey {
        path: "admin.hosts",
        kind: ValueKind::Texts,
        default: KeyDefault::Optional("[headwater.example.com]"),
        about: "Host names under which clients reach the HTTP server, for example through a proxy. A server on a loopback address answers only to local names and to these; any other server answers to every name unless this is set.",
    },
    ConfigKey {
        path: "telemetry.otlp_endpoint",
        kind: ValueKind::Pattern {
            rule: OTLP_ENDPOINT,
            example: "http://127.0.0.1:4318",
            fits: |text| formats::parse_endpoint(text).is_some(),
        },
        default: KeyDefault::Optional("http://127.0.0.1:4318"),
        about: "Collector for OTLP over HTTP; `/v1/traces` is appended. Default: `OTEL_EXPORTER_OTLP_ENDPOINT`; without either, nothing is traced. Credentials go into `OTEL_EXPORTER_OTLP_HEADERS`.",
    },
    ConfigKey {
        path: "telemetry.trace_one_in",
        kind: ValueKind::Count { least: 1, most: 1_000_000_000 },
        default: KeyDefault::Value("100"),
        about: "One event in this many is traced, with four spans; 1 traces every event. All pods trace the same events.",
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

/// The path that stands for all keys of the section that are not in the table.
pub(crate) const READ_MODELS: &str = "read_models.*";

/// The example name for the wildcard key.
pub(crate) const EXAMPLE_READ_MODEL: &str = "order_summary";

/// The default of this key, for messages.
pub(crate) fn default_of(path: &str) -> Cow<'static, str> {
    key(path).expect("the table has this key").example()
}

/// The key with this path.
pub(crate) fn key(path: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.path == path)
}

/// The paths of all keys of a section.
pub(crate) fn keys_below(section: &str) -> impl Iterator<Item = &'static str> {
    KEYS.iter()
        .map(|key| key.path)
        .filter(move |path| path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

/// The path of a name in a section; an empty section means the top level.
pub(crate) fn join_path(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// The description of a section.
pub(crate) fn describe_section(path: &str) -> &'static str {
    SECTIONS.iter().find(|(section, _)| *section == path).map_or("", |(_, about)| about)
}

/// Whether the table has keys below this path.
pub(crate) fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The wildcard key of a section, if the section accepts any name.
pub(crate) fn wildcard_key(section: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.path.strip_suffix(".*") == Some(section))
}

/// The names directly below this path (empty: the top level), in the order of the table.
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
