//! For each planted defect, the smallest bounds that show it, and the invariant it violates.

use crate::bounds::{ClockModel, ModelBounds, StateEquivalence};
use crate::model::{FENCED, FORWARD, ONE_VALID, RECOVERS};
use crate::protocol_defect::ProtocolDefect;
use crate::time::PodTiming;

/// The bounds to search for a defect, and the invariant it must violate.
#[derive(Clone, Debug)]
pub struct DefectScenario {
    pub defect: ProtocolDefect,
    pub violates: &'static str,
    pub bounds: ModelBounds,
}

impl DefectScenario {
    pub fn new(defect: ProtocolDefect) -> Self {
        let (violates, bounds) = bounds_for(defect);
        Self {
            defect,
            violates,
            bounds: ModelBounds { defect: Some(defect), equivalence: StateEquivalence::SameBehaviour, ..bounds },
        }
    }
}

fn bounds_for(defect: ProtocolDefect) -> (&'static str, ModelBounds) {
    let work = ModelBounds { positions: 2, ..ModelBounds::without_faults(2) };
    match defect {
        ProtocolDefect::NoFence => (FENCED, work),
        ProtocolDefect::UncheckedSave => (FORWARD, work),
        ProtocolDefect::ClaimByTermAlone => {
            let bounds = ModelBounds {
                deletions: 1,
                terms: Some(4),
                clocks: ClockModel::Unreliable,
                ..ModelBounds::without_faults(3)
            };
            (FENCED, ModelBounds { positions: 1, ..bounds })
        }
        ProtocolDefect::NoDeadline
        | ProtocolDefect::ValidFromReply
        | ProtocolDefect::WaitFromRequest
        | ProtocolDefect::ClockStopsInSuspend => (ONE_VALID, ModelBounds::without_faults(2)),
        ProtocolDefect::CompareTermOnly => (ONE_VALID, ModelBounds::without_faults(2)),
        // The pod whose wall clock is ahead is the third.
        ProtocolDefect::ClientClock => (ONE_VALID, ModelBounds::without_faults(3)),
        ProtocolDefect::TtlTooShort => {
            (ONE_VALID, ModelBounds { pods: vec![PodTiming::Brief; 2], ..ModelBounds::without_faults(2) })
        }
        ProtocolDefect::OwnTtlOnly => {
            (ONE_VALID, ModelBounds { pods: vec![PodTiming::Short, PodTiming::Long], ..ModelBounds::without_faults(2) })
        }
        ProtocolDefect::SkewUnderstated => {
            let apart = ModelBounds { offsets: vec![0, 4], max_clock_skew: Some(1), ..ModelBounds::without_faults(2) };
            (ONE_VALID, ModelBounds { failovers: Some(1), ..apart })
        }
        ProtocolDefect::PrimaryAckTrusted => {
            (ONE_VALID, ModelBounds { failovers: Some(1), ..ModelBounds::without_faults(2) })
        }
        ProtocolDefect::ReleaseBeforeGateCloses => {
            (ONE_VALID, ModelBounds { step_downs: Some(1), ..ModelBounds::without_faults(2) })
        }
        ProtocolDefect::WaitsForRelease => {
            (RECOVERS, ModelBounds { crashes: Some(1), liveness: true, ..ModelBounds::without_faults(2) })
        }
    }
}
