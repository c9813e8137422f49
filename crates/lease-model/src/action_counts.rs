//! Counts the steps of each kind: shows that a run took the faults it claims to cover.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::action::{AbandonedRequest, ModelAction};

const KINDS: [&str; 14] = [
    "ticks",
    "reads",
    "renewals",
    "raises",
    "step-downs",
    "crashes",
    "writes replicated",
    "replies",
    "abandoned requests",
    "late arrivals",
    "failovers",
    "rollbacks",
    "deletions",
    "claims and saves",
];

/// Shared by the threads of a run.
#[derive(Clone, Debug, Default)]
pub struct ActionCounts(Arc<[AtomicU64; KINDS.len()]>);

impl ActionCounts {
    pub fn count(&self, action: &ModelAction, unreplicated: usize) {
        let kind = match action {
            ModelAction::Tick(_) => 0,
            ModelAction::SendRead(_) | ModelAction::ReceiveRead(_) => 1,
            ModelAction::Renew(_) => 2,
            ModelAction::Raise(_) => 3,
            ModelAction::StepDown(_) => 4,
            ModelAction::Crash(_) => 5,
            ModelAction::StatementArrives(_) | ModelAction::Replicate => 6,
            ModelAction::ReceiveReply(_) => 7,
            ModelAction::AbandonStatement(..)
            | ModelAction::AbandonCheckpointRequest(_, AbandonedRequest::InFlight | AbandonedRequest::Lost) => 8,
            ModelAction::LateStatementArrives(_) | ModelAction::LateCheckpointRequestArrives(_) => 9,
            ModelAction::FailOver { kept, .. } if *kept < unreplicated => 11,
            ModelAction::FailOver { .. } => 10,
            ModelAction::Delete => 12,
            ModelAction::Claim(_)
            | ModelAction::Save(_)
            | ModelAction::CheckpointRequestArrives(_)
            | ModelAction::ReceiveCheckpointReply(_) => 13,
        };
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    pub fn of(&self, kind: &str) -> u64 {
        KINDS.iter().zip(self.0.iter()).filter(|(name, _)| **name == kind).map(|(_, n)| n.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Display for ActionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = KINDS.iter().map(|kind| (kind, self.of(kind))).filter(|(_, count)| *count > 0);
        let words: Vec<String> = counted.map(|(kind, count)| format!("{kind} {count}")).collect();
        f.write_str(&words.join(", "))
    }
}
