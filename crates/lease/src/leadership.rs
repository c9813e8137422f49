//! One term, as the leader's work receives it: its number, its gate, and the signal to stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{BootInstant, Clock};
use crate::record::{CandidateId, Term};

/// Open while this pod may act in one term. Belongs to that term only: it never opens again after it has closed.
///
/// Check it in the task that writes the socket, right before the write. A check costs a clock read and an atomic load.
#[derive(Clone, Debug)]
pub struct LeadershipGate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    term: Term,
    clock: Clock,
    /// Nanoseconds since boot; zero when closed.
    valid_until: AtomicU64,
}

/// The gate is closed: the write must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this pod no longer leads in term {term}")]
pub struct GateClosed {
    pub term: Term,
}

impl LeadershipGate {
    pub(crate) fn open(term: Term, valid_until: BootInstant, clock: Clock) -> Self {
        Self(Arc::new(GateState { term, clock, valid_until: AtomicU64::new(to_nanos(valid_until)) }))
    }

    pub fn term(&self) -> Term {
        self.0.term
    }

    pub fn is_open(&self) -> bool {
        self.0.clock.now() < self.valid_until()
    }

    pub fn check(&self) -> Result<(), GateClosed> {
        if self.is_open() { Ok(()) } else { Err(GateClosed { term: self.term() }) }
    }

    /// When the gate closes by itself, unless a renewal extends it.
    pub fn valid_until(&self) -> BootInstant {
        BootInstant::since_boot(Duration::from_nanos(self.0.valid_until.load(Ordering::Acquire)))
    }

    /// Only the elector extends a gate, and it closes it from the same thread: a closed gate stays closed.
    pub(crate) fn extend(&self, valid_until: BootInstant) {
        self.0.valid_until.store(to_nanos(valid_until), Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.0.valid_until.store(0, Ordering::Release);
    }
}

fn to_nanos(instant: BootInstant) -> u64 {
    u64::try_from(instant.as_duration().as_nanos()).unwrap_or(u64::MAX)
}

/// Passed to the work when this pod gains a term. The elector releases the lease only after the work's future has ended.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(crate) candidate_id: CandidateId,
    pub(crate) gate: LeadershipGate,
    pub(crate) stop: watch::Receiver<Option<StopSignal>>,
}

impl Leadership {
    pub fn term(&self) -> Term {
        self.gate.term()
    }

    /// Identifies this process, for stores that must tell apart two holders of one term.
    pub fn candidate_id(&self) -> CandidateId {
        self.candidate_id
    }

    pub fn gate(&self) -> &LeadershipGate {
        &self.gate
    }

    /// Waits until the work should end, and returns how.
    pub async fn wait_for_stop(&self) -> StopSignal {
        self.wait_for(Option::is_some).await
    }

    /// Waits until the term is lost; also while the work drains.
    pub async fn wait_for_loss(&self) {
        self.wait_for(|stop| *stop == Some(StopSignal::Lost)).await;
    }

    async fn wait_for(&self, wanted: impl FnMut(&Option<StopSignal>) -> bool) -> StopSignal {
        let mut stop = self.stop.clone();
        let signal = stop.wait_for(wanted).await;
        // An elector that is gone cannot renew: the term counts as lost.
        signal.ok().and_then(|signal| *signal).unwrap_or(StopSignal::Lost)
    }
}

/// How the work should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// The term continues until the work has ended: flush, save, then return.
    Drain,
    /// The term is over: discard everything unsent, and return.
    Lost,
}

/// How the work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermOutcome {
    /// It received a stop signal and stopped.
    Done,
    /// It cannot continue in this pod; another pod should try. Carries the reason, in a few words.
    StepDown(String),
    /// The guarded store has seen this term, or a higher one, from another process: the lease was deleted or restored.
    TermBehind { seen: Term },
}

/// Why a term ended, for the log and for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The store refused a renewal: another pod holds the lease, or the lease is gone.
    Deposed,
    /// No renewal was acknowledged before the deadline.
    Deadline,
    ShuttingDown,
    /// An operator requested it.
    SteppedDown,
    /// The work ended by itself.
    WorkEnded(String),
    TermBehind {
        seen: Term,
    },
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deposed => f.write_str("another pod holds the lease, or the lease is gone"),
            Self::Deadline => f.write_str("no renewal was acknowledged before the deadline"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::SteppedDown => f.write_str("step-down requested"),
            Self::WorkEnded(reason) => write!(f, "work ended: {reason}"),
            Self::TermBehind { seen } => write!(f, "term fell behind: term {seen} was used before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(valid_for: Duration) -> LeadershipGate {
        LeadershipGate::open(Term::new(3), BootInstant::now() + valid_for, Clock::Boot)
    }

    #[test]
    fn a_gate_closes_by_itself() {
        assert_eq!(gate(Duration::from_secs(60)).check(), Ok(()));
        assert_eq!(gate(Duration::ZERO).check(), Err(GateClosed { term: Term::new(3) }));
    }

    #[test]
    fn closing_a_gate_closes_every_clone() {
        let gate = gate(Duration::from_secs(60));
        let writer = gate.clone();
        gate.close();
        assert!(!writer.is_open());
    }
}
