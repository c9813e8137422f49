//! Replaces or deletes one document of a read model, under the rules of live events.
//!
//! One transaction reads the cursor of the aggregate, checks that it is where the new document comes from, and writes document and cursor. So it
//! conflicts with a live event of the aggregate, and one of the two goes first. Never moves a cursor.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::{ClientSession, Database};
use tokio::time::{Instant, timeout_at};

use super::applier_config::Config;
use super::cursor_document::{CursorIdScheme, FENCED_FORMAT, to_i64};
use super::error::Error;
use super::model_set::FIRST_GENERATION;
use super::projection::Projection;
use super::read_model::ReadModel;
use super::statement::Statements;
use super::transaction::{TransactionFailure, TransactionStore};
use super::{CURSORS, commands};
use crate::event::{AggregateId, Namespace};

const MAX_ATTEMPTS: u32 = 40;
const ACTION: &str = "repair document";
/// A field of the cursor. It counts, so that writing it always changes the cursor: an update that changes nothing conflicts with nothing.
const REPAIRS: &str = "repairs";

/// Repairs documents of one read model whose ids are those of aggregates of events.
#[derive(Clone, Debug)]
pub struct DocumentRepair {
    store: TransactionStore,
    naming: CursorIdScheme,
    /// Not part of the identity of an aggregate of events.
    namespace: Namespace,
    /// The collection of the read model, and the name under which its aggregates are parked.
    model: Arc<str>,
    parked_name: Arc<str>,
    /// The fence refuses cursors of an earlier one.
    generation: u64,
}

/// What a repair did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairOutcome {
    Repaired,
    /// Nothing: the cursor moved, or the aggregate is parked now. Fold again.
    Moved,
}

impl DocumentRepair {
    /// `generation`: of the stored read models.
    pub fn new(database: &Database, pipeline: impl Into<String>, model: &ReadModel, generation: u64) -> Self {
        let store = TransactionStore { database: database.clone(), within: Config::default().transaction_within };
        let naming = CursorIdScheme { pipeline: pipeline.into(), by_collection: false };
        let (collection, parked_name) = (model.collection().into(), model.name().into());
        Self { store, naming, namespace: Namespace::new("", ""), model: collection, parked_name, generation }
    }

    /// Makes the document of the aggregate what a fold up to `sequence` says; `None`: there is none.
    pub async fn repair(
        &self,
        aggregate: &AggregateId,
        sequence: i64,
        document: Option<&RawDocument>,
    ) -> Result<RepairOutcome, Error> {
        self.run(aggregate, Some(sequence), document).await
    }

    /// Deletes the document of an aggregate that has no cursor: no event wrote it.
    pub async fn delete_without_cursor(&self, aggregate: &AggregateId) -> Result<RepairOutcome, Error> {
        self.run(aggregate, None, None).await
    }

    async fn run(
        &self,
        aggregate: &AggregateId,
        sequence: Option<i64>,
        document: Option<&RawDocument>,
    ) -> Result<RepairOutcome, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(aggregate, sequence, document).await {
                Ok(outcome) => return Ok(outcome),
                // After an unknown commit, the same repair once more does no harm.
                Err(TransactionFailure::Transient(_) | TransactionFailure::Unknown) if attempts < MAX_ATTEMPTS => {
                    tokio::time::sleep(Duration::from_millis(rand::random_range(5..50))).await;
                }
                Err(TransactionFailure::Unknown) => {
                    return Err(Error::Timeout { action: ACTION, within: self.store.within });
                }
                Err(
                    TransactionFailure::Transient(error)
                    | TransactionFailure::Fatal(error)
                    | TransactionFailure::Refused { error, .. },
                ) => return Err(error),
            }
        }
    }

    async fn attempt(
        &self,
        aggregate: &AggregateId,
        sequence: Option<i64>,
        document: Option<&RawDocument>,
    ) -> Result<RepairOutcome, TransactionFailure> {
        let deadline = Instant::now() + self.store.within;
        let mut session = self.store.begin().await?;
        let work = self.write(&mut session, aggregate, sequence, document);
        let done = match timeout_at(deadline, work).await {
            Ok(done) => done,
            Err(_) => Err(TransactionFailure::Transient(Error::Timeout { action: ACTION, within: self.store.within })),
        };
        match done {
            Ok(RepairOutcome::Repaired) => self.store.commit(&mut session, deadline).await?,
            // If the abort is lost, the server ends the transaction itself.
            Ok(RepairOutcome::Moved) | Err(_) => drop(timeout_at(deadline, session.abort_transaction()).await),
        }
        done
    }

    async fn write(
        &self,
        session: &mut ClientSession,
        aggregate: &AggregateId,
        sequence: Option<i64>,
        document: Option<&RawDocument>,
    ) -> Result<RepairOutcome, TransactionFailure> {
        let id = self.naming.id(&self.namespace, aggregate);
        let mut cursors = self.store.find_cursors(session, std::slice::from_ref(&id)).await?;
        match (cursors.remove(&self.naming.identity(&self.namespace, aggregate)), sequence) {
            (Some(cursor), Some(sequence))
                if cursor.sequence == Some(sequence) && !cursor.parked.contains_key(&*self.parked_name) =>
            {
                let mut count = doc! { "$inc": { REPAIRS: 1_i64 } };
                if self.generation > FIRST_GENERATION {
                    count.insert("$set", doc! { "generation": to_i64(self.generation), "format": FENCED_FORMAT });
                }
                let command = doc! { "update": CURSORS, "updates": [{ "q": { "_id": to_document(&id) }, "u": count }] };
                let command = RawDocumentBuf::try_from(&command).expect("it came out of BSON");
                self.store.run_own_command(session, "write cursor", command).await?;
            }
            (None, None) => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return Ok(RepairOutcome::Moved),
        }
        let mut statements = Statements::default();
        let written = match document {
            Some(document) => statements.replace_raw(&self.model, aggregate.value(), document),
            None => statements.delete_raw(&self.model, aggregate.value()),
        };
        written.expect("the id and the document came out of BSON");
        for command in commands::one_per_statement(&statements.list) {
            self.store.run_own_command(session, ACTION, command.to_document(&statements.list)).await?;
        }
        Ok(RepairOutcome::Repaired)
    }
}

fn to_document(id: &RawDocument) -> Bson {
    Document::try_from(id).map_or(Bson::Null, Bson::from)
}
