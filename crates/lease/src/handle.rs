//! What the rest of a pod may know about leadership, and the one thing it may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use crate::clock::Moment;
use crate::leadership::Gate;
use crate::record::Term;

/// Cheap to clone and to ask. Answers go by the gate's clock, so they are true even if the elector is stuck.
#[derive(Clone, Debug)]
pub struct Handle {
    status: watch::Receiver<Status>,
    /// The term that was asked to end: naming it keeps a late request from ending the next one.
    step_down: Arc<watch::Sender<Option<Term>>>,
    rounds: Arc<AtomicU64>,
}

/// The elector's side of a [`Handle`].
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) step_down: watch::Receiver<Option<Term>>,
    rounds: Arc<AtomicU64>,
}

/// Where this pod stands. Changes at every gain, loss and acknowledged renewal.
#[derive(Clone, Debug)]
pub enum Status {
    /// Set at start, and until the store has been seen for the first time.
    Starting,
    /// Set while this pod is a standby; `highest` is the highest term it has seen.
    Following { highest: Term },
    /// Set while this pod leads; whether the term is still valid is the gate's to say.
    Leading { gate: Gate },
    /// Set when the elector has ended.
    Stopped,
}

impl Handle {
    pub(crate) fn new() -> (Self, Desk) {
        let (status, seen) = watch::channel(Status::Starting);
        let (step_down, asked) = watch::channel(None);
        let rounds = Arc::<AtomicU64>::default();
        let handle = Self { status: seen, step_down: Arc::new(step_down), rounds: Arc::clone(&rounds) };
        (handle, Desk { status, step_down: asked, rounds })
    }

    /// How often the elector went round, as leader or as standby: a number that stands still for longer than a ttl is an elector that hangs.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Relaxed)
    }

    pub fn is_leader(&self) -> bool {
        self.gate().is_some_and(|gate| gate.is_open())
    }

    /// The term this pod leads in now.
    pub fn term(&self) -> Option<Term> {
        self.gate().filter(Gate::is_open).map(|gate| gate.term())
    }

    /// Until when this pod leads, if no renewal is acknowledged any more.
    pub fn valid_until(&self) -> Option<Moment> {
        self.gate().filter(Gate::is_open).map(|gate| gate.valid_until())
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// For whoever wants to be told instead of asking.
    pub fn changes(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Asks this pod to give its term up, once its work has drained, and to let another pod have it. Says which term that
    /// is; `None` on a pod that does not lead, where nothing happens.
    pub fn step_down(&self) -> Option<Term> {
        let term = self.term()?;
        self.step_down.send_replace(Some(term));
        Some(term)
    }

    fn gate(&self) -> Option<Gate> {
        match &*self.status.borrow() {
            Status::Leading { gate } => Some(gate.clone()),
            Status::Starting | Status::Following { .. } | Status::Stopped => None,
        }
    }
}

impl Desk {
    /// The elector is alive: nothing it waits for in one round lasts for ever.
    pub(crate) fn went_round(&self) {
        self.rounds.fetch_add(1, Relaxed);
    }
}
