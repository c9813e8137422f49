//! Observes applied events for metrics and traces; has no effect on them.

use std::time::SystemTime;

use super::delivered_event::DeliveredEvent;

/// Called for every event once its transaction has committed; not for duplicates or parked events. Must not block: all sessions of the pod
/// wait meanwhile.
pub trait ApplyObserver: Send + Sync {
    /// Whether events should carry their trace context.
    fn needs_trace(&self) -> bool;
    fn record_applied(&self, event: &DeliveredEvent, timings: ApplyTimestamps);
}

/// Timestamps of an applied event, by the clock of this pod.
#[derive(Clone, Copy, Debug)]
pub struct ApplyTimestamps {
    /// Its session submitted it.
    pub submitted_at: SystemTime,
    /// The transaction that applied it started.
    pub started_at: SystemTime,
    /// That transaction committed.
    pub committed_at: SystemTime,
}
