//! One transaction, from reading the cursors to the commit. Does not retry and does not split groups.
//!
//! Snapshot reads and a majority commit, so a duplicate decision rests on majority-committed data even if nothing is written. Checks each
//! reply for errors of single statements before the commit: committing would hide them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use mongodb::{ClientSession, Database};
use tokio::time::{Instant, sleep, timeout_at};

use super::commands::{self, WriteCommand};
use super::cursor::Cursor;
use super::cursor_document::{built_cursors_statement, read_cursor};
use super::epoch_floor;
use super::error::{DOCUMENT_VALIDATION_FAILURE, DUPLICATE_KEY, Error};
use super::identity::Identity;
use super::memory_fold::MemoryFolding;
use super::model_set::{ModelSet, ModelSetMode};
use super::plan::{
    ApplyRules, CommitCounts, PendingEvent, PlannedOutcome, RefusedStatement, RefusedStatements, StatementOrigin,
    TransactionPlan, TransactionPlanner,
};
use super::typed_index::EventIndex;
use super::upcast::UpcastedEvents;
use super::{CURSORS, PARKED_EVENTS};
use crate::error_policy::{self, ErrorClass};
use crate::failpoints::Failpoint;
use crate::stored::cursors;

/// The read-model database and the timeout of a transaction.
#[derive(Clone, Debug)]
pub(super) struct TransactionStore {
    pub(super) database: Database,
    pub(super) within: Duration,
}

/// The events of one attempt and how to apply them.
pub(super) struct TransactionAttempt<'a> {
    pub(super) rules: &'a ApplyRules,
    pub(super) models: &'a ModelSet,
    pub(super) events: &'a [PendingEvent],
    pub(super) indices: &'a [EventIndex],
    pub(super) refused: &'a RefusedStatements,
    /// One command per statement, so that a refusal identifies its event.
    pub(super) one_by_one: bool,
    /// Events that claim to be the first of their aggregate are applied without reading a cursor. An existing cursor is not overwritten: the
    /// insert fails.
    pub(super) trust_first_events: bool,
}

/// Why a transaction has no effect, or maybe none.
pub(super) enum TransactionFailure {
    /// A retry may succeed.
    Transient(Error),
    /// The server will always refuse one statement: event and model, if it reported which.
    Refused {
        culprit: Option<RefusedStatement>,
        error: Error,
    },
    Fatal(Error),
    /// The commit result is unknown.
    Unknown,
}

type CommittedResults = (Vec<(EventIndex, PlannedOutcome)>, CommitCounts);

impl TransactionStore {
    pub(super) async fn attempt(
        &self,
        attempt: TransactionAttempt<'_>,
    ) -> Result<CommittedResults, TransactionFailure> {
        let deadline = Instant::now() + self.within;
        let upcasted = timeout_at(deadline, self.upcast(&attempt)).await;
        let upcasted = upcasted.map_err(|_| TransactionFailure::Transient(self.timeout_error()))??;
        // The deadline covers all steps, as the server holds the locks from the first write on.
        let mut session = self.begin().await?;
        let done = match timeout_at(deadline, self.write_plan(&mut session, &attempt, &upcasted)).await {
            Ok(done) => done,
            Err(_) => Err(TransactionFailure::Transient(self.timeout_error())),
        };
        match done {
            Ok(plan) => {
                self.commit(&mut session, deadline).await?;
                Ok((plan.outcomes, plan.counts))
            }
            Err(failure) => {
                // Releases the locks at once; if the abort is lost, the server ends the transaction itself.
                let _ = timeout_at(deadline, session.abort_transaction()).await;
                Err(failure)
            }
        }
    }

    /// Costs nothing for event types without an upcast.
    async fn upcast(&self, attempt: &TransactionAttempt<'_>) -> Result<UpcastedEvents, TransactionFailure> {
        let models = attempt.models.models.iter().map(|model| &*model.projection);
        let events = attempt.indices.iter().map(|index| (index.get(), &*attempt.events[*index].event));
        let upcasted = UpcastedEvents::evaluate(&self.database, models, events);
        upcasted.await.map_err(|error| self.classify_error("upcast events", error))
    }

    pub(super) async fn begin(&self) -> Result<ClientSession, TransactionFailure> {
        let started = async {
            let mut session = self.database.client().start_session().causal_consistency(false).await?;
            session
                .start_transaction()
                .read_concern(ReadConcern::snapshot())
                .write_concern(WriteConcern::majority())
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                .await?;
            Ok(session)
        };
        started.await.map_err(|error| self.classify_error("begin transaction", error))
    }

