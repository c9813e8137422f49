//! What the rest of the pod may know of its sessions: counters and troubles, cheap to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use servicebus::BusErrorKind;
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::Budget;

/// Cheap to clone; all clones look at the same sessions.
#[derive(Clone, Debug)]
pub struct Handle(pub(super) Arc<Book>);

/// Written by who accepts sessions and who holds them.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) budget: Arc<Budget>,
    pub(super) held: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) locks_lost: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) dead_letters: AtomicU64,
    pub(super) set_aside: AtomicU64,
    pub(super) asked: AtomicU64,
    pub(super) looked: AtomicU64,
    troubles: watch::Sender<Troubled>,
    progress: watch::Sender<Option<Instant>>,
}

/// A look at the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions held now.
    pub held: u64,
    /// Sessions accepted since the start.
    pub accepted: u64,
    /// Messages received, those that came again included.
    pub received: u64,
    /// Of these, such as the bus says it has given out before.
    pub redelivered: u64,
    /// Messages settled, each with the bus's word for it.
    pub settled: u64,
    pub locks_lost: u64,
    /// Sessions let go with their buffer unsettled, because something failed.
    pub dropped: u64,
    /// Messages that are none of ours or cannot be read; they are among the dead letters.
    pub unreadable: u64,
    /// Dead letters that were parked.
    pub dead_letters: u64,
    /// Dead letters that were left for people.
    pub set_aside: u64,
    /// How often the bus was asked for a session and answered, if only that there is none: while none is held, this goes on.
    pub asked: u64,
    /// How often the dead letters were looked for: this goes on always.
    pub looked: u64,
    /// What sessions may hold just now.
    pub bytes_in_flight: usize,
}

/// Why sessions do not go on as they should. They go on by themselves when the reason is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    SubscriptionMissing,
    Unauthorized,
    Disabled,
    /// The bus asks for patience.
    Busy,
    /// The bus will not have it so: a subscription without sessions, say.
    Refused,
    Unreachable,
    /// Events cannot be applied, for a reason that is not theirs.
    ReadModels,
    /// A message was written by a newer version than this: it waits for a pod of that version.
    NewerFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Troubled {
    bus: Option<Trouble>,
    applying: Option<Trouble>,
}

impl Handle {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self(Arc::new(Book {
            budget,
            held: AtomicU64::default(),
            accepted: AtomicU64::default(),
            received: AtomicU64::default(),
            redelivered: AtomicU64::default(),
            settled: AtomicU64::default(),
            locks_lost: AtomicU64::default(),
            dropped: AtomicU64::default(),
            unreadable: AtomicU64::default(),
            dead_letters: AtomicU64::default(),
            set_aside: AtomicU64::default(),
            asked: AtomicU64::default(),
            looked: AtomicU64::default(),
            troubles: watch::Sender::default(),
            progress: watch::Sender::default(),
        }))
    }

    pub fn counts(&self) -> Counts {
        let book = &*self.0;
        Counts {
            held: book.held.load(Relaxed),
            accepted: book.accepted.load(Relaxed),
            received: book.received.load(Relaxed),
            redelivered: book.redelivered.load(Relaxed),
            settled: book.settled.load(Relaxed),
            locks_lost: book.locks_lost.load(Relaxed),
            dropped: book.dropped.load(Relaxed),
            unreadable: book.unreadable.load(Relaxed),
            dead_letters: book.dead_letters.load(Relaxed),
            set_aside: book.set_aside.load(Relaxed),
            asked: book.asked.load(Relaxed),
            looked: book.looked.load(Relaxed),
            bytes_in_flight: book.budget.taken(),
        }
    }

    /// What stands in the way now; that of the bus before that of the read models.
    pub fn trouble(&self) -> Option<Trouble> {
        let Troubled { bus, applying } = *self.0.troubles.borrow();
        bus.or(applying)
    }

    /// When a batch was last dealt with; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        *self.0.progress.borrow()
    }
}

impl Book {
    pub(super) fn bus(&self, trouble: Option<Trouble>) {
        self.change(|troubled| troubled.bus = trouble);
    }

    pub(super) fn applying(&self, trouble: Option<Trouble>) {
        self.change(|troubled| troubled.applying = trouble);
    }

    pub(super) fn progressed(&self) {
        self.progress.send_replace(Some(Instant::now()));
        self.applying(None);
    }

    fn change(&self, change: impl FnOnce(&mut Troubled)) {
        self.troubles.send_if_modified(|troubled| {
            let before = *troubled;
            change(troubled);
            *troubled != before
        });
    }
}

impl Trouble {
    /// What an answer of the bus to an accept means.
    pub(super) fn of(kind: BusErrorKind) -> Self {
        match kind {
            BusErrorKind::NotFound => Self::SubscriptionMissing,
            BusErrorKind::Unauthorized => Self::Unauthorized,
            BusErrorKind::Disabled => Self::Disabled,
            BusErrorKind::Busy | BusErrorKind::QuotaExceeded => Self::Busy,
            BusErrorKind::NotAllowed
            | BusErrorKind::InvalidArgument
            | BusErrorKind::NotImplemented
            | BusErrorKind::MessageTooLarge
            | BusErrorKind::AlreadyExists
            | BusErrorKind::Fenced
            | BusErrorKind::Configuration => Self::Refused,
            BusErrorKind::Timeout
            | BusErrorKind::Detached
            | BusErrorKind::ConnectionLost
            | BusErrorKind::Internal
            | BusErrorKind::Cancelled
            | BusErrorKind::Unknown
            | BusErrorKind::Protocol
            | BusErrorKind::MessageLockLost
            | BusErrorKind::SessionLockLost
            | BusErrorKind::SessionHeldElsewhere
            | BusErrorKind::Closed => Self::Unreachable,
        }
    }
}
