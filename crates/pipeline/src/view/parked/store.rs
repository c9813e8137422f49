//! The operator's hands on what is parked: list, show, replay, discard.
//!
//! Every change is a transaction that reads and writes the aggregate's cursor, as the applier's do: while new events come in, they queue
//! behind, and an aggregate leaves the desk only when nothing waits any more. Any process may do it; no session is needed.

use std::sync::Arc;

use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{ClientSession, Database};
use tokio::time::Instant;

use super::ParkedEntry;
use super::document::{WAITING, parked_event_id, read_event};
use super::replay::remaining_entry;
use crate::event::{AggregateId, Namespace};
use crate::view::config::Config;
use crate::view::cursor_document::{CursorNaming, StoredFlags, cursor_statement, read_cursor};
use crate::view::delivered_event::DeliveredEvent;
use crate::view::error::Error;
use crate::view::projection::Projection;
use crate::view::source_history::SourceHistory;
use crate::view::transaction::{TransactionFailure, TransactionStore};
use crate::view::{CURSORS, PARKED_EVENTS, commands};

/// Events replayed in one transaction.
const PAGE_EVENTS: i64 = 200;
/// A replay that meets the applier at the cursor is run again this often.
const MAX_ATTEMPTS: u32 = 40;

/// An event as it waits: as it is stored, its number, and what it says.
pub(super) type Queued = (RawDocumentBuf, i64, DeliveredEvent);

/// What is parked in one pipeline.
pub struct ParkedStore {
    pub(super) store: TransactionStore,
    naming: CursorNaming,
    pub(super) models: Vec<Arc<dyn Projection>>,
    pub(super) history: Option<SourceHistory>,
}

/// An aggregate that waits in one read model.
#[derive(Clone, Debug)]
pub struct ParkedAggregate {
    pub aggregate: AggregateId,
    /// The source's collection, where it is part of the aggregate's name.
    pub collection: Option<String>,
    pub model: String,
    pub parked: ParkedEntry,
}

/// How much is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardScope {
    /// The event it waits behind; the next in the queue takes its place until it is replayed.
    First,
    /// All that waits.
    All,
}

/// What one transaction of the desk came to.
enum QueueStep {
    /// So many were replayed or discarded, and this is where it waits now.
    Done {
        events: u64,
        remaining: Option<ParkedEntry>,
    },
    Refused {
        done: i64,
        detail: String,
    },
}

/// What is to be done with the queue's first events.
pub(super) enum QueueOperation {
    Replay { upto: Option<i64> },
    Discard(DiscardScope),
}

impl ParkedStore {
    pub fn new(
        database: Database,
        pipeline: impl Into<String>,
        by_collection: bool,
        models: Vec<Arc<dyn Projection>>,
        history: Option<SourceHistory>,
    ) -> Self {
        let store = TransactionStore { database, within: Config::default().transaction_within };
        Self { store, naming: CursorNaming { pipeline: pipeline.into(), by_collection }, models, history }
    }

