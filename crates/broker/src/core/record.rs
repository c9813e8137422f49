//! The journal's records: one per state change, plus the compact records of snapshots.
//!
//! Every record states absolute values and can be replayed over state that already contains it (see
//! [`crate::journal`]). Records name sessions by id and messages by counter, never by their position in memory.
//!
//! Encoding: a kind byte, then the fields in order. Integers are little-endian base-128; strings and lists start with
//! their length. A kind is never reused. New fields are only added at the end of a kind, and read as absent from older
//! records.

use std::sync::Arc;

use bytes::Bytes;

use super::duplicate_history::Fingerprint;
use super::id::{EntityId, QueueId, SequenceNumber, Timestamp};
use super::property_overrides::PropertyOverrides;
use crate::journal::JournalLocation;

mod codec;
mod read;
mod write;

pub use read::MalformedRecord;

/// The session id in a record; `None` in entities without sessions.
pub(super) type SessionRef<'a> = Option<&'a str>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum JournalRecord<'a> {
    Entity(EntityRecord<'a>),
    EntityDeleted {
        id: EntityId,
    },
    /// A message was enqueued. Has no body if no queue takes the message (a topic without subscriptions).
    EnqueuedRecord(EnqueuedRecord<'a>),
    /// A scheduled message became active, under a new sequence number.
    ActivatedRecord(ActivatedRecord<'a>),
    /// Scheduled messages were cancelled.
    Cancelled {
        entity: EntityId,
        counters: Vec<u64>,
    },
    /// Messages were removed: completed, received-and-deleted, expired or deleted.
    Settled {
        queue: QueueId,
        session: SessionRef<'a>,
        counters: Vec<u64>,
    },
    /// A message moved to its dead-letter queue.
    DeadLettered(DeadLetteredRecord<'a>),
    /// A message moved to the entity that its queue forwards to, or to the transfer dead-letter queue.
    Forwarded(ForwardedRecord<'a>),
    /// The new delivery count, deferral and overrides of a message.
    MessageUpdated(MessageUpdatedRecord<'a>),
    /// The new state of a session: this record's body, or none.
    SessionStateRecord(SessionStateRecord<'a>),
    /// A body was copied so that its old segment can be deleted. `original` is the meta it was first stored with.
    BodyMoved(BodyMovedRecord<'a>),
    /// A rule of a subscription was added or replaced.
    Rule(RuleRecord<'a>),
    /// A rule was removed. A subscription starts with the default rule, so its removal is recorded too.
    RuleRemoved {
        subscription: EntityId,
        name: &'a str,
    },
    /// Snapshot: messages of one session, in order.
    Backlog(BacklogRecord<'a>),
    /// Snapshot: a scheduled message.
    Scheduled(ScheduledRecord<'a>),
    /// Snapshot: ids of a duplicate history.
    DuplicateIds {
        entity: EntityId,
        ids: Vec<(Fingerprint, Timestamp)>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct EntityRecord<'a> {
    pub(super) id: EntityId,
    pub(super) topic: Option<EntityId>,
    pub(super) path: &'a str,
    /// JSON.
    pub(super) description: &'a [u8],
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// Counters assigned so far. The snapshot stores them because the records that used them may be gone.
    pub(super) counter: u64,
    pub(super) dead_letter_counter: u64,
    pub(super) transfer_dead_letter_counter: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RuleRecord<'a> {
    pub(super) subscription: EntityId,
    pub(super) created_at: Timestamp,
    /// JSON.
    pub(super) description: &'a [u8],
}

/// A queue that gets a message, and the counter there if it differs from the message's own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EnqueueTarget {
    pub(super) queue: QueueId,
    pub(super) counter: Option<u64>,
    /// In milliseconds, if the subscription's limit is below the message's own.
    pub(super) time_to_live: Option<u64>,
    pub(super) overrides: Option<Arc<PropertyOverrides>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct EnqueuedRecord<'a> {
    /// The queue or topic the message was sent to.
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    pub(super) enqueued_at: Timestamp,
    /// In milliseconds; the lower of the message's own and the entity's.
    pub(super) time_to_live: Option<u64>,
    /// Set for a scheduled message, which has no targets yet.
    pub(super) due_at: Option<Timestamp>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) session: SessionRef<'a>,
    pub(super) targets: Vec<EnqueueTarget>,
    /// How often the message was forwarded before.
    pub(super) hops: u8,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ActivatedRecord<'a> {
    pub(super) entity: EntityId,
    pub(super) scheduled_counter: u64,
    pub(super) sequence: SequenceNumber,
    pub(super) at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: SessionRef<'a>,
    pub(super) location: JournalLocation,
    pub(super) targets: Vec<EnqueueTarget>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ForwardedRecord<'a> {
    /// Where the message was, and its counter there.
    pub(super) from: QueueId,
    pub(super) counter: u64,
    /// The queue or topic that gets it; `None` if it moves to the transfer dead-letter queue.
    pub(super) entity: Option<EntityId>,
    pub(super) sequence: SequenceNumber,
    pub(super) at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) session: SessionRef<'a>,
    pub(super) location: JournalLocation,
    pub(super) hops: u8,
    /// All queues that get it.
    pub(super) targets: Vec<EnqueueTarget>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeadLetteredRecord<'a> {
    pub(super) queue: QueueId,
    pub(super) session: SessionRef<'a>,
    pub(super) sequence: SequenceNumber,
    /// Its counter in the dead-letter queue.
    pub(super) counter: u64,
    pub(super) delivery_count: u16,
    pub(super) location: JournalLocation,
    pub(super) overrides: Arc<PropertyOverrides>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct MessageUpdatedRecord<'a> {
    pub(super) queue: QueueId,
    pub(super) session: SessionRef<'a>,
    pub(super) counter: u64,
    pub(super) delivery_count: u16,
    pub(super) deferred: bool,
    pub(super) overrides: Option<Arc<PropertyOverrides>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct SessionStateRecord<'a> {
    pub(super) queue: QueueId,
    pub(super) session: &'a str,
    pub(super) at: Timestamp,
    pub(super) state: SessionStateLocation,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SessionStateLocation {
    Cleared,
    /// In this record's body.
    Body,
    /// Snapshot: at an existing location.
    At(JournalLocation),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct BodyMovedRecord<'a> {
    pub(super) from: JournalLocation,
    pub(super) owners: Vec<BodyOwner<'a>>,
    pub(super) original: &'a [u8],
}

/// An object that refers to a body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum BodyOwner<'a> {
    Message { queue: QueueId, session: SessionRef<'a>, counter: u64 },
    State { queue: QueueId, session: &'a str },
    Scheduled { entity: EntityId, counter: u64 },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct BacklogRecord<'a> {
    pub(super) queue: QueueId,
    pub(super) session: SessionRef<'a>,
    pub(super) messages: Vec<BacklogEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BacklogEntry {
    pub(super) counter: u64,
    pub(super) location: JournalLocation,
    pub(super) expires: u32,
    pub(super) delivery_count: u16,
    pub(super) flags: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScheduledRecord<'a> {
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    pub(super) due_at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: SessionRef<'a>,
    pub(super) location: JournalLocation,
}

/// What the broker stored about a message besides its body; needed to build the delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEnvelope {
    /// When it became receivable: when it was enqueued or, if scheduled, when it was due.
    pub enqueued_at: Timestamp,
    /// The sequence number it was first stored with. Scheduling and dead-lettering assign new ones later.
    pub sequence: SequenceNumber,
    /// In milliseconds; the lower of the message's own and the entity's.
    pub time_to_live: Option<u64>,
    pub due_at: Option<Timestamp>,
    pub session: Option<Box<str>>,
}

impl StoredEnvelope {
    /// Decodes the `meta` that [`crate::journal::Journal::read`] returns with the body.
    pub fn decode(meta: &Bytes) -> Result<Self, MalformedRecord> {
        match JournalRecord::decode(meta)? {
            JournalRecord::EnqueuedRecord(record) => Ok(Self {
                enqueued_at: record.due_at.map_or(record.enqueued_at, |due| due.max(record.enqueued_at)),
                sequence: record.sequence,
                time_to_live: record.time_to_live,
                due_at: record.due_at,
                session: record.session.map(Into::into),
            }),
            JournalRecord::BodyMoved(moved) => Self::decode(&Bytes::copy_from_slice(moved.original)),
            _ => Err(MalformedRecord("not a message")),
        }
    }
}

#[cfg(test)]
mod tests;
