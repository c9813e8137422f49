//! Folds events into the documents that a read model would have, away from its collection.
//!
//! The server evaluates the statements of the model itself, so a fold cannot disagree with the applier about an operator. It runs on a scratch
//! collection in one transaction that is read and then aborted: nothing remains. A fold that is too large for one transaction is committed, part
//! by part, to a collection of its own that is dropped afterwards. Never writes a cursor or a document of the model.

mod scratch;

use std::sync::Arc;
use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{RawDocument, RawDocumentBuf, doc};
use tokio::time::{Instant, timeout_at};

use super::commands::{self, WriteCommand};
use super::delivered_event::{DeliveredEvent, EventBody};
use super::error::Error;
use super::projection::{Projection, ProjectionEvent, project};
use super::read_model::ReadModel;
use super::statement::WriteStatement;
use super::transaction::{TransactionFailure, TransactionStore, first_write_error};
use super::upcast::UpcastedEvents;
use crate::error_policy::{self, ErrorClass};
use crate::event::AggregateId;
pub use scratch::FoldScratch;

/// As many statements and bytes as the applier puts into one transaction.
const MAX_STATEMENTS: usize = 1_000;
const MAX_BYTES: usize = 8 * 1024 * 1024;
const MAX_ATTEMPTS: u32 = 20;

/// Why events could not be folded.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    #[error("event {} cannot be applied: {}", .0.number, .0.detail)]
    Refused(RefusedEvent),
    #[error(transparent)]
    Store(#[from] Error),
}

/// An event that the applier would park.
#[derive(Clone, Debug)]
pub struct RefusedEvent {
    pub aggregate: AggregateId,
    pub sequence: Option<i64>,
    pub event_type: Option<String>,
    /// Its number in the fold, from 1.
    pub number: usize,
    /// For operators; contains no values.
    pub detail: String,
}

/// A fold of one read model, to which events are added in order.
pub struct Fold<'a> {
    scratch: &'a FoldScratch,
    model: &'a ReadModel,
    statements: Vec<FoldStatement>,
    bytes: usize,
    events: usize,
    /// The collection with the part that is committed.
    committed: Option<Arc<str>>,
}

/// A statement and the event it comes from.
struct FoldStatement {
    event: RefusedEvent,
    statement: WriteStatement,
}

impl AsRef<WriteStatement> for FoldStatement {
    fn as_ref(&self) -> &WriteStatement {
        &self.statement
    }
}

/// How a transaction of a fold ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransactionEnd {
    ReadAndAbort,
    Commit,
}

impl<'a> Fold<'a> {
    fn new(scratch: &'a FoldScratch, model: &'a ReadModel) -> Self {
        Self { scratch, model, statements: vec![], bytes: 0, events: 0, committed: None }
    }

    /// Adds the next event. Events that the model does not handle change nothing.
    pub async fn add(&mut self, event: &DeliveredEvent) -> Result<(), FoldError> {
        self.events += 1;
        if !self.model.handles(event) {
            return Ok(());
        }
        let refused = |detail| RefusedEvent {
            aggregate: event.aggregate.clone(),
            sequence: event.sequence,
            event_type: event.event_type.clone(),
            number: self.events,
            detail,
        };
        let EventBody::Document(document) = &event.body else {
            return Err(FoldError::Refused(refused("the event has no body".to_owned())));
        };
        let upcasted = UpcastedEvents::evaluate_one(&self.scratch.store.database, self.model, event).await;
        let upcasted = upcasted.map_err(|source| self.scratch.store.store_error(ACTION, source))?;
        let upcasted = upcasted.get(0, self.model, event).cloned().transpose();
        let upcasted = upcasted.map_err(|detail| FoldError::Refused(refused(detail)))?;
        let document: &RawDocument = upcasted.as_deref().map_or(document, |upcasted| upcasted);
        let projected = project(self.model, &ProjectionEvent::new(event, document));
        let projected = projected.map_err(|detail| FoldError::Refused(refused(detail)))?;
        let target = self.committed.as_ref().unwrap_or(&self.scratch.collection);
        for statement in projected.list {
            self.bytes += statement.raw.as_bytes().len();
            let (event, statement) = (refused(String::new()), statement.retarget(target));
            self.statements.push(FoldStatement { event, statement });
        }
        if self.statements.len() >= MAX_STATEMENTS || self.bytes >= MAX_BYTES {
            self.commit_part().await?;
        }
        Ok(())
    }

    /// The documents, in no order.
    pub async fn finish(mut self) -> Result<Vec<RawDocumentBuf>, FoldError> {
        if self.committed.is_none() {
            return self.run(TransactionEnd::ReadAndAbort).await;
        }
        self.commit_part().await?;
        let Some(collection) = &self.committed else { return Ok(vec![]) };
        let documents = self.scratch.read_all(collection).await;
        self.discard().await;
        Ok(documents?)
    }

    /// The collection with the documents; the caller drops it.
    pub async fn finish_in_collection(mut self) -> Result<Arc<str>, FoldError> {
        self.commit_part().await?;
        Ok(self.committed.take().unwrap_or_else(|| "".into()))
    }

    /// Ends a fold whose documents are not needed any more.
    pub async fn discard(self) {
        if let Some(collection) = &self.committed {
            self.scratch.drop_collection(collection).await;
        }
    }

