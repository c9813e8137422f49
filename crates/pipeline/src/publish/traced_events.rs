//! Traced events, from admission to a lane until Service Bus acknowledges them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::acknowledged_prefix::CaptureOrdinal;
use super::message::EventMessageId;
use crate::event::{ChangeEvent, Namespace, Operation};
use crate::trace::{TraceSampling, wall_clock};

/// Receives the trace of each sampled event when it is published. Must not block: the publisher waits for it.
pub trait PublishTracer: Send + Sync {
    /// The sampling rate; read once per term.
    fn sampling(&self) -> TraceSampling;
    fn published(&self, published: PublishedTrace);
}

/// The times of a traced event, by this pod's clock.
#[derive(Clone, Debug)]
pub struct PublishedTrace {
    pub id: EventMessageId,
    pub namespace: Arc<Namespace>,
    pub operation: Operation,
    /// Commit time in the source, by its clock; `None` for snapshot events.
    pub committed: Option<SystemTime>,
    /// When it became a message.
    pub captured: SystemTime,
    /// When Service Bus acknowledged it.
    pub acknowledged: SystemTime,
}

/// Traced events in flight.
#[derive(Default)]
pub(super) struct TracedEvents {
    tracer: Option<Arc<dyn PublishTracer>>,
    sampling: TraceSampling,
    in_flight: HashMap<CaptureOrdinal, PublishedTrace>,
}

impl TracedEvents {
    pub(super) fn new(tracer: Option<Arc<dyn PublishTracer>>) -> Self {
        let sampling = tracer.as_ref().map_or(TraceSampling::NONE, |tracer| tracer.sampling());
        Self { tracer, sampling, in_flight: HashMap::new() }
    }

    pub(super) fn sampling(&self) -> TraceSampling {
        self.sampling
    }

    /// `None` for an event that is not sampled.
    pub(super) fn start(&self, event: &ChangeEvent, id: &EventMessageId) -> Option<PublishedTrace> {
        self.sampling.includes(id).then(|| {
            let captured = wall_clock();
            PublishedTrace {
                id: *id,
                namespace: Arc::clone(&event.namespace),
                operation: event.operation,
                committed: event.committed_at().map(mongodb::bson::DateTime::to_system_time),
                captured,
                acknowledged: captured,
            }
        })
    }

    pub(super) fn track(&mut self, ordinal: CaptureOrdinal, trace: Option<PublishedTrace>) {
        if let Some(trace) = trace {
            self.in_flight.insert(ordinal, trace);
        }
    }

    pub(super) fn acknowledge(&mut self, ordinal: CaptureOrdinal) {
        if let (Some(published), Some(tracer)) = (self.forget(ordinal), &self.tracer) {
            tracer.published(PublishedTrace { acknowledged: wall_clock(), ..published });
        }
    }

    /// Drops the trace of an event that is not sent.
    pub(super) fn forget(&mut self, ordinal: CaptureOrdinal) -> Option<PublishedTrace> {
        // Fast path: most events are not traced.
        if self.in_flight.is_empty() { None } else { self.in_flight.remove(&ordinal) }
    }
}
