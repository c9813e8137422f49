//! Which messages have a place in the order of this pipeline. Any other is foreign or forged: it moves no cursor, and is dead-lettered.
//!
//! A message needs a collection of the source, an epoch that the checkpoint has reached, a position, and a sequence where the source has one.
//! Placed by its position alone, a message without a sequence could make later events of its aggregate seem to be duplicates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};

use crate::checkpoint;
use crate::event::{Epoch, Namespace};
use crate::source::SourceConfig;
use crate::view::{DeliveredEvent, OrderingMode};

/// Why a message has no place. Contains nothing of the message contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceProblem {
    #[error("the message names a collection that is not part of the source")]
    Collection,
    #[error("the message has no sequence, and every event of the source has one")]
    NoSequence,
    #[error("the message has no position")]
    NoPosition,
    #[error("the message names an epoch that the checkpoint has not reached")]
    Epoch,
}

/// The places of one pipeline.
#[derive(Debug)]
pub struct KnownPlaces {
    namespaces: Vec<Namespace>,
    has_sequence: bool,
    checkpoints: Collection<Document>,
    pipeline: String,
    /// The highest epoch that the checkpoint is known to have reached.
    epoch: AtomicU64,
}

/// A server that responds at all responds sooner.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

impl KnownPlaces {
    pub fn new(source: &SourceConfig, mode: OrderingMode, coordination: &Database, pipeline: &str) -> Self {
        // Linearizable: a primary that has been replaced might not know the newest epoch, and its messages would be refused.
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::linearizable())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        Self {
            namespaces: source.namespaces(),
            has_sequence: matches!(mode, OrderingMode::Sequence { .. }),
            checkpoints: coordination.collection_with_options(checkpoint::COLLECTION, options),
            pipeline: pipeline.to_owned(),
            epoch: AtomicU64::new(Epoch::FIRST.get()),
        }
    }

    /// [`PlaceProblem::Epoch`] is only a suspicion: see [`is_epoch_reached`](Self::is_epoch_reached).
    pub(super) fn problem_of(&self, event: &DeliveredEvent) -> Option<PlaceProblem> {
        if !self.namespaces.contains(&event.namespace) {
            return Some(PlaceProblem::Collection);
        }
        if self.has_sequence && event.sequence.is_none() {
            return Some(PlaceProblem::NoSequence);
        }
        let Some(position) = event.position.as_ref().filter(|position| !position.key.is_empty()) else {
            return Some(PlaceProblem::NoPosition);
        };
        let known = Epoch::FIRST.get()..=self.epoch.load(Relaxed);
        (!known.contains(&position.epoch.get())).then_some(PlaceProblem::Epoch)
    }

    /// Reads the checkpoint again: an operator, or a lost history, may have begun a new epoch since.
    pub(super) async fn is_epoch_reached(&self, event: &DeliveredEvent) -> Result<bool, mongodb::error::Error> {
        let Some(epoch) = event.position.as_ref().map(|position| position.epoch.get()) else { return Ok(false) };
        let query = self.checkpoints.find_one(doc! { "_id": &self.pipeline }).projection(doc! { "epoch": 1 });
        let found = query.max_time(READ_TIMEOUT).await?;
        let reached = found.and_then(|found| u64::try_from(found.get_i64("epoch").ok()?).ok());
        let reached = reached.unwrap_or(Epoch::FIRST.get());
        self.epoch.fetch_max(reached, Relaxed);
        Ok((Epoch::FIRST.get()..=reached).contains(&epoch))
    }
}
