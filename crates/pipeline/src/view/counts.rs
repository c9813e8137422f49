//! What the applier has done since it started.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::plan::Tally;

/// A look at the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub applied: u64,
    pub duplicates: u64,
    pub gaps_healed: u64,
    pub regressed: u64,
    /// Events that were parked, or queued behind one that is.
    pub parked: u64,
    /// Transactions committed.
    pub groups: u64,
    /// Transactions run again.
    pub conflicts: u64,
    /// Transactions whose end is not known.
    pub unknown: u64,
}

/// Of one read model: what was committed in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCounts {
    pub model: String,
    pub applied: u64,
    /// When the last of them was; `None` before the first.
    pub last: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    applied: AtomicU64,
    duplicates: AtomicU64,
    pub(super) gaps_healed: AtomicU64,
    regressed: AtomicU64,
    parked: AtomicU64,
    groups: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) unknown: AtomicU64,
    /// In the order of the applier's models.
    models: Mutex<Vec<ModelCounts>>,
}

impl Counters {
    pub(super) fn of<'a>(models: impl Iterator<Item = &'a str>) -> Self {
        let nothing = |model: &str| ModelCounts { model: model.to_owned(), applied: 0, last: None };
        Self { models: Mutex::new(models.map(nothing).collect()), ..Self::default() }
    }

    pub(super) fn committed(&self, tally: &Tally) {
        self.groups.fetch_add(1, Relaxed);
        self.applied.fetch_add(tally.applied, Relaxed);
        self.duplicates.fetch_add(tally.duplicates, Relaxed);
        self.regressed.fetch_add(tally.regressed, Relaxed);
        self.parked.fetch_add(tally.parked, Relaxed);
        let (now, mut models) = (Instant::now(), self.models.lock().unwrap_or_else(PoisonError::into_inner));
        for (model, applied) in models.iter_mut().zip(&tally.models).filter(|(_, applied)| **applied > 0) {
            model.applied += applied;
            model.last = Some(now);
        }
    }

    pub(super) fn models(&self) -> Vec<ModelCounts> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn look(&self) -> Counts {
        Counts {
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
