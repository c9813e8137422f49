//! For each planted defect, the smallest setting that shows it, and the promise it breaks.

use crate::bounds::{Alike, Bounds, Clocks};
use crate::defect::Defect;
use crate::model::{FENCED, FORWARD, ONE_VALID, SOMEBODY_LEADS};
use crate::tick::Span;

/// Where to look for a defect, and what it must break.
#[derive(Clone, Debug)]
pub struct Planted {
    pub defect: Defect,
    pub breaks: &'static str,
    pub bounds: Bounds,
}

impl Planted {
    pub fn new(defect: Defect) -> Self {
        let (breaks, bounds) = setting(defect);
        Self { defect, breaks, bounds: Bounds { defect: Some(defect), alike: Alike::InBehaviour, ..bounds } }
    }
}

fn setting(defect: Defect) -> (&'static str, Bounds) {
    let work = Bounds { positions: 2, ..Bounds::calm(2) };
    match defect {
        Defect::NoFence => (FENCED, work),
        Defect::BareSave => (FORWARD, work),
        Defect::ClaimByTermAlone => {
            let bounds = Bounds { deletions: 1, terms: Some(4), clocks: Clocks::Lying, ..Bounds::calm(3) };
            (FENCED, Bounds { positions: 1, ..bounds })
        }
        Defect::NoDeadline | Defect::ValidFromAnswer | Defect::SeenFromAsking | Defect::ClockStopsInSuspend => {
            (ONE_VALID, Bounds::calm(2))
        }
        Defect::CompareTermOnly => (ONE_VALID, Bounds::calm(2)),
        // The pod whose wall clock is ahead is the third.
        Defect::ClientClock => (ONE_VALID, Bounds::calm(3)),
        Defect::TtlTooShort => (ONE_VALID, Bounds { pods: vec![Span::Brief; 2], ..Bounds::calm(2) }),
        Defect::OwnTtlOnly => (ONE_VALID, Bounds { pods: vec![Span::Short, Span::Long], ..Bounds::calm(2) }),
        Defect::SkewUnderstated => {
            let apart = Bounds { offsets: vec![0, 4], max_clock_skew: Some(1), ..Bounds::calm(2) };
            (ONE_VALID, Bounds { failovers: Some(1), ..apart })
        }
        Defect::PrimaryAckTrusted => (ONE_VALID, Bounds { failovers: Some(1), ..Bounds::calm(2) }),
        Defect::ReleasedWhileOpen => (ONE_VALID, Bounds { step_downs: Some(1), ..Bounds::calm(2) }),
        Defect::WaitsForRelease => (SOMEBODY_LEADS, Bounds { crashes: Some(1), liveness: true, ..Bounds::calm(2) }),
    }
}
