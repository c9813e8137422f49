//! Aggregates that wait, in one read model, behind an event that cannot be applied.
//!
//! That an aggregate is parked stands in its cursor, and what waits stands in `parked_events`, numbered as it came; both are written in the
//! transaction that moves the cursor. So whoever replays or discards meets the applier at the cursor, and one of them goes first.

mod document;
mod replay;
mod store;

use std::fmt;

use mongodb::bson::{Bson, DateTime};

pub(super) use document::{parked_entries_document, parked_event_document, parked_event_id, read_parked_entries};
pub use store::{DiscardScope, ParkedAggregate, ParkedStore};

/// Why an aggregate waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParkReason {
    /// The event cannot be applied.
    Poison,
    /// The aggregate was created again, or the source restored.
    VersionRegressed,
    /// Events before it are missing, and the source does not have them.
    Unhealable,
    /// The bus refused the event, and a marker came in its place.
    Marker,
    /// The event's body was kept apart, and is gone.
    NoBody,
    /// The bus has given it out so often that it would soon be dead-lettered.
    DeliveryCount,
    /// The bus had put it among the dead letters.
    DeadLettered,
}

impl ParkReason {
    pub const ALL: [Self; 7] = [
        Self::Poison,
        Self::VersionRegressed,
        Self::Unhealable,
        Self::Marker,
        Self::NoBody,
        Self::DeliveryCount,
        Self::DeadLettered,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Poison => "poison",
            Self::VersionRegressed => "version_regressed",
            Self::Unhealable => "unhealable",
            Self::Marker => "marker",
            Self::NoBody => "no_body",
            Self::DeliveryCount => "delivery_count",
            Self::DeadLettered => "dead_lettered",
        }
    }

    pub fn read(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// Whether the trouble is the whole aggregate's, in every read model, and not this one event's.
    pub(super) const fn affects_all_models(self) -> bool {
        match self {
            Self::VersionRegressed | Self::Unhealable => true,
            Self::Poison | Self::Marker | Self::NoBody | Self::DeliveryCount | Self::DeadLettered => false,
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an aggregate waits in one read model: part of its cursor.
#[derive(Clone, PartialEq)]
pub struct ParkedEntry {
    pub reason: ParkReason,
    /// For people: a server's code, a projection's words.
    pub detail: String,
    /// The `_id` of the event it waits behind.
    pub event_id: Bson,
    pub sequence: Option<i64>,
    /// By this pod's clock; only shown.
    pub since: DateTime,
    /// The events that wait are numbered from `head` up to, not with, `next`.
    pub head: i64,
    pub next: i64,
    /// Message ids of dead letters among them. Without a sequence nothing else tells a letter that is given out again.
    pub letters: Vec<String>,
}

impl ParkedEntry {
    pub fn waiting(&self) -> u64 {
        u64::try_from(self.next - self.head).unwrap_or(0)
    }
}

impl fmt::Debug for ParkedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parked({}, {} waiting)", self.reason, self.waiting())
    }
}
