//! Who is told of what was applied: for figures and for traces, never for effects.

use std::time::SystemTime;

use super::delivered_event::DeliveredEvent;

/// Told of every event once the transaction that applied it is committed; not of duplicates, nor of what is parked. Must not wait: all
/// sessions of the pod do meanwhile.
pub trait ApplyObserver: Send + Sync {
    /// Whether it wants to know where an event's trace goes on.
    fn needs_trace(&self) -> bool;
    fn record_applied(&self, event: &DeliveredEvent, timings: ApplyTimings);
}

/// An event's last moments on its way, by this pod's clock.
#[derive(Clone, Copy, Debug)]
pub struct ApplyTimings {
    /// Its session handed it in.
    pub submitted_at: SystemTime,
    /// The transaction that applied it began.
    pub started_at: SystemTime,
    /// That transaction was committed.
    pub committed_at: SystemTime,
}
