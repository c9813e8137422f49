//! Records what was written and what was observed, and checks one against the other.
//!
//! A writer records every write before it sends it ([`Checker::record_intent`]) and again after the acknowledgement. A reader at the
//! other end records every event in the order of arrival ([`Checker::record_observed`]). [`Checker::check`] compares the two per
//! aggregate: every acknowledged write is observed exactly once and in order, and nothing else is observed. A write without an
//! acknowledgement is in doubt: it may be observed or not; if it is, exactly once and in order. Where the writer recorded a digest of the
//! body ([`Checker::record_body`]) and the reader sees one, they must be equal.
//!
//! Independent of MongoDB and Service Bus: a read model that lists the events applied to it is checked like a subscription.
//! [`FencingHistory`] checks who saved the checkpoint.

mod check;
mod fencing;
mod history;
mod report;

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use mongodb::bson::oid::ObjectId;

pub use fencing::{FencingHistory, FencingViolation, LeaseHolder, Regression};
use history::History;
pub use report::{CheckReport, HistoryViolation, ViolationKind};

/// One event at the observed end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedEvent<'a> {
    pub aggregate: &'a str,
    pub sequence: i64,
    /// The event's id; `None` where only the sequence is visible.
    pub event: Option<ObjectId>,
    /// The term that published it.
    pub term: Option<u64>,
    /// The broker's sequence number of the stored message. It distinguishes two copies from one message delivered twice. `None`: every
    /// observation is a message of its own.
    pub message_number: Option<i64>,
    /// The [digest](body_digest) of the body; `None` where the body is not visible.
    pub body: Option<u64>,
}

impl<'a> ObservedEvent<'a> {
    /// An event of which only its place in the aggregate is visible.
    pub fn new(aggregate: &'a str, sequence: i64) -> Self {
        Self { aggregate, sequence, event: None, term: None, message_number: None, body: None }
    }
}

/// A digest of an event's BSON, equal for equal bytes.
pub fn body_digest(bson: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bson);
    hasher.finish()
}

/// What two copies of one event are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicatePolicy {
    /// A violation.
    Forbidden,
    /// Counted by the term that published them. For a topic without duplicate detection, where a takeover republishes events in flight.
    Counted,
}

/// Progress counts; they also say when everything has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckerCounts {
    pub intended: u64,
    pub acknowledged: u64,
    /// Acknowledged and not yet observed.
    pub outstanding: u64,
    /// Observed, copies included.
    pub observed: u64,
    /// Deliveries of messages that were delivered before.
    pub redelivered: u64,
}

/// Shared by writers, readers and the test that checks.
#[derive(Debug, Default)]
pub struct Checker {
    history: Mutex<History>,
}

impl Checker {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the aggregate's next write, before it is sent; returns its sequence, from 1.
    pub fn record_intent(&self, aggregate: &str, event: ObjectId) -> i64 {
        self.history().record_intent(aggregate, event)
    }

    /// Records the digest of the body of a write, before it is sent.
    ///
    /// # Panics
    /// When there was no [`Self::record_intent`] for it.
    pub fn record_body(&self, aggregate: &str, sequence: i64, body: u64) {
        self.history().record_body(aggregate, sequence, body);
    }

    /// The write was acknowledged, or found to be durable.
    ///
    /// # Panics
    /// When there was no [`Self::record_intent`] for it.
    pub fn record_acknowledged(&self, aggregate: &str, sequence: i64) {
        self.history().record_acknowledged(aggregate, sequence);
    }

    /// Records an observed event; per aggregate in the order of arrival.
    pub fn record_observed(&self, event: &ObservedEvent<'_>) {
        self.history().record_observed(event);
    }

    pub fn counts(&self) -> CheckerCounts {
        self.history().counts()
    }

    /// When the first event of this term was observed.
    pub fn first_observed_in(&self, term: u64) -> Option<Instant> {
        self.history().first_observed_in(term)
    }

    /// The same writes with nothing observed, to check another end of the pipeline.
    #[must_use]
    pub fn with_same_writes(&self) -> Self {
        Self { history: Mutex::new(self.history().with_same_writes()) }
    }

    /// Acknowledged and not yet observed.
    pub fn outstanding(&self) -> u64 {
        self.counts().outstanding
    }

    pub fn check(&self, duplicates: DuplicatePolicy) -> CheckReport {
        check::check_history(&self.history(), duplicates)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no one panics while holding the history")
    }
}
