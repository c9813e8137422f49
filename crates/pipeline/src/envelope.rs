//! How an event is written on a message, and read from it again: names of properties, format, body.
//!
//! Written by [`crate::publish`], read by [`crate::session`]. Everything a consumer needs besides the body is in the properties, so that a
//! message whose body is elsewhere, or cannot be read, can still be put in its place in the order.

/// Kept in every message; a higher one was written by a version that knows more.
pub const FORMAT: i32 = 1;

/// Names of application properties.
pub mod property {
    /// [`super::FORMAT`]: an int.
    pub const FORMAT: &str = "headwater-format";
    /// [`crate::event::Operation::as_str`].
    pub const OPERATION: &str = "headwater-operation";
    /// `database.collection`, as text.
    pub const NAMESPACE: &str = "headwater-namespace";
    /// The typed aggregate id: binary, a BSON document `{v: id}`.
    pub const AGGREGATE: &str = "headwater-aggregate";
    /// The source document's `_id`, written like the aggregate; absent when both are the same.
    pub const KEY: &str = "headwater-key";
    /// The resume token's key string: with the epoch, the position.
    pub const TOKEN: &str = "headwater-token";
    /// A long.
    pub const EPOCH: &str = "headwater-epoch";
    /// The aggregate's own count, where it has one: a long.
    pub const SEQUENCE: &str = "headwater-sequence";
    /// The term it was published in: a long, and all in which the messages of two leaders for one event differ.
    pub const TERM: &str = "headwater-term";
    /// When it was committed: an AMQP timestamp, in milliseconds since 1970, by the clock of the server that took it. To the second where
    /// that server is older than 6.0; absent on what a snapshot read.
    pub const COMMITTED: &str = "headwater-committed";
    /// The body is in `oversize_events` under this id: [`crate::publish::Oversize::read`]. The content type is that of the body there.
    pub const OVERSIZE: &str = "headwater-oversize";
    /// The body is empty: the event was refused by the bus and is in `rejected_events` under this id. Consumers park on it. Subject, content
    /// type and CloudEvents type are absent.
    pub const MARKER: &str = "headwater-rejected";
    /// W3C trace context, made of the message id: one trace for each event, whoever publishes it. Sampled where the event is traced.
    pub const TRACEPARENT: &str = "traceparent";
    /// The same under the name that Azure's own SDKs look for; only on the message of an event that is traced.
    pub const DIAGNOSTIC_ID: &str = "Diagnostic-Id";
    pub const CLOUD_EVENTS_VERSION: &str = "cloudEvents:specversion";
    /// The message id.
    pub const CLOUD_EVENTS_ID: &str = "cloudEvents:id";
    /// `mongodb:database.collection`.
    pub const CLOUD_EVENTS_SOURCE: &str = "cloudEvents:source";
    /// The event's type; the operation where it has none.
    pub const CLOUD_EVENTS_TYPE: &str = "cloudEvents:type";
}

/// Content types of the body.
pub mod content_type {
    pub const BSON: &str = "application/bson";
    /// Relaxed Extended JSON.
    pub const JSON: &str = "application/json";
}
