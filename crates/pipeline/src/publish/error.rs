//! How a publisher's run ends.

use crate::checkpoint;
use crate::event::Term;

/// It was told to end, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishEnd {
    /// Everything captured is acknowledged, and saved.
    Drained,
    /// Time ran out: so many captured events are not acknowledged. The checkpoint stands before them, so the next leader sends them.
    Unfinished { events: usize },
    /// The term is over; what was unsent is thrown away.
    TermLost,
}

/// It cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("publish in term {term}: its gate is shut")]
    GateClosed { term: Term },
    /// Somebody else's term, or an operator, has moved the checkpoint on.
    #[error("let the checkpoint follow")]
    Checkpoint(#[source] checkpoint::Error),
    #[error("publish to the topic")]
    Bus(#[source] servicebus::Error),
}
