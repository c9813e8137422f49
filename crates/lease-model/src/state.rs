//! One state of the model: pods, store, network, and the history variables of the invariants.

use lease::Timing;
use lease::decide::{self, LeaderAction};

use crate::bounds::{ModelBounds, PODS};
use crate::checkpoint::{CheckpointRequest, InvariantViolation, ModelCheckpoint};
use crate::compact::{CandidateNumber, SentStatement};
use crate::pod::ModelPod;
use crate::protocol_defect::ProtocolDefect;
use crate::store::ModelStore;
use crate::time::{PodTiming, now};

/// The maximum number of abandoned statements, or checkpoint requests, in flight.
pub const MAX_LATE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelState {
    pub pods: [ModelPod; PODS],
    pub store: ModelStore,
    /// Statements whose sender no longer waits, or has crashed.
    pub late: [Option<SentStatement>; MAX_LATE],
    pub checkpoint: ModelCheckpoint,
    pub late_checkpoint_requests: [Option<CheckpointRequest>; MAX_LATE],
    pub faults: UsedFaults,
    pub history: HistoryVariables,
}

/// How many of the bounded faults have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsedFaults {
    pub crashes: u8,
    pub failovers: u8,
    pub step_downs: u8,
    pub deletions: u8,
}

/// History that no part of the system knows; only the invariants use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryVariables {
    /// The highest term that started since the last deletion.
    pub granted: u8,
    pub term_reused: bool,
    pub deposed_saved: bool,
    pub moved_back: bool,
    /// After a deletion, a pod that had never seen the lease could create a new one at once.
    pub created_after_deletion: bool,
}

impl HistoryVariables {
    pub fn record(&mut self, violation: InvariantViolation) {
        match violation {
            InvariantViolation::TermReused => self.term_reused = true,
            InvariantViolation::DeposedSaved => self.deposed_saved = true,
            InvariantViolation::MovedBack => self.moved_back = true,
        }
    }
}

impl ModelState {
    pub fn new(bounds: &ModelBounds) -> Self {
        let timing = |index: usize| bounds.pods.get(index).copied().unwrap_or(PodTiming::Short);
        Self {
            pods: [1_u8, 2, 3].map(|number| ModelPod::new(CandidateNumber(number), timing(usize::from(number) - 1))),
            store: ModelStore { offset: bounds.offsets[0], ..ModelStore::default() },
            late: [None; MAX_LATE],
            checkpoint: ModelCheckpoint::default(),
            late_checkpoint_requests: [None; MAX_LATE],
            faults: UsedFaults::default(),
            history: HistoryVariables::default(),
        }
    }
}

/// The leader's next action, if the pod leads.
pub fn leader_action(pod: &ModelPod, bounds: &ModelBounds) -> Option<LeaderAction> {
    let held = pod.held_lease(&leader_timing(pod, bounds))?;
    Some(match decide::decide_leader(&held, now()) {
        LeaderAction::Expired if bounds.has(ProtocolDefect::NoDeadline) => LeaderAction::Renew,
        decided => decided,
    })
}

/// The timing that a leader uses.
fn leader_timing(pod: &ModelPod, bounds: &ModelBounds) -> Timing {
    match pod.timing {
        PodTiming::Brief if bounds.has(ProtocolDefect::TtlTooShort) => PodTiming::Short.to_timing(),
        timing => timing.to_timing(),
    }
}

/// Whether the pod's gate is open: it may act, by its own clock.
pub fn is_valid(pod: &ModelPod, bounds: &ModelBounds) -> bool {
    let is_closed = pod.held.is_some_and(|held| held.raising_above.is_some());
    !is_closed && leader_action(pod, bounds).is_some_and(|decided| decided != LeaderAction::Expired)
}
