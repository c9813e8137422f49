//! The runs of `cargo xtask verify-lease`: each scenarios one exhaustive piece out of everything that can happen.
//!
//! One run with every fault, every bound and the checkpoint at once would not end this year. Each scenario leaves something out, says so, and is
//! complete in what it has. Where a scenario bounds nothing but what is in flight, it covers histories of any length.

use crate::bounds::{Bounds, ClockModel};
use crate::time::PodTiming;

/// One exhaustive run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What it covers, in a sentence.
    pub covers: &'static str,
    pub bounds: Bounds,
}

/// The default runs: some ten million states.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "election",
            covers: "three pods, any number of crashes, failovers, step-downs, losses and terms, with one late statement in flight",
            bounds: Bounds { late: 1, ..Bounds::without_limits(3) },
        },
        Scenario {
            name: "rollback",
            covers: "the same without late statements, with a primary two writes ahead of its majority",
            bounds: Bounds { unreplicated: 2, ..Bounds::without_limits(3) },
        },
        Scenario {
            name: "crowded-network",
            covers: "two pods, two late statements and two unreplicated writes at a time, no fault bounded",
            bounds: Bounds { late: 2, unreplicated: 2, ..Bounds::without_limits(2) },
        },
        Scenario {
            name: "rolling-change",
            covers: "three pods, one of them with a longer ttl and deadline than the others; no crashes",
            bounds: Bounds {
                pods: vec![PodTiming::Short, PodTiming::Short, PodTiming::Long],
                crashes: Some(0),
                ..Bounds::without_limits(3)
            },
        },
        Scenario {
            name: "wall-clocks",
            covers: "two pods that may trust the servers' clocks, which are apart by all that `max_clock_skew` allows",
            bounds: Bounds { offsets: vec![0, 1], max_clock_skew: Some(1), ..Bounds::without_limits(2) },
        },
        Scenario {
            name: "checkpoint",
            covers: "two pods that claim and move a checkpoint, no fault bounded",
            bounds: Bounds { positions: 2, ..Bounds::without_limits(2) },
        },
        Scenario {
            name: "fence",
            covers: "three pods whose clocks lie without limit, crashes and failovers unbounded, one late claim or save; only the fence protects",
            bounds: fence(),
        },
        Scenario {
            name: "deletion",
            covers: "two pods, an operator deletes the lease once, one crash, at most three terms",
            bounds: Bounds { deletions: 1, terms: Some(3), crashes: Some(1), ..Bounds::without_faults(2) },
        },
        Scenario {
            name: "deletion-fence",
            covers: "three pods whose clocks lie, a deletion, and the term raised again above the checkpoint's; at most four terms",
            bounds: Bounds {
                deletions: 1,
                terms: Some(4),
                positions: 1,
                clocks: ClockModel::Unreliable,
                ..Bounds::without_faults(3)
            },
        },
        Scenario {
            name: "recovery",
            covers: "three pods, no fault bounded: from every state somebody leads, once faults stop",
            bounds: Bounds { liveness: true, ..Bounds::without_limits(3) },
        },
    ]
}

/// Cuts small enough for the test suite.
pub fn small() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "small-election",
            covers: "two pods, no fault bounded, nothing late",
            bounds: Bounds { liveness: true, ..Bounds::without_limits(2) },
        },
        Scenario {
            name: "small-trio",
            covers: "three pods, failovers unbounded, neither crash nor step-down",
            bounds: Bounds { failovers: None, ..Bounds::without_faults(3) },
        },
        Scenario {
            name: "small-fence",
            covers: "three pods whose clocks lie, failovers unbounded, one late claim or save",
            bounds: Bounds { crashes: Some(0), ..fence() },
        },
        Scenario {
            name: "small-deletion",
            covers: "two pods whose clocks lie, a deletion, and the term raised again above the checkpoint's; at most four terms",
            bounds: Bounds {
                deletions: 1,
                terms: Some(4),
                positions: 1,
                clocks: ClockModel::Unreliable,
                ..Bounds::without_faults(2)
            },
        },
    ]
}

fn fence() -> Bounds {
    Bounds {
        positions: 2,
        late_checkpoint_requests: 1,
        clocks: ClockModel::Unreliable,
        step_downs: Some(0),
        ..Bounds::without_limits(3)
    }
}
