//! Parked aggregates: in one read model, their events wait behind one that cannot be applied.
//!
//! The cursor records that an aggregate is parked; `parked_events` holds its queued events, numbered in order. Both are written in the
//! transaction that moves the cursor, so a replay or discard conflicts with the applier at the cursor, and one of them goes first.

mod document;
mod replay;
mod store;

use std::fmt;

use mongodb::bson::{Bson, DateTime};

pub(super) use document::{
    DISCARDED, parked_entries_document, parked_event_document, parked_event_id, read_parked_entries,
};
pub use store::{DiscardScope, ParkedAggregate, ParkedStore, PausedPage};

/// Why an aggregate is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParkReason {
    /// The event cannot be applied.
    Poison,
    /// The aggregate was recreated, or the source restored.
    VersionRegressed,
    /// Events before it are missing, and the source does not have them.
    Unhealable,
    /// Service Bus refused the event, and a marker was sent in its place.
    Marker,
    /// The oversize body is missing.
    NoBody,
    /// The delivery count is close to the limit of the bus.
    DeliveryCount,
    /// Service Bus dead-lettered the event.
    DeadLettered,
    /// An operator has paused the read model. Its events are applied when it is resumed.
    Paused,
    /// The read model lacks earlier events of the aggregate: the read-model database was restored to a time before its build.
    NotBuilt,
}

impl ParkReason {
    pub const ALL: [Self; 9] = [
        Self::Poison,
        Self::VersionRegressed,
        Self::Unhealable,
        Self::Marker,
        Self::NoBody,
        Self::DeliveryCount,
        Self::DeadLettered,
        Self::Paused,
        Self::NotBuilt,
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
            Self::Paused => "paused",
            Self::NotBuilt => "not_built",
        }
    }

    pub fn read(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// Whether the whole aggregate is affected, in every read model, and not only this event.
    pub(super) const fn affects_all_models(self) -> bool {
        match self {
            Self::VersionRegressed | Self::Unhealable => true,
            Self::Poison | Self::Marker | Self::NoBody | Self::DeliveryCount | Self::DeadLettered => false,
            Self::Paused | Self::NotBuilt => false,
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an aggregate is parked in one read model: part of its cursor.
#[derive(Clone, PartialEq)]
pub struct ParkedEntry {
    pub reason: ParkReason,
    /// For operators: a server error code or the text of a projection.
    pub detail: String,
    /// The `_id` of the event that cannot be applied.
    pub event_id: Bson,
    pub sequence: Option<i64>,
    /// By the clock of the pod; informational.
    pub since: DateTime,
    /// Queued events have the numbers `head..next`.
    pub head: i64,
    pub next: i64,
    /// Message ids of queued dead letters. Without a sequence only they identify a redelivered dead letter.
    pub dead_letter_ids: Vec<String>,
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
