//! Read your writes: waits until the events of an aggregate are applied, by its cursor.
//!
//! The cursor is written in the transaction that writes the read models, so a cursor at or beyond a sequence proves that its event is in all of them, except
//! where the aggregate is parked. Polls: any pod may apply the event. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mongodb::bson::{Document, RawDocumentBuf, Timestamp, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};
use tokio::time::{Instant, sleep, timeout_at};

use super::CURSORS;
use super::cursor::Cursor;
use super::cursor_document::{CursorIdScheme, read_cursor};
use super::error::Error;
use super::identity::Identity;
use super::parked::{ParkReason, ParkedEntry};
use crate::event::{AggregateId, Namespace};

/// The first polls are frequent: most events are applied within milliseconds. What an answer is late, in the worst case.
const FIRST_POLL: Duration = Duration::from_millis(5);
const LAST_POLL: Duration = Duration::from_millis(100);

/// Waits for cursors of a pipeline whose source has a sequence.
#[derive(Clone, Debug)]
pub struct AppliedReader {
    cursors: Collection<RawDocumentBuf>,
    naming: CursorIdScheme,
    /// Not part of the identity of an aggregate of events.
    namespace: Namespace,
    models: Vec<String>,
    unavailable: UnavailableModels,
}

/// Read models for which waiting does not help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailableModels {
    /// Nothing is applied to them until they are resumed.
    pub paused: BTreeSet<String>,
    /// No version of them serves readers yet.
    pub building: BTreeSet<String>,
}

/// Where an event is in one read model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelProgress {
    Applied,
    /// Not applied: it waits behind an event that cannot be applied, or is that event.
    Parked(ParkReason),
    /// Not applied: an operator has paused the read model, or a service before it.
    Paused,
    /// The read model is being built, and serves no readers yet.
    Building,
    /// Not applied yet.
    Pending,
}

/// Where an event is, at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedState {
    /// The sequence of the cursor; `None` if no event of the aggregate is applied.
    pub sequence: Option<i64>,
    /// By read model.
    pub models: BTreeMap<String, ModelProgress>,
    /// A read on a secondary that is causally after this time sees what this answer says.
    pub operation_time: Option<Timestamp>,
}

impl AppliedState {
    pub fn is_applied(&self) -> bool {
        self.models.values().all(|progress| *progress == ModelProgress::Applied)
    }

    /// In at least one read model: waiting does not help, an operator must act.
    pub fn is_parked(&self) -> bool {
        self.models.values().any(|progress| matches!(progress, ModelProgress::Parked(_)))
    }

    /// Waiting longer changes nothing.
    fn is_final(&self) -> bool {
        self.is_applied() || self.is_parked() || self.is_unavailable()
    }

    /// At least one read model is paused or being built: waiting does not help now.
    pub fn is_unavailable(&self) -> bool {
        self.models.values().any(|progress| matches!(progress, ModelProgress::Paused | ModelProgress::Building))
    }
}

impl AppliedReader {
    /// `models`: the names of the read models to answer for.
    pub fn new(database: &Database, pipeline: impl Into<String>, models: impl IntoIterator<Item = String>) -> Self {
        let naming = CursorIdScheme { pipeline: pipeline.into(), by_collection: false };
        let cursors = database.collection(CURSORS);
        Self {
            cursors,
            naming,
            namespace: Namespace::new("", ""),
            models: models.into_iter().collect(),
            unavailable: UnavailableModels::default(),
        }
    }

    /// Does not wait for these.
    #[must_use]
    pub fn with_unavailable(self, unavailable: UnavailableModels) -> Self {
        Self { unavailable, ..self }
    }

    /// Waits until the event is applied in every read model, or parked in one, but no longer than `within`: then the answer has pending read models.
    /// `aggregates`: the ids that a text may mean; the first one with a cursor counts.
    pub async fn wait(
        &self,
        aggregates: &[AggregateId],
        sequence: i64,
        within: Duration,
    ) -> Result<AppliedState, Error> {
        let (deadline, mut pause) = (Instant::now() + within, FIRST_POLL);
        loop {
            let state = timeout_at(deadline.max(Instant::now() + LAST_POLL), self.read(aggregates, sequence)).await;
            match state {
                Err(_) => return Err(Error::Timeout { action: "read cursor", within }),
                Ok(Err(error)) if error.class() != crate::error_policy::ErrorClass::Transient => return Err(error),
                Ok(Err(error)) if Instant::now() >= deadline => return Err(error),
                Ok(Ok(state)) if state.is_final() || Instant::now() >= deadline => {
                    return Ok(state);
                }
                Ok(Ok(_) | Err(_)) => {}
            }
            sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(LAST_POLL);
        }
    }

