//! Counters of the applier since its start.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::plan::CommitCounts;

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyCounts {
    pub applied: u64,
    pub duplicates: u64,
    pub gaps_healed: u64,
    pub regressed: u64,
    /// Events parked, or queued behind a parked one.
    pub parked: u64,
    /// Committed transactions.
    pub groups: u64,
    /// Retried transactions.
    pub conflicts: u64,
    /// Transactions with an unknown commit result.
    pub unknown: u64,
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
    applied: AtomicU64,
    duplicates: AtomicU64,
    pub(super) gaps_healed: AtomicU64,
    regressed: AtomicU64,
    parked: AtomicU64,
    groups: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) unknown: AtomicU64,
    /// In the order of the applier's models.
    models: Mutex<Vec<ReadModelCounts>>,
}

impl ApplyCounters {
    pub(super) fn new<'a>(models: impl Iterator<Item = &'a str>) -> Self {
        let nothing = |model: &str| ReadModelCounts { model: model.to_owned(), applied: 0, last_applied: None };
        Self { models: Mutex::new(models.map(nothing).collect()), ..Self::default() }
    }

    pub(super) fn record_commit(&self, commit: &CommitCounts) {
        self.groups.fetch_add(1, Relaxed);
        self.applied.fetch_add(commit.applied, Relaxed);
        self.duplicates.fetch_add(commit.duplicates, Relaxed);
        self.regressed.fetch_add(commit.regressed, Relaxed);
        self.parked.fetch_add(commit.parked, Relaxed);
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
        ApplyCounts {
            applied: self.applied.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            gaps_healed: self.gaps_healed.load(Relaxed),
            regressed: self.regressed.load(Relaxed),
            parked: self.parked.load(Relaxed),
            groups: self.groups.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            unknown: self.unknown.load(Relaxed),
        }
    }
}
