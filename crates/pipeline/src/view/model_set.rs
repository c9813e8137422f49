//! The read models that transactions apply: one set per generation, replaced while the applier runs.
//!
//! A cursor says up to which generation its position holds. A model that joined later has not seen the aggregate's earlier events, so it gets none of
//! the aggregate until a build has applied those.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::time::{Duration, timeout};

use super::projection::Projection;

/// The generation of a pipeline whose read models have never changed. It is not stored in cursors.
pub const FIRST_GENERATION: u64 = 1;

/// A read model, and the generation with which it joined.
#[derive(Clone)]
pub struct AppliedModel {
    pub projection: Arc<dyn Projection>,
    /// For counters. Aggregates are parked under the name of the projection.
    pub name: String,
    /// Cursors of this generation and later hold for it.
    pub since: u64,
    /// It does not serve yet.
    pub is_building: bool,
}

/// What a transaction does with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelSetMode {
    /// Applies events that are next, and moves the cursor.
    #[default]
    Live,
    /// Transactions wait: collections are being renamed.
    Paused,
    /// Applies earlier events to models that joined later. The cursor's position stays, and what it holds for grows.
    Build,
}

/// The read models of one generation.
#[derive(Clone)]
pub struct ModelSet {
    pub generation: u64,
    pub models: Vec<AppliedModel>,
    pub mode: ModelSetMode,
}

impl ModelSet {
    /// Models that are the same for the whole life of a pipeline.
    pub fn fixed(models: Vec<Arc<dyn Projection>>) -> Self {
        let applied = |projection: Arc<dyn Projection>| AppliedModel {
            name: projection.name().to_owned(),
            projection,
            since: FIRST_GENERATION,
            is_building: false,
        };
        Self {
            generation: FIRST_GENERATION,
            models: models.into_iter().map(applied).collect(),
            mode: ModelSetMode::Live,
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|model| model.name.as_str())
    }

    pub fn find(&self, name: &str) -> Option<&dyn Projection> {
        self.models.iter().map(|model| &*model.projection).find(|model| model.name() == name)
    }

    /// The highest generation that a model joined with.
    pub(super) fn newest(&self) -> u64 {
        self.models.iter().map(|model| model.since).max().unwrap_or(FIRST_GENERATION)
    }
}

impl fmt::Debug for ModelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelSet({}, {:?}, {:?})", self.generation, self.mode, self.names().collect::<Vec<_>>())
    }
}

/// The set that is current now. Every transaction takes it anew.
#[derive(Debug)]
pub(super) struct CurrentModels {
    current: watch::Sender<Arc<ModelSet>>,
    outdated: Arc<Notify>,
}

impl CurrentModels {
    pub(super) fn new(models: ModelSet) -> Self {
        Self { current: watch::Sender::new(Arc::new(models)), outdated: Arc::default() }
    }

    /// For estimates: it may be paused.
    pub(super) fn get(&self) -> Arc<ModelSet> {
        self.current.borrow().clone()
    }

    /// Waits while the set is paused. Cancel-safe.
    pub(super) async fn usable(&self) -> Arc<ModelSet> {
        let mut current = self.current.subscribe();
        let usable = current.wait_for(|models| models.mode != ModelSetMode::Paused).await;
        usable.map_or_else(|_| self.get(), |models| models.clone())
    }

    /// An older set never replaces a newer one.
    pub(super) fn replace(&self, models: ModelSet) {
        self.current.send_if_modified(|current| {
            let is_newer = (models.generation, models.mode != current.mode) > (current.generation, false);
            if is_newer {
                *current = Arc::new(models);
            }
            is_newer
        });
    }

    /// Another pod knows a later generation: asks for it, and waits for it a moment. Cancel-safe.
    pub(super) async fn report_outdated(&self, generation: u64, within: Duration) {
        self.outdated.notify_one();
        let mut current = self.current.subscribe();
        let _ = timeout(within, current.wait_for(|models| models.generation > generation)).await;
    }

    pub(super) fn outdated(&self) -> Arc<Notify> {
        self.outdated.clone()
    }
}
