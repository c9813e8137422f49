//! One term in the hands of the work that is led: its number, its gate, and the word to stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{Clock, Moment};
use crate::record::{Contender, Term};

/// Open while this pod may act in one term. Belongs to that term for good: it never opens again after it was shut.
///
/// To be asked in the task that writes the socket, right before it writes; costs a clock read and an atomic load.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    term: Term,
    clock: Clock,
    /// Nanoseconds since boot; zero when shut.
    valid_until: AtomicU64,
}

/// The gate is shut: whatever was about to be written must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("term {term} is over for this pod")]
pub struct Shut {
    pub term: Term,
}

impl Gate {
    pub(crate) fn open(term: Term, valid_until: Moment, clock: Clock) -> Self {
        Self(Arc::new(Inner { term, clock, valid_until: AtomicU64::new(nanos(valid_until)) }))
    }

    pub fn term(&self) -> Term {
        self.0.term
    }

    pub fn is_open(&self) -> bool {
        self.0.clock.now() < self.valid_until()
    }

    pub fn check(&self) -> Result<(), Shut> {
        if self.is_open() { Ok(()) } else { Err(Shut { term: self.term() }) }
    }

    /// The moment at which it shuts by itself, unless a renewal moves it.
    pub fn valid_until(&self) -> Moment {
        Moment::since_boot(Duration::from_nanos(self.0.valid_until.load(Ordering::Acquire)))
    }

    /// Only the elector extends a gate, and it shuts it from the same thread: a shut gate stays shut.
    pub(crate) fn extend(&self, valid_until: Moment) {
        self.0.valid_until.store(nanos(valid_until), Ordering::Release);
    }

    pub(crate) fn shut(&self) {
        self.0.valid_until.store(0, Ordering::Release);
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_duration().as_nanos()).unwrap_or(u64::MAX)
}

/// What the work is given when this pod gains a term. The lease goes back only after the work's future has ended.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(crate) contender: Contender,
    pub(crate) gate: Gate,
    pub(crate) stop: watch::Receiver<Option<Stop>>,
}

impl Leadership {
    pub fn term(&self) -> Term {
        self.gate.term()
    }

    /// This process, for stores that must tell two holders of one term apart.
    pub fn contender(&self) -> Contender {
        self.contender
    }

    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Waits until the work should end, and says in which way.
    pub async fn stopping(&self) -> Stop {
        self.told(Option::is_some).await
    }

    /// Waits until the term is lost; also while the work drains.
    pub async fn lost(&self) {
        self.told(|stop| *stop == Some(Stop::Lost)).await;
    }

    async fn told(&self, wanted: impl FnMut(&Option<Stop>) -> bool) -> Stop {
        let mut stop = self.stop.clone();
        let told = stop.wait_for(wanted).await;
        // An elector that is gone cannot renew: the term is as good as lost.
        told.ok().and_then(|told| *told).unwrap_or(Stop::Lost)
    }
}

/// Why the work should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The term goes on until the work has ended: flush, save, then return.
    Drain,
    /// The term is over: throw away what is unsent, and return.
    Lost,
}

/// How the work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Told to stop, it did.
    Done,
    /// It cannot go on here; another pod should try. Says why, in a few words.
    StepDown(String),
    /// What it guards has seen this term, or a higher one, from somebody else: the lease was deleted or restored.
    TermBehind { seen: Term },
}

/// Why a term ended, for the log and for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The store refused a renewal: the lease is somebody else's, or gone.
    Deposed,
    /// No renewal was acknowledged before the deadline.
    Deadline,
    ShuttingDown,
    /// Asked for by an operator.
    SteppedDown,
    /// The work ended by itself.
    WorkEnded(String),
    TermBehind {
        seen: Term,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deposed => f.write_str("the lease is no longer ours"),
            Self::Deadline => f.write_str("no renewal was acknowledged before the deadline"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::SteppedDown => f.write_str("stepped down as asked"),
            Self::WorkEnded(why) => write!(f, "the work ended: {why}"),
            Self::TermBehind { seen } => write!(f, "the term fell behind {seen}, which was seen before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(valid_for: Duration) -> Gate {
        Gate::open(Term::new(3), Moment::now() + valid_for, Clock::Boot)
    }

    #[test]
    fn a_gate_shuts_by_itself() {
        assert_eq!(gate(Duration::from_secs(60)).check(), Ok(()));
        assert_eq!(gate(Duration::ZERO).check(), Err(Shut { term: Term::new(3) }));
    }

    #[test]
    fn a_gate_that_was_shut_is_shut_for_all_who_hold_it() {
        let gate = gate(Duration::from_secs(60));
        let writer = gate.clone();
        gate.shut();
        assert!(!writer.is_open());
    }
}
