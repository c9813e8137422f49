//! How an event is written on a message, and read from it again: names of properties, format, body.
//!
//! Written by [`crate::publish`], read by [`crate::session`]. Everything a consumer needs besides the body is in the properties, so that a
//! message whose body is elsewhere, or cannot be read, can still be put in its place in the order.

/// Kept in every message; a higher one was written by a version that knows more.
pub const FORMAT: i32 = 1;

/// Names of application properties.
pub mod property {
    /// [`super::FORMAT`].
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
    pub const EPOCH: &str = "headwater-epoch";
    /// The aggregate's own count, where it has one.
    pub const SEQUENCE: &str = "headwater-sequence";
    /// The term it was published in.
    pub const TERM: &str = "headwater-term";
    /// When it was committed, in milliseconds since 1970.
    pub const COMMITTED: &str = "headwater-committed";
    /// The body is in `oversize_events` under this id.
    pub const OVERSIZE: &str = "headwater-oversize";
    /// There is no body: the event was refused by the bus and is in `rejected_events` under this id. Consumers park on it.
    pub const MARKER: &str = "headwater-rejected";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    pub const CLOUD_EVENTS_VERSION: &str = "cloudEvents:specversion";
    pub const CLOUD_EVENTS_ID: &str = "cloudEvents:id";
    pub const CLOUD_EVENTS_SOURCE: &str = "cloudEvents:source";
    pub const CLOUD_EVENTS_TYPE: &str = "cloudEvents:type";
}

/// Content types of the body.
pub mod content_type {
    pub const BSON: &str = "application/bson";
    /// Relaxed Extended JSON.
    pub const JSON: &str = "application/json";
}
