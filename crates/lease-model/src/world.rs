//! One state of everything: pods, store, network, and what the properties need to remember.

use lease::Timing;
use lease::decide::{self, LeaderAction};

use crate::bounds::{Bounds, PODS};
use crate::checkpoint::{Breach, Checkpoint, Errand};
use crate::defect::Defect;
use crate::pod::Pod;
use crate::store::Store;
use crate::stored::{Ask, Nonce};
use crate::tick::{Span, now};

/// The most statements, or errands, that may be in flight with nobody waiting.
pub const LATE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    pub pods: [Pod; PODS],
    pub store: Store,
    /// Statements whose sender has given up, or is gone.
    pub late: [Option<Ask>; LATE],
    pub checkpoint: Checkpoint,
    pub late_errands: [Option<Errand>; LATE],
    pub spent: Spent,
    pub ghost: Ghost,
}

/// How many of the bounded faults have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spent {
    pub crashes: u8,
    pub failovers: u8,
    pub step_downs: u8,
    pub deletions: u8,
}

/// What no part of the system knows, kept for the properties alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ghost {
    /// The highest term in which a leadership began, since the last deletion.
    pub granted: u8,
    pub term_reused: bool,
    pub deposed_saved: bool,
    pub moved_back: bool,
    /// After a deletion, a pod that had never seen the lease was free to write a new one at once.
    pub written_afresh: bool,
}

impl Ghost {
    pub fn record(&mut self, breach: Breach) {
        match breach {
            Breach::TermReused => self.term_reused = true,
            Breach::DeposedSaved => self.deposed_saved = true,
            Breach::MovedBack => self.moved_back = true,
        }
    }
}

impl World {
    pub fn new(bounds: &Bounds) -> Self {
        let span = |index: usize| bounds.pods.get(index).copied().unwrap_or(Span::Short);
        Self {
            pods: [1_u8, 2, 3].map(|number| Pod::new(Nonce(number), span(usize::from(number) - 1))),
            store: Store { offset: bounds.offsets[0], ..Store::default() },
            late: [None; LATE],
            checkpoint: Checkpoint::default(),
            late_errands: [None; LATE],
            spent: Spent::default(),
            ghost: Ghost::default(),
        }
    }
}

/// What the pod's leadership tells it to do now.
pub fn lead(pod: &Pod, bounds: &Bounds) -> Option<LeaderAction> {
    let tenure = pod.tenure(&belief(pod, bounds))?;
    Some(match decide::decide_leader(&tenure, now()) {
        LeaderAction::Expired if bounds.has(Defect::NoDeadline) => LeaderAction::Renew,
        decided => decided,
    })
}

/// The spans a leader goes by.
fn belief(pod: &Pod, bounds: &Bounds) -> Timing {
    match pod.span {
        Span::Brief if bounds.has(Defect::TtlTooShort) => Span::Short.timing(),
        span => span.timing(),
    }
}

/// Whether the pod's gate is open: it may act, by its own clock.
pub fn is_valid(pod: &Pod, bounds: &Bounds) -> bool {
    let shut = pod.hold.is_some_and(|hold| hold.raising_above.is_some());
    !shut && lead(pod, bounds).is_some_and(|decided| decided != LeaderAction::Expired)
}
