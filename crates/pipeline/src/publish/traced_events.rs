//! Events that are traced, from the moment they are taken into a lane until the bus has acknowledged them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::message::EventMessageId;
use super::prefix::Ordinal;
use crate::event::{ChangeEvent, Namespace, Operation};
use crate::trace::{TraceSampling, wall_clock};

/// Told of traced events once they are published. Must not wait: everything that is published does meanwhile.
pub trait PublishTracer: Send + Sync {
    /// Which events are traced. Asked once a term.
    fn sampling(&self) -> TraceSampling;
    fn published(&self, published: PublishedTrace);
}

/// A traced event's way to the bus, by this pod's clock.
#[derive(Clone, Debug)]
pub struct PublishedTrace {
    pub id: EventMessageId,
    pub namespace: Arc<Namespace>,
    pub operation: Operation,
    /// In the source, by its clock; none for what a snapshot read.
    pub committed: Option<SystemTime>,
    /// When it was read and turned into a message.
    pub captured: SystemTime,
    /// When the bus had it.
    pub acknowledged: SystemTime,
}

/// Those under way.
#[derive(Default)]
pub(super) struct TracedEvents {
    tracer: Option<Arc<dyn PublishTracer>>,
    sampling: TraceSampling,
    in_flight: HashMap<Ordinal, PublishedTrace>,
}

impl TracedEvents {
    pub(super) fn new(tracer: Option<Arc<dyn PublishTracer>>) -> Self {
        let sampling = tracer.as_ref().map_or(TraceSampling::NONE, |tracer| tracer.sampling());
        Self { tracer, sampling, in_flight: HashMap::new() }
    }

    pub(super) fn sampling(&self) -> TraceSampling {
        self.sampling
    }

    /// `None` for an event that is not traced.
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

    pub(super) fn track(&mut self, ordinal: Ordinal, trace: Option<PublishedTrace>) {
        if let Some(trace) = trace {
            self.in_flight.insert(ordinal, trace);
        }
    }

    pub(super) fn acknowledge(&mut self, ordinal: Ordinal) {
        if let (Some(published), Some(tracer)) = (self.forget(ordinal), &self.tracer) {
            tracer.published(PublishedTrace { acknowledged: wall_clock(), ..published });
        }
    }

    /// It becomes no message.
    pub(super) fn forget(&mut self, ordinal: Ordinal) -> Option<PublishedTrace> {
        // Most are not traced.
        if self.in_flight.is_empty() { None } else { self.in_flight.remove(&ordinal) }
    }
}