    async fn commit_part(&mut self) -> Result<(), FoldError> {
        let collection = match &self.committed {
            Some(collection) => Arc::clone(collection),
            None => self.scratch.create_collection().await?,
        };
        self.committed = Some(Arc::clone(&collection));
        let statements = std::mem::take(&mut self.statements).into_iter();
        let retargeted =
            |part: FoldStatement| FoldStatement { statement: part.statement.retarget(&collection), ..part };
        self.statements = statements.map(retargeted).collect();
        let committed = self.run(TransactionEnd::Commit).await;
        if committed.is_err() {
            self.scratch.drop_collection(&collection).await;
        }
        self.statements.clear();
        self.bytes = 0;
        committed.map(drop)
    }

    async fn run(&self, end: TransactionEnd) -> Result<Vec<RawDocumentBuf>, FoldError> {
        let (mut attempts, mut one_by_one) = (0, false);
        loop {
            attempts += 1;
            match self.attempt(end, one_by_one).await {
                Ok(Ok(documents)) => return Ok(documents),
                Ok(Err(Refusal::Of(event))) => return Err(FoldError::Refused(event)),
                // Only a command with one statement tells which one the server refuses.
                Ok(Err(Refusal::Unknown)) if !one_by_one => one_by_one = true,
                Ok(Err(Refusal::Unknown)) => {
                    let database = self.scratch.store.database.name().to_owned();
                    return Err(Error::Statement { action: ACTION, database, code: 0 }.into());
                }
                // Two folds of one aggregate conflict in the scratch collection, although neither is committed.
                Err(TransactionFailure::Transient(_)) if attempts < MAX_ATTEMPTS => {
                    tokio::time::sleep(Duration::from_millis(rand::random_range(5..50))).await;
                }
                Err(TransactionFailure::Unknown) => {
                    return Err(Error::Timeout { action: ACTION, within: self.scratch.store.within }.into());
                }
                Err(
                    TransactionFailure::Transient(error)
                    | TransactionFailure::Fatal(error)
                    | TransactionFailure::Refused { error, .. },
                ) => return Err(error.into()),
            }
        }
    }

    async fn attempt(
        &self,
        end: TransactionEnd,
        one_by_one: bool,
    ) -> Result<Result<Vec<RawDocumentBuf>, Refusal>, TransactionFailure> {
        let store = &self.scratch.store;
        let deadline = Instant::now() + store.within;
        let mut session = store.begin().await?;
        let work = async {
            if let Err(refusal) = self.write(&mut session, one_by_one).await? {
                return Ok(Err(refusal));
            }
            match end {
                TransactionEnd::ReadAndAbort => self.read(&mut session).await.map(Ok),
                TransactionEnd::Commit => Ok(Ok(vec![])),
            }
        };
        let done = match timeout_at(deadline, work).await {
            Ok(done) => done,
            Err(_) => Err(TransactionFailure::Transient(Error::Timeout { action: ACTION, within: store.within })),
        };
        if end == TransactionEnd::Commit && matches!(done, Ok(Ok(_))) {
            store.commit(&mut session, deadline).await?;
        } else {
            // If the abort is lost, the server ends the transaction itself.
            let _ = timeout_at(deadline, session.abort_transaction()).await;
        }
        done
    }

    async fn write(
        &self,
        session: &mut ClientSession,
        one_by_one: bool,
    ) -> Result<Result<(), Refusal>, TransactionFailure> {
        let commands = match one_by_one {
            true => commands::one_per_statement(&self.statements),
            false => commands::batched(&self.statements),
        };
        for command in &commands {
            if let Err(refusal) = self.write_command(session, command).await? {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    async fn write_command(
        &self,
        session: &mut ClientSession,
        command: &WriteCommand,
    ) -> Result<Result<(), Refusal>, TransactionFailure> {
        let store = &self.scratch.store;
        let refused = |index: Option<&usize>, code: i32| match index {
            Some(index) => {
                let detail = format!("the server refused a statement with error {code}");
                Refusal::Of(RefusedEvent { detail, ..self.statements[*index].event.clone() })
            }
            None => Refusal::Unknown,
        };
        let single = || if let [one] = &command.statements[..] { Some(one) } else { None };
        let document = command.to_document(&self.statements);
        let reply = match store.database.run_raw_command(document).session(&mut *session).await {
            Ok(reply) => reply,
            Err(error) if error_policy::classify_mongo(&error) == ErrorClass::Permanent => {
                return Ok(Err(refused(single(), mongo_error::error_code(&error).unwrap_or_default())));
            }
            Err(error) => return Err(store.classify_error(ACTION, error)),
        };
        let Some((index, code)) = first_write_error(&reply) else { return Ok(Ok(())) };
        let error = || Error::Statement { action: ACTION, database: store.database.name().to_owned(), code };
        match error_policy::classify_mongo_code(code) {
            ErrorClass::Transient => Err(TransactionFailure::Transient(error())),
            ErrorClass::Fatal => Err(TransactionFailure::Fatal(error())),
            ErrorClass::Permanent => Ok(Err(refused(command.statements.get(index), code))),
        }
    }

    /// What this transaction wrote: others never commit to the scratch collection.
    async fn read(&self, session: &mut ClientSession) -> Result<Vec<RawDocumentBuf>, TransactionFailure> {
        let TransactionStore { database, .. } = &self.scratch.store;
        let failed = |error| self.scratch.store.classify_error("read folded documents", error);
        let scratch = database.collection::<RawDocumentBuf>(&self.scratch.collection);
        let mut found = scratch.find(doc! {}).session(&mut *session).await.map_err(failed)?;
        let mut documents = vec![];
        while found.advance(session).await.map_err(failed)? {
            documents.push(found.current().to_owned());
        }
        Ok(documents)
    }
}

const ACTION: &str = "fold events";

/// A statement that the server will always refuse.
enum Refusal {
    Of(RefusedEvent),
    /// Of a command with several statements.
    Unknown,
}