    /// Where the event is now.
    pub async fn read(&self, aggregates: &[AggregateId], sequence: i64) -> Result<AppliedState, Error> {
        let failed = |source: mongodb::error::Error| Error::Store {
            action: "read cursor",
            database: self.cursors.namespace().db,
            source: source.into(),
        };
        let mut session = self.cursors.client().start_session().causal_consistency(true).await.map_err(failed)?;
        let id = |aggregate| Document::try_from(&*self.naming.id(&self.namespace, aggregate)).ok();
        let ids: Vec<Document> = aggregates.iter().filter_map(id).collect();
        let find = self.cursors.find(doc! { "_id": { "$in": ids } }).read_concern(ReadConcern::majority());
        let find = find.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let mut found = find.session(&mut session).await.map_err(failed)?;
        let mut cursors = BTreeMap::new();
        while found.advance(&mut session).await.map_err(failed)? {
            let (identity, cursor) = read_cursor(found.current())?;
            cursors.insert(identity, cursor);
        }
        let identity = |aggregate: &AggregateId| -> Identity { self.naming.identity(&self.namespace, aggregate) };
        let cursor = aggregates.iter().find_map(|aggregate| cursors.remove(&identity(aggregate)));
        Ok(self.state_of(cursor.as_ref(), sequence, session.operation_time()))
    }

    fn state_of(&self, cursor: Option<&Cursor>, sequence: i64, operation_time: Option<Timestamp>) -> AppliedState {
        let at = cursor.and_then(|cursor| cursor.sequence);
        let progress = |model: &String| {
            let parked = cursor.and_then(|cursor| cursor.parked_in(model));
            let progress = progress_of(parked, at, sequence);
            (model.clone(), self.unavailable.restrict(model, progress))
        };
        AppliedState { sequence: at, models: self.models.iter().map(progress).collect(), operation_time }
    }
}

impl UnavailableModels {
    fn restrict(&self, model: &str, progress: ModelProgress) -> ModelProgress {
        match progress {
            _ if self.building.contains(model) => ModelProgress::Building,
            ModelProgress::Parked(ParkReason::Paused) => ModelProgress::Paused,
            ModelProgress::Pending if self.paused.contains(model) => ModelProgress::Paused,
            progress => progress,
        }
    }
}

fn progress_of(parked: Option<&ParkedEntry>, at: Option<i64>, sequence: i64) -> ModelProgress {
    match parked {
        // Events before the one that cannot be applied are in the read model.
        Some(entry) if entry.sequence.is_none_or(|first| sequence >= first) => ModelProgress::Parked(entry.reason),
        Some(_) | None if at.is_some_and(|at| at >= sequence) => ModelProgress::Applied,
        Some(_) | None => ModelProgress::Pending,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime};

    use super::*;

    #[test]
    fn an_event_behind_a_parked_one_is_not_applied() {
        let entry = ParkedEntry {
            reason: ParkReason::Poison,
            detail: String::new(),
            event_id: Bson::Null,
            sequence: Some(4),
            since: DateTime::from_millis(0),
            head: 0,
            next: 1,
            dead_letter_ids: vec![],
        };
        let parked = ModelProgress::Parked(ParkReason::Poison);
        assert_eq!(progress_of(Some(&entry), Some(6), 3), ModelProgress::Applied);
        assert_eq!(progress_of(Some(&entry), Some(6), 4), parked);
        assert_eq!(progress_of(Some(&entry), Some(6), 9), parked, "it will queue behind it");
        assert_eq!(progress_of(None, Some(6), 6), ModelProgress::Applied);
        assert_eq!(progress_of(None, Some(6), 7), ModelProgress::Pending);
        assert_eq!(progress_of(None, None, 1), ModelProgress::Pending);
    }

    #[test]
    fn what_was_applied_before_a_pause_stays_applied() {
        let paused = BTreeSet::from(["orders".to_owned()]);
        let unavailable = UnavailableModels { building: BTreeSet::from(["new".to_owned()]), paused };
        assert_eq!(unavailable.restrict("orders", ModelProgress::Applied), ModelProgress::Applied);
        assert_eq!(unavailable.restrict("orders", ModelProgress::Pending), ModelProgress::Paused);
        assert_eq!(unavailable.restrict("others", ModelProgress::Pending), ModelProgress::Pending);
        // A cursor says nothing about a read model that no transaction has applied.
        assert_eq!(unavailable.restrict("new", ModelProgress::Applied), ModelProgress::Building);
    }
}
