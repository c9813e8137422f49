//! For each planted defect, the smallest bounds that show it, and the invariant it violates.

use crate::bounds::{Bounds, ClockModel, StateEquivalence};
use crate::model::{FENCED, FORWARD, ONE_VALID, RECOVERS};
use crate::protocol_defect::ProtocolDefect;
use crate::time::PodTiming;

/// The bounds to search for a defect, and the invariant it must violate.
#[derive(Clone, Debug)]
pub struct DefectScenario {
    pub defect: ProtocolDefect,
    pub violates: &'static str,
    pub bounds: Bounds,
}

impl DefectScenario {
    pub fn new(defect: ProtocolDefect) -> Self {
        let (violates, bounds) = bounds_for(defect);
        Self {
            defect,
            violates,
            bounds: Bounds { defect: Some(defect), equivalence: StateEquivalence::SameBehaviour, ..bounds },
        }
    }
}

fn bounds_for(defect: ProtocolDefect) -> (&'static str, Bounds) {
    let work = Bounds { positions: 2, ..Bounds::without_faults(2) };
    match defect {
        ProtocolDefect::NoFence => (FENCED, work),
        ProtocolDefect::UncheckedSave => (FORWARD, work),
        ProtocolDefect::ClaimByTermAlone => {
            let bounds =
                Bounds { deletions: 1, terms: Some(4), clocks: ClockModel::Unreliable, ..Bounds::without_faults(3) };
            (FENCED, Bounds { positions: 1, ..bounds })
        }
        ProtocolDefect::NoDeadline
        | ProtocolDefect::ValidFromReply
        | ProtocolDefect::WaitFromRequest
        | ProtocolDefect::ClockStopsInSuspend => (ONE_VALID, Bounds::without_faults(2)),
        ProtocolDefect::CompareTermOnly => (ONE_VALID, Bounds::without_faults(2)),
        // The pod whose wall clock is ahead is the third.
        ProtocolDefect::ClientClock => (ONE_VALID, Bounds::without_faults(3)),
        ProtocolDefect::TtlTooShort => {
            (ONE_VALID, Bounds { pods: vec![PodTiming::Brief; 2], ..Bounds::without_faults(2) })
        }
        ProtocolDefect::OwnTtlOnly => {
            (ONE_VALID, Bounds { pods: vec![PodTiming::Short, PodTiming::Long], ..Bounds::without_faults(2) })
        }
        ProtocolDefect::SkewUnderstated => {
            let apart = Bounds { offsets: vec![0, 4], max_clock_skew: Some(1), ..Bounds::without_faults(2) };
            (ONE_VALID, Bounds { failovers: Some(1), ..apart })
        }
        ProtocolDefect::PrimaryAckTrusted => (ONE_VALID, Bounds { failovers: Some(1), ..Bounds::without_faults(2) }),
        ProtocolDefect::ReleaseBeforeGateCloses => {
            (ONE_VALID, Bounds { step_downs: Some(1), ..Bounds::without_faults(2) })
        }
        ProtocolDefect::WaitsForRelease => {
            (RECOVERS, Bounds { crashes: Some(1), liveness: true, ..Bounds::without_faults(2) })
        }
    }
}
