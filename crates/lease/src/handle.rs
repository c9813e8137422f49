//! The pod's view of its own leadership, and the request to step down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use crate::clock::BootInstant;
use crate::leadership::LeadershipGate;
use crate::record::Term;

/// Cheap to clone and to query. Replies use the gate's clock, so they are correct even if the elector is stuck.
#[derive(Clone, Debug)]
pub struct Handle {
    status: watch::Receiver<LeaseStatus>,
    /// The term that was asked to end. Naming the term keeps a late request from ending the next one.
    step_down: Arc<watch::Sender<Option<Term>>>,
    iterations: Arc<AtomicU64>,
}

/// The elector's side of a [`Handle`].
#[derive(Debug)]
pub(crate) struct ElectorChannels {
    pub(crate) status: watch::Sender<LeaseStatus>,
    pub(crate) step_down: watch::Receiver<Option<Term>>,
    iterations: Arc<AtomicU64>,
}

/// The role of this pod. Changes when a term is gained or lost, and at every acknowledged renewal.
#[derive(Clone, Debug)]
pub enum LeaseStatus {
    /// Set at start, until the store is read for the first time.
    Starting,
    /// Set while this pod is a standby. `highest_term` is the highest term it has seen.
    Following { highest_term: Term },
    /// Set while this pod leads. The gate tells whether the term is still valid.
    Leading { gate: LeadershipGate },
    /// Set when the elector has ended.
    Stopped,
}

impl Handle {
    pub(crate) fn new() -> (Self, ElectorChannels) {
        let (status, status_receiver) = watch::channel(LeaseStatus::Starting);
        let (step_down, step_down_receiver) = watch::channel(None);
        let iterations = Arc::<AtomicU64>::default();
        let handle =
            Self { status: status_receiver, step_down: Arc::new(step_down), iterations: Arc::clone(&iterations) };
        (handle, ElectorChannels { status, step_down: step_down_receiver, iterations })
    }

    /// How many iterations the elector's loop has made, as leader or as standby. If the number does not change for longer
    /// than a ttl, the elector hangs.
    pub fn iterations(&self) -> u64 {
        self.iterations.load(Relaxed)
    }

    pub fn is_leader(&self) -> bool {
        self.gate().is_some_and(|gate| gate.is_open())
    }

    /// The term this pod leads in now.
    pub fn term(&self) -> Option<Term> {
        self.gate().filter(LeadershipGate::is_open).map(|gate| gate.term())
    }

    /// Until when this pod leads, if no further renewal is acknowledged.
    pub fn valid_until(&self) -> Option<BootInstant> {
        self.gate().filter(LeadershipGate::is_open).map(|gate| gate.valid_until())
    }

    pub fn status(&self) -> LeaseStatus {
        self.status.borrow().clone()
    }

    /// Receives every change of the status.
    pub fn subscribe(&self) -> watch::Receiver<LeaseStatus> {
        self.status.clone()
    }

    /// Requests that this pod drains its work, releases the lease and lets another pod take it. Returns the term that ends;
    /// `None` if this pod does not lead, and then nothing happens.
    pub fn step_down(&self) -> Option<Term> {
        let term = self.term()?;
        self.step_down.send_replace(Some(term));
        Some(term)
    }

    fn gate(&self) -> Option<LeadershipGate> {
        match &*self.status.borrow() {
            LeaseStatus::Leading { gate } => Some(gate.clone()),
            LeaseStatus::Starting | LeaseStatus::Following { .. } | LeaseStatus::Stopped => None,
        }
    }
}

impl ElectorChannels {
    /// Shows that the elector is alive: every wait within one iteration has a deadline.
    pub(crate) fn count_iteration(&self) {
        self.iterations.fetch_add(1, Relaxed);
    }
}
