//! How often each kind of step was taken: shows that a run really met the faults it claims to cover.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::action::{Action, Fate};

const KINDS: [&str; 14] = [
    "ticks",
    "reads",
    "renewals",
    "raises",
    "step-downs",
    "crashes",
    "writes replicated",
    "answers",
    "waits given up",
    "late arrivals",
    "failovers",
    "rollbacks",
    "deletions",
    "claims and saves",
];

/// Shared by the threads of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<[AtomicU64; KINDS.len()]>);

impl Tally {
    pub fn count(&self, action: &Action, alone: usize) {
        let kind = match action {
            Action::Tick(_) => 0,
            Action::Look(_) | Action::See(_) => 1,
            Action::Renew(_) => 2,
            Action::Raise(_) => 3,
            Action::StepDown(_) => 4,
            Action::Crash(_) => 5,
            Action::Arrive(_) | Action::Replicate => 6,
            Action::Answer(_) => 7,
            Action::GiveUp(..) | Action::GiveUpErrand(_, Fate::Late | Fate::Lost) => 8,
            Action::ArriveLate(_) | Action::LateErrandArrives(_) => 9,
            Action::FailOver { kept, .. } if *kept < alone => 11,
            Action::FailOver { .. } => 10,
            Action::Delete => 12,
            Action::Claim(_) | Action::Save(_) | Action::ErrandArrives(_) | Action::ErrandAnswered(_) => 13,
        };
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    pub fn of(&self, kind: &str) -> u64 {
        KINDS.iter().zip(self.0.iter()).filter(|(name, _)| **name == kind).map(|(_, n)| n.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = KINDS.iter().map(|kind| (kind, self.of(kind))).filter(|(_, count)| *count > 0);
        let words: Vec<String> = counted.map(|(kind, count)| format!("{kind} {count}")).collect();
        f.write_str(&words.join(", "))
    }
}