    /// What is parked; at most `limit`.
    pub async fn list(&self, limit: i64) -> Result<Vec<ParkedAggregate>, Error> {
        let failed = |error| self.store.store_error("list what is parked", error);
        let filter = doc! { "_id.pipeline": &self.naming.pipeline, "parked": { "$exists": true } };
        let cursors = self.store.database.collection::<RawDocumentBuf>(CURSORS);
        let mut found =
            cursors.find(filter).limit(limit).read_concern(ReadConcern::majority()).await.map_err(failed)?;
        let mut list = vec![];
        while found.advance().await.map_err(failed)? {
            let id = found.current().get_document("_id").ok();
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
        Ok(list)
    }

    /// The events that wait, in order; at most `limit`.
    pub async fn list_events(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        limit: i64,
    ) -> Result<Vec<DeliveredEvent>, Error> {
        let failed = |error| self.store.store_error("show what is parked", error);
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

    /// Replays all that waits, in order; returns how many events that were. At the first that still cannot be applied it stops, with
    /// what came before it applied.
    pub async fn retry(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str) -> Result<u64, Error> {
        let still = |detail| Error::ReplayRefused { model: model.to_owned(), detail };
        let mut replayed = 0;
        let mut refused: Option<(i64, String)> = None;
        loop {
            let upto = refused.as_ref().map(|(done, _)| *done);
            match (self.run_step(aggregate, namespace, model, &QueueOperation::Replay { upto }).await?, refused.take())
            {
                (QueueStep::Done { events, remaining: None }, _) => return Ok(replayed + events),
                (QueueStep::Done { .. }, Some((_, detail))) | (QueueStep::Refused { done: 0, detail }, _) => {
                    return Err(still(detail));
                }
                (QueueStep::Done { events, remaining: Some(_) }, None) => replayed += events,
                // Once more, and only so far.
                (QueueStep::Refused { done, detail }, _) => refused = Some((done, detail)),
            }
        }
    }

    /// Puts events aside for good; they are kept, and marked as discarded. Returns how many.
    pub async fn discard(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        what: DiscardScope,
    ) -> Result<u64, Error> {
        let mut to_discarded = 0;
        loop {
            match self.run_step(aggregate, namespace, model, &QueueOperation::Discard(what)).await? {
                QueueStep::Done { events, remaining: Some(_) } if what == DiscardScope::All => to_discarded += events,
                QueueStep::Done { events, .. } => return Ok(to_discarded + events),
                QueueStep::Refused { detail, .. } => {
                    return Err(Error::ReplayRefused { model: model.to_owned(), detail });
                }
            }
        }
    }

    async fn run_step(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &QueueOperation,
    ) -> Result<QueueStep, Error> {
        let (mut attempts, mut in_doubt) = (0, false);
        loop {
            match self.run_transaction(aggregate, namespace, model, operation).await {
                Ok(run_step) => return Ok(run_step),
                // The commit nobody knew of had emptied the queue.
                Err(TransactionFailure::Fatal(Error::NotParked(_))) if in_doubt => {
                    return Ok(QueueStep::Done { events: 0, remaining: None });
                }
                Err(TransactionFailure::Transient(_)) if attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(5..50))).await;
                }
                // The next look at the cursor says what became of it.
                Err(TransactionFailure::Unknown) if attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    in_doubt = true;
                }
                Err(TransactionFailure::Unknown) => {
                    return Err(Error::Timeout { doing: "commit a replay", within: self.store.within });
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

    /// One transaction; what is not to stay is taken back at once.
    async fn run_transaction(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &QueueOperation,
    ) -> Result<QueueStep, TransactionFailure> {
        let deadline = Instant::now() + self.store.within;
        let mut session = self.store.begin().await?;
        let run_step = self.write(&mut session, aggregate, namespace, model, operation).await;
        match run_step {
            Ok(QueueStep::Done { .. }) => self.store.commit(&mut session, deadline).await?,
            Ok(QueueStep::Refused { .. }) | Err(_) => drop(session.abort_transaction().await),
        }
        run_step
    }

    async fn write(
        &self,
        session: &mut ClientSession,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        operation: &QueueOperation,
    ) -> Result<QueueStep, TransactionFailure> {
        let id = self.naming.id(namespace, aggregate);
        let mut cursors = self.store.find_cursors(session, std::slice::from_ref(&id)).await?;
        let mut cursor = cursors.remove(&self.naming.identity(namespace, aggregate)).unwrap_or_default();
        let stored = StoredFlags::of(&cursor);
        let Some(parked) = cursor.parked.get(model).cloned() else {
            return Err(TransactionFailure::Fatal(Error::NotParked(model.to_owned())));
        };
        let limit = match operation {
            QueueOperation::Replay { upto } => upto.unwrap_or(PAGE_EVENTS),
            QueueOperation::Discard(DiscardScope::First) => 1,
            QueueOperation::Discard(DiscardScope::All) => PAGE_EVENTS,
        };
        let queued =
            self.read_queue(session, self.queue_filter(aggregate, namespace, model, parked.head), limit).await?;
        if let QueueOperation::Replay { .. } = operation
            && let Err((done, detail)) = self.replay(session, model, &queued).await?
        {
            return Ok(QueueStep::Refused { done, detail });
        }
        self.remove_from_queue(session, &queued, operation).await?;
        let remaining = remaining_entry(&parked, &queued);
        match &remaining {
            Some(remaining) => drop(cursor.parked.insert(model.to_owned(), remaining.clone())),
            None => drop(cursor.parked.remove(model)),
        }
        let statement = cursor_statement(&id, &cursor, stored);
        self.store
            .run_own_command(session, "write a cursor", commands::update_command(CURSORS, [&statement].into_iter()))
            .await?;
        Ok(QueueStep::Done { events: queued.len() as u64, remaining })
    }

    /// What waits from this number on.
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
        let failed = |error| self.store.classify_error("read what is parked", error);
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
