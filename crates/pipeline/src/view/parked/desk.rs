//! The operator's hands on what is parked: list, show, replay, discard.
//!
//! Every change is a transaction that reads and writes the aggregate's cursor, as the applier's do: while new events come in, they queue
//! behind, and an aggregate leaves the desk only when nothing waits any more. Any process may do it; no session is needed.

use std::sync::Arc;

use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{ClientSession, Database};
use tokio::time::Instant;

use super::Parked;
use super::document::{WAITING, queue_id, read_event};
use super::replay::left_of;
use crate::event::{AggregateId, Namespace};
use crate::view::config::Config;
use crate::view::delivered::Delivered;
use crate::view::error::Error;
use crate::view::gap::History;
use crate::view::projection::Projection;
use crate::view::stored::{Had, Naming, cursor_statement, read_cursor};
use crate::view::transaction::{Failure, Store};
use crate::view::{CURSORS, PARKED_EVENTS, runs};

/// Events replayed in one transaction.
const PAGE: i64 = 200;
/// A replay that meets the applier at the cursor is run again this often.
const ATTEMPTS: u32 = 40;

/// An event as it waits: as it is stored, its number, and what it says.
pub(super) type Queued = (RawDocumentBuf, i64, Delivered);

/// What is parked in one pipeline.
pub struct Desk {
    pub(super) store: Store,
    naming: Naming,
    pub(super) models: Vec<Arc<dyn Projection>>,
    pub(super) history: Option<History>,
}

/// An aggregate that waits in one read model.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub aggregate: AggregateId,
    /// The source's collection, where it is part of the aggregate's name.
    pub collection: Option<String>,
    pub model: String,
    pub parked: Parked,
}

/// How much is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The event it waits behind; the next in the queue takes its place until it is replayed.
    First,
    /// All that waits.
    All,
}

/// What one transaction of the desk came to.
enum Step {
    /// So many were replayed or discarded, and this is where it waits now.
    Done {
        events: u64,
        left: Option<Parked>,
    },
    Refused {
        done: i64,
        detail: String,
    },
}

/// What is to be done with the queue's first events.
pub(super) enum Act {
    Replay { upto: Option<i64> },
    Discard(Discard),
}

impl Desk {
    pub fn new(
        database: Database,
        pipeline: impl Into<String>,
        by_collection: bool,
        models: Vec<Arc<dyn Projection>>,
        history: Option<History>,
    ) -> Self {
        let store = Store { database, within: Config::default().transaction_within };
        Self { store, naming: Naming { pipeline: pipeline.into(), by_collection }, models, history }
    }

