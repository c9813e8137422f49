//! An event as delivered by Service Bus: what `session` passes to the applier.

use std::fmt;
use std::sync::Arc;

use mongodb::bson::{Bson, DateTime, RawDocumentBuf};

use crate::event::{AggregateId, Epoch, Namespace, Operation, Position, Term};
use crate::trace::TraceContext;

/// One parsed message. `Debug` shows its position and no contents, so that none reach a log.
#[derive(Clone)]
pub struct DeliveredEvent {
    /// Empty for an event read from the source to heal a gap.
    pub message_id: String,
    pub operation: Operation,
    pub namespace: Arc<Namespace>,
    pub aggregate: AggregateId,
    /// The `_id` of the source document.
    pub key: Bson,
    pub event_type: Option<String>,
    pub sequence: Option<i64>,
    /// `None` for an event read from the source to heal a gap: only its sequence orders it.
    pub position: Option<PositionKey>,
    pub term: Term,
    pub body: EventBody,
    /// Commit time in the source; for display and lag.
    pub committed: Option<DateTime>,
    /// Earlier deliveries by the bus.
    pub delivery_count: u32,
    /// Received from the dead-letter queue: it is parked, not applied.
    pub dead_lettered: bool,
    /// The trace context; only read while traces are recorded.
    pub trace: Option<TraceContext>,
}

impl DeliveredEvent {
    /// A delivery count with which an event is parked untried, whatever the limit of the subscription.
    pub const PARK_UNTRIED: u32 = u32::MAX;
}

/// Where the document of the event is.
#[derive(Clone)]
pub enum EventBody {
    Document(RawDocumentBuf),
    /// In `oversize_events` under this id. `session` fetches it before it applies the event; a missing body parks the aggregate.
    Oversize(String),
    /// Nowhere: Service Bus refused the event, and it is in `rejected_events` under this id.
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

/// The ordered part of a position: the epoch, then the key of the resume token, byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionKey {
    pub epoch: Epoch,
    /// Shared with the cursor at this position.
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

/// Shows only the beginning, as for a token: the rest contains document keys.
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
