//! The store of parked aggregates: list, show, replay, discard.
//!
//! Every change is a transaction that reads and writes the cursor of the aggregate, as the applier does. New events queue behind the
//! others meanwhile, and an aggregate is parked until its queue is empty. Any process may do this; it needs no session.

use std::collections::BTreeSet;

use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{ClientSession, Database};
use tokio::time::Instant;

use super::document::{WAITING, parked_event_id, read_event};
use super::replay::{poison_entry, remaining_entry};
use super::{ParkReason, ParkedEntry};
use crate::event::{AggregateId, Namespace};
use crate::view::applier_config::Config;
use crate::view::cursor_document::{CursorIdScheme, StoredCursorFields, cursor_statement, read_cursor};
use crate::view::delivered_event::DeliveredEvent;
use crate::view::error::Error;
use crate::view::model_set::ModelSet;
use crate::view::source_documents::SourceDocuments;
use crate::view::transaction::{TransactionFailure, TransactionStore};
use crate::view::{CURSORS, PARKED_EVENTS, commands};

/// Events per transaction.
const PAGE_EVENTS: i64 = 200;
/// Entries of read models that no longer exist, in one go.
const MAX_FORGOTTEN: i64 = 100_000;
/// Retries of a transaction that conflicts with the applier at the cursor.
const MAX_ATTEMPTS: u32 = 40;

/// A queued event: the stored document, its number, and the event.
pub(super) type Queued = (RawDocumentBuf, i64, DeliveredEvent);

/// The parked aggregates of one pipeline.
pub struct ParkedStore {
    pub(super) store: TransactionStore,
    naming: CursorIdScheme,
    pub(super) models: ModelSet,
    pub(super) source: Option<SourceDocuments>,
}

/// An aggregate parked in one read model.
#[derive(Clone, Debug)]
pub struct ParkedAggregate {
    pub aggregate: AggregateId,
    /// The source collection, if it is part of the aggregate's identity.
    pub collection: Option<String>,
    pub model: String,
    pub parked: ParkedEntry,
}

/// A page of aggregates that only a pause has parked.
#[derive(Debug)]
pub struct PausedPage {
    pub aggregates: Vec<ParkedAggregate>,
    /// The id of the last cursor; `None` behind the last page.
    pub last: Option<Bson>,
}

/// Which queued events are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardScope {
    /// The event that cannot be applied; the next one takes its place until it is replayed.
    First,
    /// The whole queue.
    All,
}

/// Result of one transaction.
enum ParkedQueueResult {
    /// So many events were replayed or discarded; `remaining` is the entry now.
    Done {
        events: u64,
        remaining: Option<ParkedEntry>,
    },
    Refused {
        done: i64,
        detail: String,
    },
}

/// What is done with the first events of the queue.
pub(super) enum ParkedQueueOperation {
    Replay {
        upto: Option<i64>,
    },
    /// Replays what a pause has queued. `refused`: how many events before the one that cannot be applied, and why; the entry is poison then.
    Resume {
        refused: Option<(i64, String)>,
    },
    Discard(DiscardScope),
    /// The read model no longer exists.
    Forget,
}

impl ParkedStore {
    pub fn new(
        database: Database,
        pipeline: impl Into<String>,
        by_collection: bool,
        models: ModelSet,
        source: Option<SourceDocuments>,
    ) -> Self {
        let store = TransactionStore { database, within: Config::default().transaction_within };
        Self { store, naming: CursorIdScheme { pipeline: pipeline.into(), by_collection }, models, source }
    }

    /// Parked aggregates; at most `limit`.
    pub async fn list(&self, limit: i64) -> Result<Vec<ParkedAggregate>, Error> {
        Ok(self.list_matching(doc! {}, limit).await?.0)
    }

