//! Results of a publisher run.

use crate::checkpoint;
use crate::event::Term;

/// The publisher stopped on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishEnd {
    /// Every captured event is acknowledged, and the checkpoint is saved.
    Drained,
    /// The drain timed out with this many unacknowledged events. The checkpoint is before them, so the next leader publishes them.
    Unfinished { events: usize },
    /// The term is over; unsent events are dropped.
    TermLost,
}

/// The publisher failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("publishing stopped: the gate of term {term} is closed")]
    GateClosed { term: Term },
    /// Another term or an operator has moved the checkpoint.
    #[error("failed to save checkpoint")]
    Checkpoint(#[source] checkpoint::Error),
    #[error("failed to publish to the topic")]
    Bus(#[source] servicebus::Error),
}
