//! Applies earlier events to the read models of a build, with the transactions, retries and splits of the live applier.

use std::sync::Arc;

use mongodb::Database;
use tokio::sync::Mutex;

use super::applier_config::{Config, OnPoison};
use super::contention::{EventResult, EventResults, TransactionGroupRunner, group_by_aggregate};
use super::counters::ApplyCounters;
use super::cursor::OrderingMode;
use super::cursor_document::CursorIdScheme;
use super::delivered_event::DeliveredEvent;
use super::discarded::DiscardedEvents;
use super::error::Error;
use super::model_set::{AppliedModel, CurrentModels, ModelSet};
use super::plan::{ApplyOutcome, ApplyRules, PendingEvent, PlannedOutcome};
use super::read_model::ReadModel;
use super::transaction::TransactionStore;

/// What a build applier needs.
pub struct BuildApplierSetup {
    pub config: Config,
    pub database: Database,
    pub pipeline: String,
    pub mode: OrderingMode,
    pub by_collection: bool,
    /// In [`ModelSetMode::Build`](super::ModelSetMode).
    pub models: ModelSet,
    pub discarded: DiscardedEvents,
}

/// Submitted events must include, for each aggregate, all that the build has not applied yet from its progress on.
pub struct BuildApplier {
    runner: TransactionGroupRunner,
    /// Documents that several aggregates write: concurrent transactions would conflict more than they gain.
    one_at_a_time: Option<Mutex<()>>,
    folds_in_memory: bool,
}

/// What became of the submitted events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuiltEvents {
    pub applied: u64,
    pub parked: u64,
    /// Built before, or left to the live applier.
    pub passed_over: u64,
}

impl BuildApplier {
    pub fn new(setup: BuildApplierSetup) -> Self {
        let BuildApplierSetup { config, database, pipeline, mode, by_collection, models, discarded } = setup;
        let is_own =
            |model: &AppliedModel| model.projection.as_read_model().is_some_and(ReadModel::writes_own_document);
        let one_at_a_time = (!models.models.iter().all(is_own)).then(Mutex::default);
        let folds = |model: &AppliedModel| model.projection.as_read_model().is_some_and(ReadModel::folds_in_memory);
        let folds_in_memory = models.models.iter().all(folds);
        let counters = Arc::new(ApplyCounters::new(models.names()));
        let rules = ApplyRules {
            naming: CursorIdScheme { pipeline, by_collection },
            mode,
            models: CurrentModels::new(models),
            // Nobody reads what is being built.
            paused: Default::default(),
            // Only cursors are built, and an erased aggregate has none.
            erased: Default::default(),
            dead_letter_poison: config.on_poison == OnPoison::DeadLetter,
            discarded,
            park_at_delivery: u32::MAX.into(),
        };
        let store = TransactionStore { database, within: config.transaction_within };
        Self { runner: TransactionGroupRunner::new(&config, store, rules, counters), one_at_a_time, folds_in_memory }
    }

    /// Whether events usually take no statement of their own.
    pub fn folds_in_memory(&self) -> bool {
        self.folds_in_memory
    }

    /// Applies the events in one transaction, or several if some cannot be applied.
    pub async fn apply(&self, events: Vec<DeliveredEvent>) -> Result<BuiltEvents, Arc<Error>> {
        let _turn = match &self.one_at_a_time {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let rules = self.runner.rules();
        let mut pending: Vec<PendingEvent> = Vec::with_capacity(events.len());
        for event in events {
            pending.push(PendingEvent::new_after(pending.last(), event, rules));
        }
        let events = pending;
        let mut results = EventResults::unresolved(events.len());
        self.runner.resolve(&events, &mut results).await;
        for indices in group_by_aggregate(&events, &results.unresolved_indices()) {
            for (index, result) in self.runner.resolve_blocked(&events, indices).await {
                results.set(index, result);
            }
        }
        let mut built = BuiltEvents::default();
        for (_, result) in results.into_resolved() {
            match result {
                EventResult::Planned(PlannedOutcome::Done(ApplyOutcome::Applied)) => built.applied += 1,
                EventResult::Planned(PlannedOutcome::Done(ApplyOutcome::Parked | ApplyOutcome::DeadLetter)) => {
                    built.parked += 1;
                }
                EventResult::Planned(_) => built.passed_over += 1,
                EventResult::Failed(error) => return Err(error),
                // The cursor knows: the caller reads it again.
                EventResult::Unknown => built.passed_over += 1,
            }
        }
        Ok(built)
    }
}
