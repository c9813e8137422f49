//! The message format: property names, format version and content types.
//!
//! Written by [`crate::publish`], read by [`crate::session`]. The properties hold everything except the body, so a consumer can order a message
//! whose body is stored elsewhere or is unreadable.

/// Format version in every message. A newer version of Headwater may write a higher one.
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
    /// The key of the resume token. Token and epoch are the position.
    pub const TOKEN: &str = "headwater-token";
    /// A long.
    pub const EPOCH: &str = "headwater-epoch";
    /// The sequence within the aggregate, if the source has one: a long.
    pub const SEQUENCE: &str = "headwater-sequence";
    /// The term of the publisher: a long. The only difference between the messages of two leaders for one event.
    pub const TERM: &str = "headwater-term";
    /// The commit time: an AMQP timestamp by the clock of the MongoDB server. To the second before MongoDB 6.0; absent on snapshot
    /// events.
    pub const COMMITTED: &str = "headwater-committed";
    /// The body is in `oversize_events` under this id: [`crate::stored::ClaimCheckStore::read`]. The content type is that of the body there.
    pub const OVERSIZE: &str = "headwater-oversize";
    /// The SHA-256 of the body there: binary. Only on signed messages, whose signature covers it.
    pub const OVERSIZE_HASH: &str = "headwater-oversize-hash";
    /// The body is empty: Service Bus refused the event, which is in `rejected_events` under this id. Consumers park the aggregate. Subject,
    /// content type and CloudEvents type are absent.
    pub const MARKER: &str = "headwater-rejected";
    /// `key id:base64`, if messages are signed: see [`crate::signing`].
    pub const SIGNATURE: &str = "headwater-signature";
    /// W3C trace context derived from the message id: one trace per event, whichever pod publishes it.
    pub const TRACEPARENT: &str = "traceparent";
    /// The same under the name that Azure SDKs read; only on sampled events.
    pub const DIAGNOSTIC_ID: &str = "Diagnostic-Id";
    pub const CLOUD_EVENTS_VERSION: &str = "cloudEvents:specversion";
    /// The message id.
    pub const CLOUD_EVENTS_ID: &str = "cloudEvents:id";
    /// `mongodb:database.collection`.
    pub const CLOUD_EVENTS_SOURCE: &str = "cloudEvents:source";
    /// The event type, or the operation if there is none.
    pub const CLOUD_EVENTS_TYPE: &str = "cloudEvents:type";
}

/// Content types of the body.
pub mod content_type {
    pub const BSON: &str = "application/bson";
    /// Relaxed Extended JSON.
    pub const JSON: &str = "application/json";
}
