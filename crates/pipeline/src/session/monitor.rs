//! Read-only view of the sessions for the rest of the pod: counters and current problems, cheap to read.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::SessionByteBudget;
use crate::counters::counters;

/// Cheap to clone; all clones read the same counters.
#[derive(Clone, Debug)]
pub struct SessionMonitor(pub(super) Arc<SessionActivity>);

/// Updated by the acceptor and by the held sessions.
#[derive(Debug)]
pub(super) struct SessionActivity {
    pub(super) counters: SessionCounters,
    pub(super) budget: Arc<SessionByteBudget>,
    problems: watch::Sender<CurrentSessionProblems>,
    progress: watch::Sender<Option<Instant>>,
}

counters! {
    SessionCounters => SessionCounts {
        /// Sessions that this pod holds.
        held: "headwater_sessions_held",
        /// Sessions accepted.
        accepted: "headwater_sessions_accepted_total",
        /// Sessions closed with unsettled messages, because of a failure.
        dropped: "headwater_sessions_dropped_total",
        /// Sessions whose lock was lost.
        locks_lost: "headwater_session_locks_lost_total",
        /// Messages received, including redelivered ones.
        received: "headwater_messages_received_total",
        /// Messages received that Service Bus had delivered before.
        redelivered: "headwater_messages_redelivered_total",
        /// Messages settled.
        /// Service Bus has confirmed each of them.
        settled: "headwater_messages_settled_total",
        /// Messages received without a signature, while signatures are verified.
        unsigned: "headwater_messages_unsigned_total",
        /// Messages not accepted because of their signature, and oversize bodies that are not the signed ones.
        unverified: "headwater_messages_unverified_total",
        /// Dead letters read: parked in their read model (parked), or left in the dead-letter queue for an operator (left).
        dead_letters_parked: "headwater_dead_letters_read_total" { "action" = "parked" },
        /// Dead letters deferred for operator action.
        dead_letters_deferred: "headwater_dead_letters_read_total" { "action" = "left" },
        /// Messages that are foreign or unreadable; they are dead-lettered.
        unreadable,
        /// Accepts that returned, with or without a session. Increases while no session is held: a liveness signal.
        accept_attempts,
        /// Polls of the dead-letter queue. Always increases: a liveness signal.
        dead_letter_polls,
    }
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
struct CurrentSessionProblems {
    bus: Option<SessionProblem>,
    applying: Option<SessionProblem>,
}

impl SessionMonitor {
    pub(super) fn new(budget: Arc<SessionByteBudget>) -> Self {
        let (problems, progress) = (watch::Sender::default(), watch::Sender::default());
        Self(Arc::new(SessionActivity { counters: SessionCounters::default(), budget, problems, progress }))
    }

    pub fn counts(&self) -> SessionCounts {
        self.0.counters.snapshot()
    }

    /// Bytes currently charged to sessions.
    pub fn bytes_in_flight(&self) -> usize {
        self.0.budget.charged()
    }

    /// The current problem; one with the bus before one with the read models.
    pub fn problem(&self) -> Option<SessionProblem> {
        let CurrentSessionProblems { bus, applying } = *self.0.problems.borrow();
        bus.or(applying)
    }

    /// When a batch was last applied; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        *self.0.progress.borrow()
    }
}

impl SessionActivity {
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

    fn update_problems(&self, update_problems: impl FnOnce(&mut CurrentSessionProblems)) {
        self.problems.send_if_modified(|current| {
            let before = *current;
            update_problems(current);
            *current != before
        });
    }
}
