//! Counters of the applier since its start.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

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

#[derive(Debug, Default)]
pub(super) struct ApplyCounters {
    pub(super) totals: TransactionCounters,
    /// In the order of the applier's models.
    models: Mutex<Vec<ReadModelCounts>>,
}

impl ApplyCounters {
    pub(super) fn new<'a>(models: impl Iterator<Item = &'a str>) -> Self {
        let nothing = |model: &str| ReadModelCounts { model: model.to_owned(), applied: 0, last_applied: None };
        Self { models: Mutex::new(models.map(nothing).collect()), ..Self::default() }
    }

    pub(super) fn record_commit(&self, commit: &CommitCounts) {
        let totals = &self.totals;
        totals.groups.fetch_add(1, Relaxed);
        totals.applied.fetch_add(commit.applied, Relaxed);
        totals.duplicates.fetch_add(commit.duplicates, Relaxed);
        totals.regressed.fetch_add(commit.regressed, Relaxed);
        totals.parked.fetch_add(commit.parked, Relaxed);
        let (now, mut models) = (Instant::now(), self.models.lock().unwrap_or_else(PoisonError::into_inner));
        for (model, applied) in models.iter_mut().zip(&commit.models).filter(|(_, applied)| **applied > 0) {
            model.applied += applied;
            model.last_applied = Some(now);
        }
    }

    pub(super) fn models(&self) -> Vec<ReadModelCounts> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn snapshot(&self) -> ApplyCounts {
        self.totals.snapshot()
    }
}
