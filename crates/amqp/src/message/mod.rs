//! Messages: a view over received bytes, and a writer for new ones.
//!
//! A received message is not decoded as a whole: [`Message`] finds its sections in one pass and decodes only what is
//! needed; [`MessageWriter`] writes a new header and new annotations before stored bytes without copying them.

mod batch;
mod header;
mod properties;
mod view;
mod writer;

pub use batch::{BatchBuilder, BatchFull};
pub use header::Header;
pub use properties::{MessageId, Properties};
pub use view::{BodyKind, DataSections, Message};
pub use writer::MessageWriter;

/// Message format of one plain message.
pub const FORMAT: u32 = 0;

/// Message format of a Service Bus batch: each data section is one complete encoded message.
pub const BATCH_FORMAT: u32 = 0x8001_3700;

/// Names of the annotations that Service Bus gives a meaning.
pub mod annotation {
    pub const SEQUENCE_NUMBER: &str = "x-opt-sequence-number";
    pub const ENQUEUED_TIME: &str = "x-opt-enqueued-time";
    pub const LOCKED_UNTIL: &str = "x-opt-locked-until";
    pub const ENQUEUE_SEQUENCE_NUMBER: &str = "x-opt-enqueue-sequence-number";
    pub const PARTITION_KEY: &str = "x-opt-partition-key";
    pub const VIA_PARTITION_KEY: &str = "x-opt-via-partition-key";
    pub const PARTITION_ID: &str = "x-opt-partition-id";
    pub const SCHEDULED_ENQUEUE_TIME: &str = "x-opt-scheduled-enqueue-time";
    pub const DEAD_LETTER_SOURCE: &str = "x-opt-deadletter-source";
    pub const MESSAGE_STATE: &str = "x-opt-message-state";
    /// A delivery annotation.
    pub const LOCK_TOKEN: &str = "x-opt-lock-token";
}

pub(crate) mod section {
    pub(crate) const HEADER: u64 = 0x70;
    pub(crate) const DELIVERY_ANNOTATIONS: u64 = 0x71;
    pub(crate) const MESSAGE_ANNOTATIONS: u64 = 0x72;
    pub(crate) const PROPERTIES: u64 = 0x73;
    pub(crate) const APPLICATION_PROPERTIES: u64 = 0x74;
    pub(crate) const DATA: u64 = 0x75;
    pub(crate) const SEQUENCE: u64 = 0x76;
    pub(crate) const VALUE: u64 = 0x77;
    pub(crate) const FOOTER: u64 = 0x78;
    /// Every section that AMQP defines.
    pub(crate) const ALL: std::ops::RangeInclusive<u64> = HEADER..=FOOTER;
}
