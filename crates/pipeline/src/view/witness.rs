//! Who is told of what was applied: for figures and for traces, never for effects.

use std::time::SystemTime;

use super::delivered::Delivered;

/// Told of every event once the transaction that applied it is committed; not of duplicates, nor of what is parked. Must not wait: all
/// sessions of the pod do meanwhile.
pub trait Witness: Send + Sync {
    /// Whether it wants to know where an event's trace goes on.
    fn traces(&self) -> bool;
    fn applied(&self, event: &Delivered, lived: Lived);
}

/// An event's last moments on its way, by this pod's clock.
#[derive(Clone, Copy, Debug)]
pub struct Lived {
    /// Its session handed it in.
    pub handed_in: SystemTime,
    /// The transaction that applied it began.
    pub began: SystemTime,
    /// That transaction was committed.
    pub committed: SystemTime,
}
