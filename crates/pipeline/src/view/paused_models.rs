//! The read models that an operator has paused. Their events queue as parked events, so that the cursor may move on for the other models.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// Every transaction takes the set anew.
#[derive(Debug, Default)]
pub(super) struct PausedModels(RwLock<Arc<BTreeSet<String>>>);

impl PausedModels {
    pub(super) fn get(&self) -> Arc<BTreeSet<String>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, names: BTreeSet<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }
}