    async fn write_plan(
        &self,
        session: &mut ClientSession,
        attempt: &TransactionAttempt<'_>,
        upcasted: &UpcastedEvents,
    ) -> Result<TransactionPlan, TransactionFailure> {
        let cursors = self.read_cursors(session, attempt).await?;
        let TransactionAttempt { models, .. } = *attempt;
        // A pod of a later generation has applied models to these aggregates that this one does not know.
        if cursors.values().any(|cursor| cursor.generation > models.generation)
            && !Failpoint::NoGenerationCheck.is_enabled()
        {
            return Err(TransactionFailure::Transient(Error::Outdated));
        }
        // The clock is only informational, in parked entries.
        let plan = plan_transaction(attempt, cursors, DateTime::now(), upcasted);
        // Cursors first: a second holder of the session conflicts before the rest is sent.
        for cursors in commands::chunks_by_size(&plan.first_cursors) {
            let command = commands::insert_command(CURSORS, cursors.iter());
            self.run_own_command(session, "write cursors", command).await?;
        }
        if !plan.cursors.is_empty() {
            let command = commands::update_command(CURSORS, plan.cursors.iter());
            self.run_own_command(session, "write cursors", command).await?;
        }
        for ids in commands::chunks_by_size(&plan.built_cursors) {
            let built = [built_cursors_statement(ids, models.generation)];
            let command = commands::update_command(CURSORS, built.iter());
            self.run_own_command(session, "write cursors", command).await?;
        }
        for documents in commands::chunks_by_size(&plan.parked) {
            let command = commands::insert_command(PARKED_EVENTS, documents.iter());
            self.run_own_command(session, "park events", command).await?;
        }
        let commands = if attempt.one_by_one {
            commands::one_per_statement(&plan.statements)
        } else {
            commands::batched(&plan.statements)
        };
        for command in &commands {
            self.write_models(session, models, &plan, command).await?;
        }
        Ok(plan)
    }

    async fn read_cursors(
        &self,
        session: &mut ClientSession,
        attempt: &TransactionAttempt<'_>,
    ) -> Result<HashMap<Identity, Cursor>, TransactionFailure> {
        // Of each aggregate only the first event counts: the planner carries the cursor on to the later ones.
        let mut requested = HashSet::new();
        let events = attempt.indices.iter().map(|index| &attempt.events[*index]);
        let first_of_each = events.filter(|pending| requested.insert(&pending.identity));
        let to_read = first_of_each
            .filter(|pending| !(attempt.trust_first_events && attempt.rules.looks_like_first_event(pending)));
        let naming = &attempt.rules.naming;
        let ids = to_read.map(|pending| naming.id(&pending.event.namespace, &pending.event.aggregate));
        let mut ids: Vec<RawDocumentBuf> = ids.collect();
        // Only a source of documents is swept, and it names aggregates by collection.
        if naming.by_collection {
            ids.extend(RawDocumentBuf::try_from(&cursors::floor_id(&naming.pipeline)));
        }
        let mut cursors = self.find_cursors(session, &ids).await?;
        epoch_floor::apply_floor(&mut cursors, &requested);
        Ok(cursors)
    }

