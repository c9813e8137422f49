//! The interface between the broker's [core](crate::core) and its storage.
//!
//! The core decides in memory and *appends* its decisions; it never waits. The store makes appended bytes durable on
//! its own schedule (group commit) and reports its progress. The engine holds every reply and delivery until the
//! position it depends on is durable. So this trait has no sync, and the core never needs one.
//!
//! # What is appended
//! A [`JournalEntry`] is a small `meta` (a record encoded by the core, opaque to the store) and, for a message or a
//! session state, a `body` (bytes as received, opaque to both). They are stored apart so that recovery reads every meta
//! without reading a body. One call of [`Journal::append`] is one **group**: after a crash either all of its entries
//! exist or none. A batch send is one group.
//!
//! # What the store does for the core
//! | when | store | core |
//! | --- | --- | --- |
//! | running | [`append`](Journal::append), [`read`](Journal::read), [`retain`](Journal::retain), [`release`](Journal::release) | calls them from the engine thread |
//! | snapshot | remembers the position `from` where it began; writes the records to a file | `Core::write_snapshot(&mut cursor, budget, sink)` in small steps, with other calls in between |
//! | start | passes the newest complete snapshot's records, then every entry from its `from` on, in order | `Core::replay(meta, body_location)`, then `Core::finish_recovery(now)` |
//! | start, after replay | counts references from 0 | `Core::visit_bodies(\|location\| …)`: one call per reference |
//! | compaction | selects segments that are mostly dead | `Core::compact(…)` in small steps: appends live bodies again, releases the old locations |
//!
//! # When a segment may be deleted
//! The store counts the references to the bodies in each segment. [`JournalEntry::references`] and [`Journal::retain`]
//! add references, [`Journal::release`] removes one. A segment may be deleted when all of these hold:
//! 1. its count is 0;
//! 2. the release that made it 0 is durable: the journal is synced up to the [`position`](Journal::position) at that
//!    call. Otherwise a crash would restore a message without its body;
//! 3. a complete snapshot began at or after the segment's end. Otherwise its records without bodies are still needed.
//!
//! # Why a snapshot needs no pause
//! Every record states absolute values ("delivery count is 3", never "one more"), and replaying a record twice changes
//! nothing. A snapshot written in steps may mix old and new state; replaying everything appended since it began gives
//! the correct state.
//!
//! # When the disk is full
//! After [`AppendError::Full`] or [`AppendError::Io`] neither the journal nor the core has changed. A store should
//! refuse entries with bodies while it still has room for small ones: settlements free space.

use std::io;

use bytes::Bytes;

mod memory;

pub use memory::{MemoryEntry, MemoryJournal, VolatileJournal};

/// The location of a body and its meta. Twelve bytes, because millions of them are in memory.
///
/// Opaque to the core, except `segment` (see `Core::compact`) and `len` (which counts towards the entity's size quota).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalLocation {
    pub segment: u32,
    pub offset: u32,
    /// Length of the body in bytes.
    pub len: u32,
}

/// A position in the journal (log sequence number). Only rises; its unit is up to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lsn(pub u64);

/// One record to append.
#[derive(Debug, Clone, Copy)]
pub struct JournalEntry<'a> {
    /// The encoded record. Tens of bytes, except entity descriptions and dead-letter descriptions.
    pub meta: &'a [u8],
    pub body: Option<&'a [u8]>,
    /// Initial references to the body: one per subscription that gets the message. 0 without a body.
    pub references: u32,
}

/// An entry as [`Journal::read`] returns it, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadJournalEntry {
    pub meta: Bytes,
    pub body: Bytes,
}

/// The core's storage. One thread uses it; no call waits for a sync.
pub trait Journal {
    /// Appends a group, all or nothing, and pushes the location of each body to `locations`, in order.
    ///
    /// Returns at once. The group is durable when the journal is synced up to the [`position`](Self::position) after
    /// the call.
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<JournalLocation>) -> Result<(), AppendError>;

    /// Reads an entry that has a body, synced or not.
    fn read(&self, location: JournalLocation) -> Result<ReadJournalEntry, ReadError>;

    /// Whether the body would survive a crash. `false` if the store cannot tell.
    fn is_durable(&self, location: JournalLocation) -> bool {
        let _ = location;
        false
    }

    /// Adds references to a body that has at least one: an activated message needs one per subscription.
    fn retain(&mut self, location: JournalLocation, more: u32);

    /// Removes one reference to the body at `location`.
    fn release(&mut self, location: JournalLocation);

    /// The end of the last appended group.
    fn position(&self) -> Lsn;
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the store is full")]
    Full,
    #[error("failed to append to the store")]
    Io(#[source] io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("no body at segment {} offset {}", .0.segment, .0.offset)]
    Missing(JournalLocation),
    #[error("body at segment {} offset {} fails its checksum", .0.segment, .0.offset)]
    Corrupt(JournalLocation),
    #[error("failed to read from the store")]
    Io(#[source] io::Error),
}
