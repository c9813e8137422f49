//! An event as it comes from the bus: what `session` hands to the applier.

use std::fmt;
use std::sync::Arc;

use mongodb::bson::{Bson, DateTime, RawDocumentBuf};

use crate::event::{AggregateId, Epoch, Namespace, Operation, Position, Term};
use crate::trace::TraceContext;

/// One message, read. Its contents never reach a log: `Debug` shows where it stands, not what it says.
#[derive(Clone)]
pub struct DeliveredEvent {
    /// Empty for an event that was read from the source to heal a gap.
    pub message_id: String,
    pub operation: Operation,
    pub namespace: Arc<Namespace>,
    pub aggregate: AggregateId,
    /// The `_id` of the source's document.
    pub key: Bson,
    pub event_type: Option<String>,
    pub sequence: Option<i64>,
    /// `None` for an event that was read from the source to heal a gap: only its sequence places it.
    pub position: Option<PositionKey>,
    pub term: Term,
    pub body: EventBody,
    /// When it was committed in the source; for people and lag.
    pub committed: Option<DateTime>,
    /// How often the bus has given it out before.
    pub delivery_count: u32,
    /// It was taken from the dead-letter queue: it is parked in its place, not applied.
    pub dead_lettered: bool,
    /// Where its trace goes on; only read where somebody traces.
    pub trace: Option<TraceContext>,
}

/// Where the event's document is.
#[derive(Clone)]
pub enum EventBody {
    Document(RawDocumentBuf),
    /// In `oversize_events` under this id. `session` fetches it before it hands the event over; one whose body is gone parks.
    Oversize(String),
    /// Nowhere: the bus refused it, and it is in `rejected_events` under this id.
    Marker(String),
}

impl EventBody {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Document(document) => document.as_bytes().len(),
            Self::Oversize(_) | Self::Marker(_) => 0,
        }
    }
}

/// A position by what orders it: the epoch, then the token's key, byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionKey {
    pub epoch: Epoch,
    /// Shared by the cursor that stands at it.
    pub key: Arc<str>,
}

impl PositionKey {
    pub fn new(epoch: Epoch, key: impl Into<Arc<str>>) -> Self {
        Self { epoch, key: key.into() }
    }
}

impl From<&Position> for PositionKey {
    fn from(position: &Position) -> Self {
        Self::new(position.epoch, position.token.key())
    }
}

/// As of a token, only the beginning is shown: the rest holds document keys.
impl fmt::Debug for PositionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:.18}…", self.epoch, self.key)
    }
}

impl fmt::Debug for DeliveredEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivered")
            .field("aggregate", &self.aggregate)
            .field("event_type", &self.event_type)
            .field("sequence", &self.sequence)
            .field("position", &self.position)
            .field("term", &self.term)
            .field("delivery_count", &self.delivery_count)
            .finish_non_exhaustive()
    }
}
