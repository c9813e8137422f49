//! The seam between the broker's [core](crate::core) and whatever keeps its memory (the store).
//!
//! The core decides in memory and *appends* what it decided; it never waits. The store makes appended bytes durable on its
//! own schedule (group commit) and says how far it has come. The shell holds back every reply and every delivery until the
//! position it depends on is durable. So this trait never syncs, and the core never asks for it.
//!
//! # What is appended
//! An [`JournalEntry`] is a small `meta` (a record, encoded by the core; opaque to the store) and, for a message or a
//! session state, a `body` (the bytes as received; opaque to both). `meta` and `body` are kept apart so that recovery can
//! read every meta without reading one body. One call of [`Journal::append`] is one **group**: after a crash either all of
//! its entries are there or none (a batch send is one group; so will be a transaction).
//!
//! # What the store does for the core
//! | moment | store | core |
//! | --- | --- | --- |
//! | running | [`append`](Journal::append), [`read`](Journal::read), [`retain`](Journal::retain), [`release`](Journal::release) | calls them, from the one engine thread |
//! | snapshot | remembers the position `from` where it began; writes the records it is handed to a file | `Core::snapshot(&mut cursor, budget, sink)` in small steps, commands served in between |
//! | start | feeds the newest complete snapshot's records, then every entry at or after its `from`, in order | `Core::replay(meta, body_location)`, then `Core::recovered(now)` |
//! | start, after replay | zeroes its counters, then counts | `Core::visit_bodies(\|location\| …)`: one call for each reference |
//! | cleaning | picks segments that are mostly dead | `Core::evacuate(…)` in small steps: appends live bodies again, releases the old places |
//!
//! # When a segment may go
//! The store keeps one number per segment: references to bodies in it. [`JournalEntry::references`] and [`Journal::retain`] add,
//! [`Journal::release`] subtracts one. A segment may be deleted when all of these hold:
//! 1. its number is 0;
//! 2. the release that made it 0 is durable: the journal is synced up to the [`position`](Journal::position) at that call
//!    (else a crash brings back a message whose bytes are gone);
//! 3. a complete snapshot began at or after the segment's end (else its small records, which no number counts, are still needed).
//!
//! # Why snapshots may be taken while the state changes
//! Every record states absolute facts ("delivery count is 3", never "one more") and replaying a record that is already
//! reflected changes nothing. A snapshot taken in steps between `from` and its end may therefore hold a mixture of old and
//! new; replaying everything since `from` over it gives the true state. Nothing else is promised about its contents.
//!
//! # When there is no room
//! [`AppendError::Full`] and [`AppendError::Io`] leave the journal as it was, and the core then leaves its state as it was.
//! A store should refuse entries with bodies while it still has room for small ones: settlements are what makes room.

use std::io;

use bytes::Bytes;

mod memory;

pub use memory::{MemoryJournal, VolatileJournal};

/// Where a body (with its meta) lies. Twelve bytes, because five million of them are held in memory.
///
/// Opaque to the core, but for `segment` (see `Core::evacuate`) and `len` (which feeds the entity's size quota).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    pub segment: u32,
    pub offset: u32,
    /// Length of the body in bytes.
    pub len: u32,
}

/// A position in the journal. Only rises; what it counts is the store's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lsn(pub u64);

/// One record on its way into the journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalEntry<'a> {
    /// The encoded record. Tens of bytes, save for entity descriptions and dead-letter texts.
    pub meta: &'a [u8],
    pub body: Option<&'a [u8]>,
    /// How many references to the body the core begins with: one for each subscription that takes a message. 0 without a body.
    pub references: u32,
}

/// What [`Journal::read`] brings back: both halves of an entry, as appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    pub meta: Bytes,
    pub body: Bytes,
}

/// The core's memory. One thread uses it; no call blocks on a sync.
pub trait Journal {
    /// Appends a group, whole or not at all, and pushes the location of each body, in order, to `locations`.
    ///
    /// Returns at once; the group is durable when the journal is synced up to the [`position`](Self::position) after the call.
    fn append(&mut self, group: &[JournalEntry<'_>], locations: &mut Vec<Location>) -> Result<(), AppendError>;

    /// Reads an entry that has a body, synced or not.
    fn read(&self, location: Location) -> Result<StoredEntry, ReadError>;

    /// Whether a crash would leave the body where it is. A store that cannot tell says no.
    fn is_durable(&self, location: Location) -> bool {
        let _ = location;
        false
    }

    /// More references to a body that has at least one: a scheduled message that is due becomes one for each subscription.
    fn retain(&mut self, location: Location, more: u32);

    /// One reference to the body at `location` is gone.
    fn release(&mut self, location: Location);

    /// The end of the last appended group.
    fn position(&self) -> Lsn;
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the store has no room for the group")]
    Full,
    #[error("append to the store")]
    Io(#[source] io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("no body at segment {} offset {}", .0.segment, .0.offset)]
    Missing(Location),
    #[error("body at segment {} offset {} fails its checksum", .0.segment, .0.offset)]
    Corrupt(Location),
    #[error("read from the store")]
    Io(#[source] io::Error),
}