    /// Entries that only a pause has parked; of at most `limit` cursors behind `after`, in the order of their ids.
    pub async fn list_paused(&self, after: Option<&Bson>, limit: i64) -> Result<PausedPage, Error> {
        let reasons = doc! { "$map": { "input": { "$objectToArray": "$parked" }, "in": "$$this.v.reason" } };
        let mut is_paused = doc! { "$expr": { "$in": [ParkReason::Paused.as_str(), reasons] } };
        if let Some(after) = after {
            is_paused.insert("_id", doc! { "$gt": after });
        }
        let (mut aggregates, last) = self.list_matching(is_paused, limit).await?;
        aggregates.retain(|waiting| waiting.parked.reason == ParkReason::Paused);
        Ok(PausedPage { aggregates, last })
    }

    /// Sorted by the ids of the cursors; with the last id.
    async fn list_matching(
        &self,
        mut filter: Document,
        limit: i64,
    ) -> Result<(Vec<ParkedAggregate>, Option<Bson>), Error> {
        let failed = |error| self.store.store_error("list parked aggregates", error);
        filter.extend(doc! { "_id.pipeline": &self.naming.pipeline, "parked": { "$exists": true } });
        let cursors = self.store.database.collection::<RawDocumentBuf>(CURSORS);
        let query = cursors.find(filter).sort(doc! { "_id": 1 }).limit(limit).read_concern(ReadConcern::majority());
        let mut found = query.await.map_err(failed)?;
        let (mut list, mut last) = (vec![], None);
        while found.advance().await.map_err(failed)? {
            let id = found.current().get_document("_id").ok();
            last = id.and_then(|id| Document::try_from(id).ok()).map(Bson::Document);
            let aggregate =
                id.and_then(|id| Bson::try_from(id.get("aggregate").ok()??).ok()).and_then(AggregateId::new);
            let collection = id.and_then(|id| id.get_str("collection").ok()).map(str::to_owned);
            let (_, cursor) = read_cursor(found.current())?;
            let Some(aggregate) = aggregate else { continue };
            let queued = |(model, parked)| ParkedAggregate {
                aggregate: aggregate.clone(),
                collection: collection.clone(),
                model,
                parked,
            };
            list.extend(cursor.parked.into_iter().map(queued));
        }
        Ok((list, last))
    }

    /// Queued events, in order; at most `limit`.
    pub async fn list_events(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        limit: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        let failed = |error| self.store.store_error("list parked events", error);
        let events = self.store.database.collection::<RawDocumentBuf>(PARKED_EVENTS);
        let filter = self.queue_filter(aggregate, namespace, model, 0);
        let query = events.find(filter).sort(doc! { "_id": 1 }).limit(limit);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let mut found =
            query.read_concern(ReadConcern::majority()).selection_criteria(primary).await.map_err(failed)?;
        let mut list = vec![];
        while found.advance().await.map_err(failed)? {
            list.push(read_event(found.current())?.1);
        }
        Ok(list)
    }

    /// Replays the queue in order and returns the number of events. Stops at the first event that still cannot be applied; the events
    /// before it stay applied.
    pub async fn retry(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str) -> Result<u64, Error> {
        let still = |detail| Error::ReplayRefused { model: model.to_owned(), detail };
        let mut replayed = 0;
        let mut refused: Option<(i64, String)> = None;
        loop {
            let upto = refused.as_ref().map(|(done, _)| *done);
            match (
                self.run_step(aggregate, namespace, model, &ParkedQueueOperation::Replay { upto }).await?,
                refused.take(),
            ) {
                (ParkedQueueResult::Done { events, remaining: None }, _) => return Ok(replayed + events),
                (ParkedQueueResult::Done { .. }, Some((_, detail)))
                | (ParkedQueueResult::Refused { done: 0, detail }, _) => {
                    return Err(still(detail));
                }
                (ParkedQueueResult::Done { events, remaining: Some(_) }, None) => replayed += events,
                // Repeat with only the events that succeeded, as this transaction is rolled back.
                (ParkedQueueResult::Refused { done, detail }, _) => refused = Some((done, detail)),
            }
        }
    }