    pub(super) async fn find_cursors(
        &self,
        session: &mut ClientSession,
        ids: &[RawDocumentBuf],
    ) -> Result<HashMap<Identity, Cursor>, TransactionFailure> {
        let mut cursors = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(cursors);
        }
        let failed = |error| self.classify_error("read cursors", error);
        let command = commands::find_command(CURSORS, ids.iter());
        let found = self.database.run_raw_cursor_command(command).session(&mut *session).await.map_err(failed)?;
        let mut found = found.with_type::<RawDocumentBuf>();
        while found.advance(session).await.map_err(failed)? {
            let (identity, cursor) = read_cursor(found.current()).map_err(TransactionFailure::Fatal)?;
            cursors.insert(identity, cursor);
        }
        Ok(cursors)
    }

    /// Runs a command on our own collections. If it is refused, the server does not report the responsible event.
    pub(super) async fn run_own_command(
        &self,
        session: &mut ClientSession,
        action: &'static str,
        command: RawDocumentBuf,
    ) -> Result<(), TransactionFailure> {
        let reply = self.database.run_raw_command(command).session(&mut *session).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) if error_policy::classify_mongo(&error) == ErrorClass::Permanent => {
                return Err(TransactionFailure::Refused { culprit: None, error: self.store_error(action, error) });
            }
            Err(error) => return Err(self.classify_error(action, error)),
        };
        let Some((_, code)) = first_write_error(&reply) else { return Ok(()) };
        // The fence: a later generation has begun.
        if code == DOCUMENT_VALIDATION_FAILURE {
            return Err(TransactionFailure::Transient(Error::Outdated));
        }
        let error = Error::Statement { action, database: self.database.name().to_owned(), code };
        match error_policy::classify_mongo_code(code) {
            // A duplicate key: another pod inserted the cursor first; the retry will read it.
            ErrorClass::Permanent if code == DUPLICATE_KEY => Err(TransactionFailure::Transient(error)),
            ErrorClass::Transient => Err(TransactionFailure::Transient(error)),
            // An aggregate id that MongoDB does not accept; found by splitting the group.
            ErrorClass::Permanent => Err(TransactionFailure::Refused { culprit: None, error }),
            ErrorClass::Fatal => Err(TransactionFailure::Fatal(error)),
        }
    }

    async fn write_models(
        &self,
        session: &mut ClientSession,
        models: &ModelSet,
        plan: &TransactionPlan,
        command: &WriteCommand,
    ) -> Result<(), TransactionFailure> {
        const ACTION: &str = "write read model";
        let document = command.to_document(&plan.statements);
        let culprit = |statement: usize| {
            let StatementOrigin { event, model } = plan.statements[statement].origin;
            let model = models.models[model.get()].projection.name().to_owned();
            RefusedStatement { event, model }
        };
        let single_culprit = || match command.statements[..] {
            [one] => Some(culprit(one)),
            _ => None,
        };
        let reply = match self.database.run_raw_command(document).session(&mut *session).await {
            Ok(reply) => reply,
            Err(error) if error_policy::classify_mongo(&error) == ErrorClass::Permanent => {
                return Err(TransactionFailure::Refused {
                    culprit: single_culprit(),
                    error: self.store_error(ACTION, error),
                });
            }
            Err(error) => return Err(self.classify_error(ACTION, error)),
        };
        let Some((index, code)) = first_write_error(&reply) else { return Ok(()) };
        let error = Error::Statement { action: ACTION, database: self.database.name().to_owned(), code };
        match error_policy::classify_mongo_code(code) {
            ErrorClass::Transient => Err(TransactionFailure::Transient(error)),
            ErrorClass::Fatal => Err(TransactionFailure::Fatal(error)),
            ErrorClass::Permanent => {
                let culprit = command.statements.get(index).map(|statement| culprit(*statement));
                Err(TransactionFailure::Refused { culprit, error })
            }
        }
    }

    /// Retries while the result is unknown; the driver then waits for a majority with a time limit.
    pub(super) async fn commit(
        &self,
        session: &mut ClientSession,
        deadline: Instant,
    ) -> Result<(), TransactionFailure> {
        const PAUSE: Duration = Duration::from_millis(50);
        loop {
            let error = match timeout_at(deadline, session.commit_transaction()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => return Err(TransactionFailure::Unknown),
            };
            // Committing again is safe: the server commits a transaction at most once.
            if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
                if Instant::now() + PAUSE >= deadline {
                    return Err(TransactionFailure::Unknown);
                }
                sleep(PAUSE).await;
                continue;
            }
            // The server refused: nothing was committed.
            let is_transient = error.contains_label(TRANSIENT_TRANSACTION_ERROR)
                || error_policy::classify_mongo(&error) != ErrorClass::Fatal;
            let error = self.store_error("commit", error);
            return Err(if is_transient {
                TransactionFailure::Transient(error)
            } else {
                TransactionFailure::Fatal(error)
            });
        }
    }

    pub(super) fn classify_error(&self, action: &'static str, error: mongodb::error::Error) -> TransactionFailure {
        let class = error_policy::classify_mongo(&error);
        let error = self.store_error(action, error);
        match class {
            ErrorClass::Transient => TransactionFailure::Transient(error),
            ErrorClass::Permanent | ErrorClass::Fatal => TransactionFailure::Fatal(error),
        }
    }

    pub(super) fn store_error(&self, action: &'static str, error: mongodb::error::Error) -> Error {
        Error::Store { action, database: self.database.name().to_owned(), source: error.into() }
    }

    fn timeout_error(&self) -> Error {
        Error::Timeout { action: "apply events in one transaction", within: self.within }
    }
}

/// A build folds in memory what it can, unless a statement has been refused: then every event has statements of its own.
fn plan_transaction(
    attempt: &TransactionAttempt<'_>,
    cursors: HashMap<Identity, Cursor>,
    now: DateTime,
    upcasted: &UpcastedEvents,
) -> TransactionPlan {
    let TransactionAttempt { rules, models, refused, events, indices, .. } = *attempt;
    let plan = |cursors, folding: &MemoryFolding| {
        let planner = TransactionPlanner::new(rules, models, refused, cursors, now, folding);
        planner.with_upcasted(upcasted).plan(events, indices)
    };
    if models.mode == ModelSetMode::Build && !attempt.one_by_one && refused.is_empty() {
        let mut folding = MemoryFolding::Except(HashSet::new());
        // The second time everything else is known to fold.
        for _ in 0..2 {
            match (plan(cursors.clone(), &folding), &mut folding) {
                (Ok(plan), _) => return plan,
                (Err(unfoldable), MemoryFolding::Except(known)) => known.extend(unfoldable),
                (Err(_), MemoryFolding::Off) => break,
            }
        }
    }
    plan(cursors, &MemoryFolding::Off).unwrap_or_default()
}

/// The first entry of `writeErrors`: statement index and code.
pub(super) fn first_write_error(reply: &Document) -> Option<(usize, i32)> {
    let Some(Bson::Document(error)) = reply.get_array("writeErrors").ok()?.first() else { return None };
    let index = error.get_i32("index").ok().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    Some((index, error.get_i32("code").unwrap_or(0)))
}
