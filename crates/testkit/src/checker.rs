//! The ledger of what was written, and the judge of what came out.
//!
//! A writer enters every write before it sends it ([`Checker::intend`]) and again when it was acknowledged. Whoever reads the other end
//! ([`Checker::observe`]) enters what came, in the order it came. [`Checker::judge`] then holds one against the other: per aggregate,
//! everything acknowledged is there, once, in order, and nothing else is. A write whose acknowledgement never came may be there or not; if it is,
//! then once and in order.
//!
//! Knows nothing of MongoDB or of a bus: a read model that lists what was applied to it is judged like a subscription. Beside it,
//! [`FenceBook`] judges who saved the checkpoint.

mod book;
mod fence;
mod judge;
mod verdict;

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use mongodb::bson::oid::ObjectId;

use book::Book;
pub use fence::{Breach, FenceBook, Holder};
pub use verdict::{Finding, Kind, Verdict};

/// One thing that came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting<'a> {
    pub aggregate: &'a str,
    pub sequence: i64,
    /// Which event it says it is; `None` where only the sequence can be seen.
    pub event: Option<ObjectId>,
    /// The term it was published in.
    pub term: Option<u64>,
    /// What tells two copies from one copy delivered twice: the bus's own number of the stored message. `None`: each sighting is one of its own.
    pub slot: Option<i64>,
}

/// What two copies of one event are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// A fault.
    Refused,
    /// Counted, by the term they were published in: a topic without duplicate detection, where a takeover sends again what was in flight.
    Counted,
}

/// How far things are; for progress, and to know when to stop waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub intended: u64,
    pub acknowledged: u64,
    /// Acknowledged and not seen yet.
    pub outstanding: u64,
    /// Seen, copies included.
    pub seen: u64,
    /// Deliveries of what had been delivered before.
    pub redelivered: u64,
}

/// Shared by writers, readers and the one who judges.
#[derive(Debug, Default)]
pub struct Checker {
    book: Mutex<Book>,
}

impl Checker {
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters the aggregate's next write, to be sent now; returns its sequence, from 1.
    pub fn intend(&self, aggregate: &str, event: ObjectId) -> i64 {
        self.book().intend(aggregate, event)
    }

    /// The write was acknowledged, or found to be there for good.
    ///
    /// # Panics
    /// When it was never intended.
    pub fn acknowledge(&self, aggregate: &str, sequence: i64) {
        self.book().acknowledge(aggregate, sequence);
    }

    /// Enters what came out; per aggregate in the order in which it came.
    pub fn observe(&self, sighting: &Sighting<'_>) {
        self.book().observe(sighting);
    }

    pub fn tally(&self) -> Tally {
        self.book().tally()
    }

    /// When something published in this term was first seen.
    pub fn first_of(&self, term: u64) -> Option<Instant> {
        self.book().first_of(term)
    }

    /// The same writes, and nothing seen: to judge another end of theirs.
    #[must_use]
    pub fn afresh(&self) -> Self {
        Self { book: Mutex::new(self.book().afresh()) }
    }

    /// Acknowledged and not seen yet.
    pub fn outstanding(&self) -> u64 {
        self.tally().outstanding
    }

    pub fn judge(&self, duplicates: Duplicates) -> Verdict {
        judge::judge(&self.book(), duplicates)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no one panics while holding the book")
    }
}