    /// Replays what a pause has queued, and returns the number of events. An event that cannot be applied parks the aggregate as poison. An entry
    /// with another reason is left to an operator.
    pub async fn resume(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str) -> Result<u64, Error> {
        let (mut replayed, mut refused) = (0, None);
        loop {
            let is_last = refused.is_some();
            match self
                .run_step(aggregate, namespace, model, &ParkedQueueOperation::Resume { refused: refused.take() })
                .await
            {
                Ok(ParkedQueueResult::Done { events, remaining }) => {
                    replayed += events;
                    if is_last || remaining.is_none() {
                        return Ok(replayed);
                    }
                }
                // Repeat with only the events that succeeded, as this transaction is rolled back.
                Ok(ParkedQueueResult::Refused { done, detail }) => refused = Some((done, detail)),
                // Somebody else has replayed it, or its reason is another one now.
                Err(Error::NotParked(_)) => return Ok(replayed),
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes events from the queue for good; they are kept and marked as discarded. Returns how many.
    pub async fn discard(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        what: DiscardScope,
    ) -> Result<u64, Error> {
        let mut to_discarded = 0;
        loop {
            match self.run_step(aggregate, namespace, model, &ParkedQueueOperation::Discard(what)).await? {
                ParkedQueueResult::Done { events, remaining: Some(_) } if what == DiscardScope::All => {
                    to_discarded += events
                }
                ParkedQueueResult::Done { events, .. } => return Ok(to_discarded + events),
                ParkedQueueResult::Refused { detail, .. } => {
                    return Err(Error::ReplayRefused { model: model.to_owned(), detail });
                }
            }
        }
    }

    /// Removes the entries and events of read models other than these, which no longer exist. Returns how many entries there were.
    pub async fn forget_others(&self, names: &BTreeSet<String>) -> Result<u64, Error> {
        let mut forgotten = 0;
        for ParkedAggregate { aggregate, collection, model, .. } in self.list(MAX_FORGOTTEN).await? {
            if names.contains(&model) {
                continue;
            }
            let namespace = Namespace::new("", collection.unwrap_or_default());
            loop {
                let operation = ParkedQueueOperation::Forget;
                match self.run_step(&aggregate, &namespace, &model, &operation).await? {
                    ParkedQueueResult::Done { remaining: Some(_), .. } => {}
                    ParkedQueueResult::Done { .. } | ParkedQueueResult::Refused { .. } => break,
                }
            }
            forgotten += 1;
        }
        Ok(forgotten)
    }

    async fn run_step(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &ParkedQueueOperation,
    ) -> Result<ParkedQueueResult, Error> {
        let (mut attempts, mut in_doubt) = (0, false);
        loop {
            match self.run_transaction(aggregate, namespace, model, operation).await {
                Ok(run_step) => return Ok(run_step),
                // The commit with the unknown result had emptied the queue.
                Err(TransactionFailure::Fatal(Error::NotParked(_))) if in_doubt => {
                    return Ok(ParkedQueueResult::Done { events: 0, remaining: None });
                }
                Err(TransactionFailure::Transient(_)) if attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(5..50))).await;
                }
                // The cursor tells on the next attempt whether it was committed.
                Err(TransactionFailure::Unknown) if attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    in_doubt = true;
                }
                Err(TransactionFailure::Unknown) => {
                    return Err(Error::Timeout { action: "commit the replay", within: self.store.within });
                }
                Err(
                    TransactionFailure::Transient(error)
                    | TransactionFailure::Fatal(error)
                    | TransactionFailure::Refused { error, .. },
                ) => {
                    return Err(error);
                }
            }
        }
    }

    /// Runs one transaction; a refused replay is rolled back at once.
    async fn run_transaction(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &ParkedQueueOperation,
    ) -> Result<ParkedQueueResult, TransactionFailure> {
        let deadline = Instant::now() + self.store.within;
        let mut session = self.store.begin().await?;
        let run_step = self.write(&mut session, aggregate, namespace, model, operation).await;
        match run_step {
            Ok(ParkedQueueResult::Done { .. }) => self.store.commit(&mut session, deadline).await?,
            Ok(ParkedQueueResult::Refused { .. }) | Err(_) => drop(session.abort_transaction().await),
        }
        run_step
    }

    async fn write(
        &self,
        session: &mut ClientSession,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &ParkedQueueOperation,
    ) -> Result<ParkedQueueResult, TransactionFailure> {
        let id = self.naming.id(namespace, aggregate);
        // This transaction also writes the cursor, so it conflicts with a concurrent one of the applier.
        let mut cursors = self.store.find_cursors(session, std::slice::from_ref(&id)).await?;
        let mut cursor = cursors.remove(&self.naming.identity(namespace, aggregate)).unwrap_or_default();
        if cursor.generation > self.models.generation {
            return Err(TransactionFailure::Transient(Error::Outdated));
        }
        let stored = StoredCursorFields::of(&cursor);
        let Some(parked) = cursor.parked.get(model).cloned() else {
            return Err(TransactionFailure::Fatal(Error::NotParked(model.to_owned())));
        };
        let is_resume = matches!(operation, ParkedQueueOperation::Resume { .. });
        if is_resume && parked.reason != ParkReason::Paused {
            return Err(TransactionFailure::Fatal(Error::NotParked(model.to_owned())));
        }
        if parked.reason == ParkReason::NotBuilt && matches!(operation, ParkedQueueOperation::Replay { .. }) {
            // Events before the first one of the queue are missing.
            let detail = "earlier events are missing; `headwater read-model rebuild` brings them back".to_owned();
            return Ok(ParkedQueueResult::Refused { done: 0, detail });
        }
        let limit = match operation {
            ParkedQueueOperation::Resume { refused: Some((done, _)) } => done + 1,
            ParkedQueueOperation::Resume { refused: None } => PAGE_EVENTS,
            ParkedQueueOperation::Replay { upto } => upto.unwrap_or(PAGE_EVENTS),
            ParkedQueueOperation::Discard(DiscardScope::First) => 1,
            ParkedQueueOperation::Discard(DiscardScope::All) | ParkedQueueOperation::Forget => PAGE_EVENTS,
        };
        let mut queued =
            self.read_queue(session, self.queue_filter(aggregate, namespace, model, parked.head), limit).await?;
        let poison = match operation {
            ParkedQueueOperation::Resume { refused: Some((done, detail)) } if queued.len() as i64 == done + 1 => {
                queued.pop().map(|(_, number, event)| poison_entry(&parked, number, &event, detail))
            }
            _ => None,
        };
        if (is_resume || matches!(operation, ParkedQueueOperation::Replay { .. }))
            && let Err((done, detail)) = self.replay(session, model, &queued).await?
        {
            return Ok(ParkedQueueResult::Refused { done, detail });
        }
        self.remove_from_queue(session, &queued, operation).await?;
        let remaining = poison.or_else(|| remaining_entry(&parked, &queued));
        match &remaining {
            Some(remaining) => drop(cursor.parked.insert(model.to_owned(), remaining.clone())),
            None => drop(cursor.parked.remove(model)),
        }
        let statement = cursor_statement(&id, &cursor, stored, &self.models);
        self.store
            .run_own_command(session, "write cursor", commands::update_command(CURSORS, [&statement].into_iter()))
            .await?;
        Ok(ParkedQueueResult::Done { events: queued.len() as u64, remaining })
    }

    /// Queued events from this number on.
    fn queue_filter(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str, head: i64) -> Document {
        let bound = |number: RawBson| {
            let id = parked_event_id(&self.naming, namespace, aggregate, model, number);
            Document::try_from(&*id).expect("it was just written")
        };
        doc! { "_id": { "$gte": bound(head.into()), "$lt": bound(RawBson::MaxKey) }, "state": WAITING }
    }

    async fn read_queue(
        &self,
        session: &mut ClientSession,
        filter: Document,
        limit: i64,
    ) -> Result<Vec<Queued>, TransactionFailure> {
        let failed = |error| self.store.classify_error("read parked events", error);
        let events = self.store.database.collection::<RawDocumentBuf>(PARKED_EVENTS);
        let query = events.find(filter).sort(doc! { "_id": 1 }).limit(limit);
        let mut found = query.session(&mut *session).await.map_err(failed)?;
        let mut queued = vec![];
        while found.advance(session).await.map_err(failed)? {
            let raw = found.current().to_owned();
            let (number, event) = read_event(&raw).map_err(TransactionFailure::Fatal)?;
            queued.push((raw, number, event));
        }
        Ok(queued)
    }
}
