//! The runs of `cargo xtask verify-lease`: each explores one part of the protocol exhaustively.
//!
//! One run with every fault, no bounds and the checkpoint would take years. Each scenario leaves something out, states what it covers,
//! and is complete within that. A scenario that bounds only messages in flight covers histories of any length.

use crate::bounds::{ClockModel, ModelBounds};
use crate::time::PodTiming;

/// One exhaustive run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What it covers, in one sentence.
    pub covers: &'static str,
    pub bounds: ModelBounds,
}

/// The default runs: about ten million states.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "election",
            covers: "three pods, any number of crashes, failovers, step-downs, losses and terms, with one late statement in flight",
            bounds: ModelBounds { late: 1, ..ModelBounds::without_limits(3) },
        },
        Scenario {
            name: "rollback",
            covers: "the same without late statements, with a primary two writes ahead of its majority",
            bounds: ModelBounds { unreplicated: 2, ..ModelBounds::without_limits(3) },
        },
        Scenario {
            name: "crowded-network",
            covers: "two pods, two late statements and two unreplicated writes at a time, unlimited faults",
            bounds: ModelBounds { late: 2, unreplicated: 2, ..ModelBounds::without_limits(2) },
        },
        Scenario {
            name: "rolling-change",
            covers: "three pods, one of them with a longer ttl and deadline than the others; no crashes",
            bounds: ModelBounds {
                pods: vec![PodTiming::Short, PodTiming::Short, PodTiming::Long],
                crashes: Some(0),
                ..ModelBounds::without_limits(3)
            },
        },
        Scenario {
            name: "wall-clocks",
            covers: "two pods that trust the servers' clocks, which are as far apart as `max_clock_skew` allows",
            bounds: ModelBounds { offsets: vec![0, 1], max_clock_skew: Some(1), ..ModelBounds::without_limits(2) },
        },
        Scenario {
            name: "checkpoint",
            covers: "two pods that claim and move a checkpoint, unlimited faults",
            bounds: ModelBounds { positions: 2, ..ModelBounds::without_limits(2) },
        },
        Scenario {
            name: "fence",
            covers: "three pods with unreliable clocks, unlimited crashes and failovers, one late claim or save; only the fence protects",
            bounds: fence(),
        },
        Scenario {
            name: "deletion",
            covers: "two pods, an operator deletes the lease once, one crash, at most three terms",
            bounds: ModelBounds { deletions: 1, terms: Some(3), crashes: Some(1), ..ModelBounds::without_faults(2) },
        },
        Scenario {
            name: "deletion-fence",
            covers: "three pods with unreliable clocks, a deletion, and the term raised again above the checkpoint's; at most four terms",
            bounds: ModelBounds {
                deletions: 1,
                terms: Some(4),
                positions: 1,
                clocks: ClockModel::Unreliable,
                ..ModelBounds::without_faults(3)
            },
        },
        Scenario {
            name: "recovery",
            covers: "three pods, unlimited faults: from every state a pod leads once faults stop",
            bounds: ModelBounds { liveness: true, ..ModelBounds::without_limits(3) },
        },
    ]
}

/// Scenarios small enough for the test suite.
pub fn small() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "small-election",
            covers: "two pods, unlimited faults, no late statement",
            bounds: ModelBounds { liveness: true, ..ModelBounds::without_limits(2) },
        },
        Scenario {
            name: "small-trio",
            covers: "three pods, unlimited failovers, neither crash nor step-down",
            bounds: ModelBounds { failovers: None, ..ModelBounds::without_faults(3) },
        },
        Scenario {
            name: "small-fence",
            covers: "three pods with unreliable clocks, unlimited failovers, one late claim or save",
            bounds: ModelBounds { crashes: Some(0), ..fence() },
        },
        Scenario {
            name: "small-deletion",
            covers: "two pods with unreliable clocks, a deletion, and the term raised again above the checkpoint's; at most four terms",
            bounds: ModelBounds {
                deletions: 1,
                terms: Some(4),
                positions: 1,
                clocks: ClockModel::Unreliable,
                ..ModelBounds::without_faults(2)
            },
        },
    ]
}

fn fence() -> ModelBounds {
    ModelBounds {
        positions: 2,
        late_checkpoint_requests: 1,
        clocks: ClockModel::Unreliable,
        step_downs: Some(0),
        ..ModelBounds::without_limits(3)
    }
}
