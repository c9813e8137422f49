//! What the core writes down: one record for each thing that happened, and the compact forms a snapshot uses.
//!
//! Every record states absolute facts and may be replayed over a state that already reflects it (see [`crate::journal`]).
//! Records name sessions by id and messages by counter, so they hold whatever slots and chunks memory happens to use.
//!
//! The bytes: a kind, then fields in order; integers as little-endian base-128, texts and lists with their length before
//! them. A kind is never reused, and fields are only added at the end of a kind, where an older record reads as absent.

use std::sync::Arc;

use bytes::Bytes;

use super::duplicate_history::Fingerprint;
use super::id::{EntityId, QueueId, SequenceNumber, Timestamp};
use super::message_overrides::MessageOverrides;
use crate::journal::Location;

mod codec;
mod read;
mod write;

pub use read::MalformedRecord;

/// A message's session on its way into or out of a record; `None` in entities without sessions.
pub(super) type SessionRef<'a> = Option<&'a str>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum JournalRecord<'a> {
    Entity(EntityRecord<'a>),
    EntityDeleted {
        id: EntityId,
    },
    /// A message came in. Has a body, unless nothing keeps the message (a topic without subscriptions).
    Enqueued(Enqueued<'a>),
    /// A scheduled message came due and is now like any other, under a new number.
    Activated(Activated<'a>),
    /// Scheduled messages were called off.
    Cancelled {
        entity: EntityId,
        counters: Vec<u64>,
    },
    /// Messages left: completed, received-and-deleted, expired or deleted.
    Settled {
        queue: QueueId,
        session: SessionRef<'a>,
        counters: Vec<u64>,
    },
    /// A message moved to the dead-letter queue beside its own.
    DeadLettered(DeadLettered<'a>),
    /// A message's delivery count, deferral and alterations are now these.
    MessageUpdated(MessageUpdated<'a>),
    /// A session's state is now this record's body, or none.
    SessionStateRecord(SessionStateRecord<'a>),
    /// A body was copied so that its old segment can go. `original` is the meta it was first stored with.
    BodyMoved(BodyMoved<'a>),
    /// Snapshot: messages of one session, in order.
    Backlog(BacklogRecord<'a>),
    /// Snapshot: a scheduled message.
    Scheduled(ScheduledRecord<'a>),
    /// Snapshot: ids of the duplicate history.
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
    /// Counters given out so far, also in the dead-letter queue: after a snapshot no record may be left that shows them.
    pub(super) counter: u64,
    pub(super) dead_letter_counter: u64,
}

/// One queue that takes a message, and under which counter if not the message's own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EnqueueTarget {
    pub(super) queue: QueueId,
    pub(super) counter: Option<u64>,
    /// Milliseconds, if this subscription allows less than the message's own.
    pub(super) time_to_live: Option<u64>,
    pub(super) overrides: Option<Arc<MessageOverrides>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Enqueued<'a> {
    /// The queue or topic it was sent to.
    pub(super) entity: EntityId,
    pub(super) sequence: SequenceNumber,
    pub(super) enqueued_at: Timestamp,
    /// Milliseconds; the lesser of the message's own and the entity's.
    pub(super) time_to_live: Option<u64>,
    /// Set: the message is scheduled, and has no targets yet.
    pub(super) due_at: Option<Timestamp>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) session: SessionRef<'a>,
    pub(super) targets: Vec<EnqueueTarget>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Activated<'a> {
    pub(super) entity: EntityId,
    pub(super) scheduled_counter: u64,
    pub(super) sequence: SequenceNumber,
    pub(super) at: Timestamp,
    pub(super) time_to_live: Option<u64>,
    pub(super) session: SessionRef<'a>,
    pub(super) location: Location,
    pub(super) targets: Vec<EnqueueTarget>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeadLettered<'a> {
    pub(super) queue: QueueId,
    pub(super) session: SessionRef<'a>,
    pub(super) sequence: SequenceNumber,
    /// Its counter in the dead-letter queue.
    pub(super) counter: u64,
    pub(super) delivery_count: u16,
    pub(super) location: Location,
    pub(super) overrides: Arc<MessageOverrides>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct MessageUpdated<'a> {
    pub(super) queue: QueueId,
    pub(super) session: SessionRef<'a>,
    pub(super) counter: u64,
    pub(super) delivery_count: u16,
    pub(super) deferred: bool,
    pub(super) overrides: Option<Arc<MessageOverrides>>,
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
    /// In this record's own body.
    Body,
    /// Snapshot: where it lies already.
    At(Location),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct BodyMoved<'a> {
    pub(super) from: Location,
    pub(super) owners: Vec<BodyOwner<'a>>,
    pub(super) original: &'a [u8],
}

/// One thing that refers to a body.
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
    pub(super) location: Location,
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
    pub(super) location: Location,
}

/// What the broker noted about a stored message, for whoever writes it to the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEnvelope {
    /// When it became receivable: when it came in or, if scheduled, when it was due.
    pub enqueued_at: Timestamp,
    /// The number it was first stored under. Differs from the delivered one after scheduling or dead-lettering.
    pub sequence: SequenceNumber,
    /// Milliseconds; the lesser of the message's own and the entity's.
    pub time_to_live: Option<u64>,
    pub due_at: Option<Timestamp>,
    pub session: Option<Box<str>>,
}

impl StoredEnvelope {
    /// From the `meta` that [`crate::journal::Journal::read`] returns beside the body.
    pub fn decode(meta: &Bytes) -> Result<Self, MalformedRecord> {
        match JournalRecord::decode(meta)? {
            JournalRecord::Enqueued(record) => Ok(Self {
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