    /// What is parked; at most `limit`.
    pub async fn list(&self, limit: i64) -> Result<Vec<Waiting>, Error> {
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
            let waiting = |(model, parked)| Waiting {
                aggregate: aggregate.clone(),
                collection: collection.clone(),
                model,
                parked,
            };
            list.extend(cursor.parked.into_iter().map(waiting));
        }
        Ok(list)
    }

    /// The events that wait, in order; at most `limit`.
    pub async fn show(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        limit: i64,
    ) -> Result<Vec<Delivered>, Error> {
        let failed = |error| self.store.store_error("show what is parked", error);
        let events = self.store.database.collection::<RawDocumentBuf>(PARKED_EVENTS);
        let filter = self.queue(aggregate, namespace, model, 0);
        let asked = events.find(filter).sort(doc! { "_id": 1 }).limit(limit);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let mut found =
            asked.read_concern(ReadConcern::majority()).selection_criteria(primary).await.map_err(failed)?;
        let mut list = vec![];
        while found.advance().await.map_err(failed)? {
            list.push(read_event(found.current())?.1);
        }
        Ok(list)
    }

    /// Replays all that waits, in order; returns how many events that were. At the first that still cannot be applied it stops, with
    /// what came before it applied.
    pub async fn retry(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str) -> Result<u64, Error> {
        let still = |detail| Error::StillRefused { model: model.to_owned(), detail };
        let mut replayed = 0;
        let mut refused: Option<(i64, String)> = None;
        loop {
            let upto = refused.as_ref().map(|(done, _)| *done);
            match (self.step(aggregate, namespace, model, &Act::Replay { upto }).await?, refused.take()) {
                (Step::Done { events, left: None }, _) => return Ok(replayed + events),
                (Step::Done { .. }, Some((_, detail))) | (Step::Refused { done: 0, detail }, _) => {
                    return Err(still(detail));
                }
                (Step::Done { events, left: Some(_) }, None) => replayed += events,
                // Once more, and only so far.
                (Step::Refused { done, detail }, _) => refused = Some((done, detail)),
            }
        }
    }

    /// Puts events aside for good; they are kept, and marked as discarded. Returns how many.
    pub async fn discard(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        what: Discard,
    ) -> Result<u64, Error> {
        let mut discarded = 0;
        loop {
            match self.step(aggregate, namespace, model, &Act::Discard(what)).await? {
                Step::Done { events, left: Some(_) } if what == Discard::All => discarded += events,
                Step::Done { events, .. } => return Ok(discarded + events),
                Step::Refused { detail, .. } => return Err(Error::StillRefused { model: model.to_owned(), detail }),
            }
        }
    }

    async fn step(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        act: &Act,
    ) -> Result<Step, Error> {
        let (mut attempts, mut in_doubt) = (0, false);
        loop {
            match self.transact(aggregate, namespace, model, act).await {
                Ok(step) => return Ok(step),
                // The commit nobody knew of had emptied the queue.
                Err(Failure::Fatal(Error::NotParked(_))) if in_doubt => {
                    return Ok(Step::Done { events: 0, left: None });
                }
                Err(Failure::Transient(_)) if attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(5..50))).await;
                }
                // The next look at the cursor says what became of it.
                Err(Failure::Unknown) if attempts < ATTEMPTS => {
                    attempts += 1;
                    in_doubt = true;
                }
                Err(Failure::Unknown) => {
                    return Err(Error::TooLate { doing: "commit a replay", within: self.store.within });
                }
                Err(Failure::Transient(error) | Failure::Fatal(error) | Failure::Refused { error, .. }) => {
                    return Err(error);
                }
            }
        }
    }

    /// One transaction; what is not to stay is taken back at once.
    async fn transact(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        act: &Act,
    ) -> Result<Step, Failure> {
        let deadline = Instant::now() + self.store.within;
        let mut session = self.store.begin().await?;
        let step = self.write(&mut session, aggregate, namespace, model, act).await;
        match step {
            Ok(Step::Done { .. }) => self.store.commit(&mut session, deadline).await?,
            Ok(Step::Refused { .. }) | Err(_) => drop(session.abort_transaction().await),
        }
        step
    }

    async fn write(
        &self,
        session: &mut ClientSession,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        act: &Act,
    ) -> Result<Step, Failure> {
        let id = self.naming.id(namespace, aggregate);
        let mut cursors = self.store.find_cursors(session, std::slice::from_ref(&id)).await?;
        let mut cursor = cursors.remove(&self.naming.identity(namespace, aggregate)).unwrap_or_default();
        let had = Had::of(&cursor);
        let Some(parked) = cursor.parked.get(model).cloned() else {
            return Err(Failure::Fatal(Error::NotParked(model.to_owned())));
        };
        let limit = match act {
            Act::Replay { upto } => upto.unwrap_or(PAGE),
            Act::Discard(Discard::First) => 1,
            Act::Discard(Discard::All) => PAGE,
        };
        let waiting = self.waiting(session, self.queue(aggregate, namespace, model, parked.head), limit).await?;
        if let Act::Replay { .. } = act
            && let Err((done, detail)) = self.replay(session, model, &waiting).await?
        {
            return Ok(Step::Refused { done, detail });
        }
        self.take_from_queue(session, &waiting, act).await?;
        let left = left_of(&parked, &waiting);
        match &left {
            Some(left) => drop(cursor.parked.insert(model.to_owned(), left.clone())),
            None => drop(cursor.parked.remove(model)),
        }
        let statement = cursor_statement(&id, &cursor, had);
        self.store.own(session, "write a cursor", runs::update_command(CURSORS, [&statement].into_iter())).await?;
        Ok(Step::Done { events: waiting.len() as u64, left })
    }

    /// What waits from this number on.
    fn queue(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str, head: i64) -> Document {
        let bound = |number: RawBson| {
            let id = queue_id(&self.naming, namespace, aggregate, model, number);
            Document::try_from(&*id).expect("it was just written")
        };
        doc! { "_id": { "$gte": bound(head.into()), "$lt": bound(RawBson::MaxKey) }, "state": WAITING }
    }

    async fn waiting(&self, session: &mut ClientSession, filter: Document, limit: i64) -> Result<Vec<Queued>, Failure> {
        let failed = |error| self.store.failed("read what is parked", error);
        let events = self.store.database.collection::<RawDocumentBuf>(PARKED_EVENTS);
        let asked = events.find(filter).sort(doc! { "_id": 1 }).limit(limit);
        let mut found = asked.session(&mut *session).await.map_err(failed)?;
        let mut waiting = vec![];
        while found.advance(session).await.map_err(failed)? {
            let raw = found.current().to_owned();
            let (number, event) = read_event(&raw).map_err(Failure::Fatal)?;
            waiting.push((raw, number, event));
        }
        Ok(waiting)
    }
}
