//! The operator's hands on what is parked: list, show, replay, discard.
//!
//! Every change is a transaction that reads and writes the aggregate's cursor, as the applier's do: while new events come in, they queue
//! behind, and an aggregate leaves the desk only when nothing waits any more. Any process may do it; no session is needed.

use std::collections::HashMap;
use std::sync::Arc;

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{ClientSession, Database};
use tokio::time::Instant;

use super::Parked;
use super::document::{DISCARDED, WAITING, queue_id, read_event};
use crate::event::{AggregateId, Namespace};
use crate::view::config::Config;
use crate::view::cursor::Cursor;
use crate::view::delivered::{Body, Delivered};
use crate::view::error::Error;
use crate::view::gap::History;
use crate::view::plan::Planned;
use crate::view::projection::{Event, Projection, Statements};
use crate::view::stored::{Naming, cursor_statement, read_cursor};
use crate::view::transaction::{Failure, Store, first_error};
use crate::view::{CURSORS, PARKED_EVENTS, runs};

/// Events replayed in one transaction.
const PAGE: i64 = 200;
/// A replay that meets the applier at the cursor is run again this often.
const ATTEMPTS: u32 = 40;

/// What is parked in one pipeline.
pub struct Desk {
    store: Store,
    naming: Naming,
    models: Vec<Arc<dyn Projection>>,
    history: Option<History>,
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
enum Act {
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
        let mut replayed = 0;
        let mut upto = None;
        loop {
            match self.step(aggregate, namespace, model, &Act::Replay { upto }).await? {
                Step::Done { events, left: None } => return Ok(replayed + events),
                Step::Done { events, left: Some(_) } if upto.is_none() => replayed += events,
                Step::Done { .. } => {
                    let detail = "the events before it were applied".to_owned();
                    return Err(Error::StillRefused { model: model.to_owned(), detail });
                }
                Step::Refused { done: 0, detail } => {
                    return Err(Error::StillRefused { model: model.to_owned(), detail });
                }
                // Once more, and only so far.
                Step::Refused { done, .. } => upto = Some(done),
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
        let mut attempts = 0;
        loop {
            match self.transact(aggregate, namespace, model, act).await {
                Ok(step) => return Ok(step),
                Err(Failure::Transient(_)) if attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(5..50))).await;
                }
                // The next look at the cursor says what became of it.
                Err(Failure::Unknown) if attempts < ATTEMPTS => attempts += 1,
                Err(Failure::Unknown) => {
                    return Err(Error::TooLate { doing: "commit a replay", within: self.store.within });
                }
                Err(Failure::Refused { detail, .. }) => {
                    return Err(Error::StillRefused { model: model.to_owned(), detail });
                }
                Err(Failure::Transient(error) | Failure::Fatal(error)) => return Err(error),
            }
        }
    }

    async fn transact(
        &self,
        aggregate: &AggregateId,
        namespace: &Namespace,
        model: &str,
        act: &Act,
    ) -> Result<Step, Failure> {
        let deadline = Instant::now() + self.store.within;
        let mut session = self.store.begin().await?;
        let id = self.naming.id(namespace, aggregate);
        let ids = vec![Bson::Document(Document::try_from(&*id).expect("it was just written"))];
        let cursors = self.store.find_cursors(&mut session, ids).await?;
        let mut cursor = self.cursor(cursors, namespace, aggregate)?;
        let Some(parked) = cursor.parked.get(model).cloned() else {
            return Err(Failure::Fatal(Error::NotParked(model.to_owned())));
        };
        let limit = match act {
            Act::Replay { upto } => upto.unwrap_or(PAGE),
            Act::Discard(Discard::First) => 1,
            Act::Discard(Discard::All) => PAGE,
        };
        let waiting = self.waiting(&mut session, self.queue(aggregate, namespace, model, parked.head), limit).await?;
        if let Act::Replay { .. } = act
            && let Err((done, detail)) = self.replay(&mut session, model, &waiting).await?
        {
            return Ok(Step::Refused { done, detail });
        }
        self.take_from_queue(&mut session, &waiting, act).await?;
        let left = left_of(&parked, &waiting);
        match &left {
            Some(left) => drop(cursor.parked.insert(model.to_owned(), left.clone())),
            None => drop(cursor.parked.remove(model)),
        }
        let statement = cursor_statement(id, &cursor);
        self.store.own(&mut session, "write a cursor", runs::update_command(CURSORS, [&statement].into_iter())).await?;
        self.store.commit(&mut session, deadline).await?;
        Ok(Step::Done { events: waiting.len() as u64, left })
    }

    fn cursor(
        &self,
        mut cursors: HashMap<crate::view::identity::Identity, Cursor>,
        namespace: &Namespace,
        aggregate: &AggregateId,
    ) -> Result<Cursor, Failure> {
        let identity = self.naming.identity(namespace, aggregate);
        cursors.remove(&identity).ok_or_else(|| Failure::Fatal(Error::NotParked("(any)".to_owned())))
    }

    /// What waits from this number on.
    fn queue(&self, aggregate: &AggregateId, namespace: &Namespace, model: &str, head: i64) -> Document {
        let bound = |number: RawBson| {
            let id = queue_id(&self.naming, namespace, aggregate, model, number);
            Document::try_from(&*id).expect("it was just written")
        };
        doc! { "_id": { "$gte": bound(head.into()), "$lt": bound(RawBson::MaxKey) }, "state": WAITING }
    }

    async fn waiting(
        &self,
        session: &mut ClientSession,
        filter: Document,
        limit: i64,
    ) -> Result<Vec<(RawDocumentBuf, i64, Delivered)>, Failure> {
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

    /// Applies each, statement by statement. The inner error: how many went well before the one that did not, and why.
    async fn replay(
        &self,
        session: &mut ClientSession,
        model: &str,
        waiting: &[(RawDocumentBuf, i64, Delivered)],
    ) -> Result<Result<(), (i64, String)>, Failure> {
        let Some(projection) = self.models.iter().find(|known| known.name() == model) else {
            return Err(Failure::Fatal(Error::NoModel(model.to_owned())));
        };
        for (done, (_, _, event)) in waiting.iter().enumerate() {
            let done = i64::try_from(done).unwrap_or(i64::MAX);
            let document = match &event.body {
                Body::Document(document) => Some(document.clone()),
                Body::Oversize(_) | Body::Marker(_) => self.from_source(event).await?,
            };
            let Some(document) = document else {
                return Ok(Err((done, "its body is not kept, and the source does not have it".to_owned())));
            };
            let mut statements = Statements::default();
            if let Err(refused) = projection.apply(&Event::new(event, &document), &mut statements) {
                return Ok(Err((done, refused.to_string())));
            }
            if let Err(detail) = self.carry_out(session, statements).await? {
                return Ok(Err((done, detail)));
            }
        }
        Ok(Ok(()))
    }

    async fn carry_out(
        &self,
        session: &mut ClientSession,
        statements: Statements,
    ) -> Result<Result<(), String>, Failure> {
        let planned = |statement| Planned { at: 0, model: 0, statement };
        let planned: Vec<Planned> = statements.written.into_iter().map(planned).collect();
        for run in runs::strict(&planned) {
            let answer = self.store.database.run_raw_command(run.command(&planned)).session(&mut *session).await;
            let code = match answer {
                Ok(answer) => first_error(&answer).map(|(_, code)| code),
                Err(error) => match (crate::retry::mongo(&error), lease::code_of(&error)) {
                    (crate::retry::Verdict::Permanent, Some(code)) => Some(code),
                    (_, _) => return Err(self.store.failed("replay an event", error)),
                },
            };
            if let Some(code) = code {
                return Ok(Err(format!("the server refused a statement with error {code}")));
            }
        }
        Ok(Ok(()))
    }

    async fn from_source(&self, event: &Delivered) -> Result<Option<RawDocumentBuf>, Failure> {
        let Some(history) = &self.history else { return Ok(None) };
        history.document(&event.namespace, &event.key).await.map_err(Failure::Transient)
    }

    /// Replayed events are gone; discarded ones are kept under an id that nothing else will ever have.
    async fn take_from_queue(
        &self,
        session: &mut ClientSession,
        waiting: &[(RawDocumentBuf, i64, Delivered)],
        act: &Act,
    ) -> Result<(), Failure> {
        if waiting.is_empty() {
            return Ok(());
        }
        if let Act::Discard(_) = act {
            let kept: Vec<RawDocumentBuf> = waiting.iter().map(|(raw, ..)| discarded(raw)).collect();
            for documents in runs::sized(&kept) {
                let command = runs::insert_command(PARKED_EVENTS, documents.iter());
                self.store.own(session, "keep what is discarded", command).await?;
            }
        }
        let ids = waiting.iter().filter_map(|(raw, ..)| Bson::try_from(raw.get("_id").ok()??).ok());
        let filter = doc! { "_id": { "$in": ids.collect::<Vec<_>>() } };
        let command = doc! { "delete": PARKED_EVENTS, "deletes": [{ "q": filter, "limit": 0 }] };
        let command = RawDocumentBuf::try_from(&command).expect("it came out of BSON");
        self.store.own(session, "empty a queue", command).await
    }
}

fn discarded(raw: &RawDocumentBuf) -> RawDocumentBuf {
    let mut kept = RawDocumentBuf::new();
    for (name, value) in raw.iter().flatten() {
        match name.as_str() {
            "_id" => {
                let mut id = value.as_document().map(ToOwned::to_owned).unwrap_or_default();
                id.append(cstr!("discarded"), mongodb::bson::oid::ObjectId::new());
                kept.append(name, id);
            }
            "state" => kept.append(name, DISCARDED),
            _ => kept.append(name, value),
        }
    }
    kept.append(cstr!("discardedAt"), DateTime::now());
    kept
}

/// Where it waits after these are gone from the queue.
fn left_of(parked: &Parked, gone: &[(RawDocumentBuf, i64, Delivered)]) -> Option<Parked> {
    let head = gone.last().map_or(parked.next, |(_, number, _)| number + 1);
    (head < parked.next).then(|| Parked { head, ..parked.clone() })
}
