//! Counters of the applier since its start.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::model_set::ModelSet;
use super::plan::CommitCounts;
use crate::counters::counters;

counters! {
    TransactionCounters => ApplyCounts {
        /// Events applied to the read models.
        applied: "headwater_events_applied_total",
        /// Events skipped because they were applied before.
        duplicates: "headwater_events_duplicate_total",
        /// Events with a lower sequence than the cursor, and not duplicates.
        regressed: "headwater_events_regressed_total",
        /// Events parked, or queued behind a parked event.
        parked: "headwater_events_parked_total",
        /// Gaps filled from the source.
        gaps_healed: "headwater_gaps_healed_total",
        /// Transactions of the applier: committed, conflict (retried), or unknown (commit result lost).
        groups: "headwater_transactions_total" { "outcome" = "committed" },
        /// Retried transactions.
        conflicts: "headwater_transactions_total" { "outcome" = "conflict" },
        /// Transactions with an unknown commit result.
        unknown: "headwater_transactions_total" { "outcome" = "unknown" },
    }
}

/// Counters of one read model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadModelCounts {
    pub model: String,
    pub applied: u64,
    /// When an event was last applied; `None` before the first.
    pub last_applied: Option<Instant>,
}

impl ReadModelCounts {
    fn new(model: &str) -> Self {
        Self { model: model.to_owned(), applied: 0, last_applied: None }
    }
}

#[derive(Debug, Default)]
pub(super) struct ApplyCounters {
    pub(super) totals: TransactionCounters,
    /// Of every generation so far.
    models: Mutex<Vec<ReadModelCounts>>,
}

impl ApplyCounters {
    pub(super) fn new<'a>(models: impl Iterator<Item = &'a str>) -> Self {
        Self { models: Mutex::new(models.map(ReadModelCounts::new).collect()), ..Self::default() }
    }

    pub(super) fn record_commit(&self, models: &ModelSet, commit: &CommitCounts) {
        let totals = &self.totals;
        totals.groups.fetch_add(1, Relaxed);
        totals.applied.fetch_add(commit.applied, Relaxed);
        totals.duplicates.fetch_add(commit.duplicates, Relaxed);
        totals.regressed.fetch_add(commit.regressed, Relaxed);
        totals.parked.fetch_add(commit.parked, Relaxed);
        let (now, mut known) = (Instant::now(), self.models.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, applied) in models.names().zip(&commit.models).filter(|(_, applied)| **applied > 0) {
            let at = known.iter().position(|counts| counts.model == name).unwrap_or_else(|| {
                known.push(ReadModelCounts::new(name));
                known.len() - 1
            });
            known[at].applied += applied;
            known[at].last_applied = Some(now);
        }
    }

    pub(super) fn models(&self) -> Vec<ReadModelCounts> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn snapshot(&self) -> ApplyCounts {
        self.totals.snapshot()
    }
}
