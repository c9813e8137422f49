//! Read-only view of the sessions for the rest of the pod: counters and current problems, cheap to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::ByteBudget;

/// Cheap to clone; all clones read the same counters.
#[derive(Clone, Debug)]
pub struct SessionMonitor(pub(super) Arc<SessionCounters>);

/// Updated by the acceptor and by the held sessions.
#[derive(Debug)]
pub(super) struct SessionCounters {
    pub(super) budget: Arc<ByteBudget>,
    pub(super) held: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) locks_lost: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) dead_letters_parked: AtomicU64,
    pub(super) dead_letters_deferred: AtomicU64,
    pub(super) accept_attempts: AtomicU64,
    pub(super) dead_letter_polls: AtomicU64,
    problems: watch::Sender<CurrentProblems>,
    progress: watch::Sender<Option<Instant>>,
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Sessions held now.
    pub held: u64,
    /// Sessions accepted since the start.
    pub accepted: u64,
    /// Messages received, including redelivered ones.
    pub received: u64,
    /// Of these, messages with a delivery count above zero.
    pub redelivered: u64,
    /// Messages whose settlement Service Bus has confirmed.
    pub settled: u64,
    pub locks_lost: u64,
    /// Sessions closed with unsettled messages because something failed.
    pub dropped: u64,
    /// Messages that are foreign or unreadable; they are dead-lettered.
    pub unreadable: u64,
    /// Dead letters whose events were parked.
    pub dead_letters_parked: u64,
    /// Dead letters deferred for operator action.
    pub dead_letters_deferred: u64,
    /// Accepts that returned, with or without a session. Increases while no session is held: a liveness signal.
    pub accept_attempts: u64,
    /// Polls of the dead-letter queue. Always increases: a liveness signal.
    pub dead_letter_polls: u64,
    /// Bytes currently charged to sessions.
    pub bytes_in_flight: usize,
}

/// Why sessions make no progress. They continue by themselves once the cause is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionProblem {
    SubscriptionMissing,
    Unauthorized,
    Disabled,
    /// Service Bus throttles us.
    Busy,
    /// Service Bus refuses the request: a subscription without sessions, for example.
    Refused,
    Unreachable,
    /// Events cannot be applied, for a reason outside the events.
    ReadModels,
    /// A message has a newer format and waits for a pod of that version.
    NewerFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CurrentProblems {
    bus: Option<SessionProblem>,
    applying: Option<SessionProblem>,
}

impl SessionMonitor {
    pub(super) fn new(budget: Arc<ByteBudget>) -> Self {
        Self(Arc::new(SessionCounters {
            budget,
            held: AtomicU64::default(),
            accepted: AtomicU64::default(),
            received: AtomicU64::default(),
            redelivered: AtomicU64::default(),
            settled: AtomicU64::default(),
            locks_lost: AtomicU64::default(),
            dropped: AtomicU64::default(),
            unreadable: AtomicU64::default(),
            dead_letters_parked: AtomicU64::default(),
            dead_letters_deferred: AtomicU64::default(),
            accept_attempts: AtomicU64::default(),
            dead_letter_polls: AtomicU64::default(),
            problems: watch::Sender::default(),
            progress: watch::Sender::default(),
        }))
    }

    pub fn counts(&self) -> SessionCounts {
        let counters = &*self.0;
        SessionCounts {
            held: counters.held.load(Relaxed),
            accepted: counters.accepted.load(Relaxed),
            received: counters.received.load(Relaxed),
            redelivered: counters.redelivered.load(Relaxed),
            settled: counters.settled.load(Relaxed),
            locks_lost: counters.locks_lost.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
            unreadable: counters.unreadable.load(Relaxed),
            dead_letters_parked: counters.dead_letters_parked.load(Relaxed),
            dead_letters_deferred: counters.dead_letters_deferred.load(Relaxed),
            accept_attempts: counters.accept_attempts.load(Relaxed),
            dead_letter_polls: counters.dead_letter_polls.load(Relaxed),
            bytes_in_flight: counters.budget.charged(),
        }
    }

    /// The current problem; one with the bus before one with the read models.
    pub fn problem(&self) -> Option<SessionProblem> {
        let CurrentProblems { bus, applying } = *self.0.problems.borrow();
        bus.or(applying)
    }

    /// When a batch was last applied; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        *self.0.progress.borrow()
    }
}

impl SessionCounters {
    pub(super) fn set_bus_problem(&self, problem: Option<SessionProblem>) {
        self.update_problems(|current| current.bus = problem);
    }

    pub(super) fn set_apply_problem(&self, problem: Option<SessionProblem>) {
        self.update_problems(|current| current.applying = problem);
    }

    pub(super) fn record_progress(&self) {
        self.progress.send_replace(Some(Instant::now()));
        self.set_apply_problem(None);
    }

    fn update_problems(&self, update_problems: impl FnOnce(&mut CurrentProblems)) {
        self.problems.send_if_modified(|current| {
            let before = *current;
            update_problems(current);
            *current != before
        });
    }
}
