//! One transaction, from the cursors to the commit. Knows nothing of groups and of trying again.
//!
//! Snapshot reads and a majority commit: what it says of a duplicate rests on what a majority holds, also when nothing is written. An
//! error inside an answer that is otherwise fine is looked for before the commit; committing over it would only hide it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use mongodb::{ClientSession, Database};
use tokio::time::{Instant, sleep, timeout_at};

use super::cursor::Cursor;
use super::error::{DUPLICATE_KEY, Error};
use super::identity::Identity;
use super::plan::{Answer, Candidate, Plan, Planner, Refusals, Rules, Tally};
use super::runs::{self, Run};
use super::stored::read_cursor;
use super::swept;
use super::{CURSORS, PARKED_EVENTS};
use crate::retry::{self, ErrorClass};

/// Where read models are, and how long a transaction may take.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) within: Duration,
}

/// Which events, and what is known of them.
pub(super) struct Attempt<'a> {
    pub(super) rules: &'a Rules,
    pub(super) candidates: &'a [Candidate],
    pub(super) part: &'a [usize],
    pub(super) refusals: &'a Refusals,
    /// Statement by statement, so that a refusal is laid at the right door.
    pub(super) strict: bool,
    /// What says that it is an aggregate's first event is taken at its word: no cursor is looked for. One that is there after all is not
    /// overwritten: inserting another is refused.
    pub(super) trusting: bool,
}

/// Why a transaction has no effect, or may have none.
pub(super) enum Failure {
    /// It may succeed when it is run again.
    Transient(Error),
    /// One statement will not succeed: the event's and the model's number, when the server said which.
    Refused {
        culprit: Option<(usize, usize)>,
        error: Error,
    },
    Fatal(Error),
    /// It may have been committed.
    Unknown,
}

type Answers = (Vec<(usize, Answer)>, Tally);

impl Store {
    pub(super) async fn attempt(&self, attempt: Attempt<'_>) -> Result<Answers, Failure> {
        let deadline = Instant::now() + self.within;
        let mut session = self.begin().await?;
        let done = match timeout_at(deadline, self.write(&mut session, &attempt)).await {
            Ok(done) => done,
            Err(_) => Err(Failure::Transient(self.too_late())),
        };
        match done {
            Ok(plan) => {
                self.commit(&mut session, deadline).await?;
                Ok((plan.answers, plan.tally))
            }
            Err(failure) => {
                // Its locks go at once; if this is not heard, the server ends it by itself.
                let _ = timeout_at(deadline, session.abort_transaction()).await;
                Err(failure)
            }
        }
    }

    pub(super) async fn begin(&self) -> Result<ClientSession, Failure> {
        let begun = async {
            let mut session = self.database.client().start_session().causal_consistency(false).await?;
            session
                .start_transaction()
                .read_concern(ReadConcern::snapshot())
                .write_concern(WriteConcern::majority())
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                .await?;
            Ok(session)
        };
        begun.await.map_err(|error| self.failed("begin a transaction", error))
    }

    async fn write(&self, session: &mut ClientSession, attempt: &Attempt<'_>) -> Result<Plan, Failure> {
        let cursors = self.cursors(session, attempt).await?;
        let Attempt { rules, refusals, .. } = *attempt;
        // The clock is only shown to people, in what is parked.
        let planner = Planner::new(rules, refusals, cursors, DateTime::now());
        let plan = planner.plan(attempt.candidates, attempt.part);
        // Cursors first: two holders of a session find out before the rest is sent.
        for cursors in runs::sized(&plan.first_cursors) {
            let command = runs::insert_command(CURSORS, cursors.iter());
            self.own(session, "write cursors", command).await?;
        }
        if !plan.cursors.is_empty() {
            let command = runs::update_command(CURSORS, plan.cursors.iter());
            self.own(session, "write cursors", command).await?;
        }
        for documents in runs::sized(&plan.parked) {
            let command = runs::insert_command(PARKED_EVENTS, documents.iter());
            self.own(session, "park events", command).await?;
        }
        let runs = if attempt.strict { runs::strict(&plan.statements) } else { runs::grouped(&plan.statements) };
        for run in &runs {
            self.models(session, &plan, run).await?;
        }
        Ok(plan)
    }

    async fn cursors(
        &self,
        session: &mut ClientSession,
        attempt: &Attempt<'_>,
    ) -> Result<HashMap<Identity, Cursor>, Failure> {
        let mut asked = HashSet::new();
        let of_part = attempt.part.iter().map(|at| &attempt.candidates[*at]);
        let first_of_each = of_part.filter(|candidate| asked.insert(&candidate.identity));
        let looked_for = first_of_each.filter(|candidate| !(attempt.trusting && attempt.rules.seems_new(candidate)));
        let naming = &attempt.rules.naming;
        let ids = looked_for.map(|candidate| naming.id(&candidate.event.namespace, &candidate.event.aggregate));
        let mut ids: Vec<RawDocumentBuf> = ids.collect();
        // Only documents are swept, and their aggregates are named by their collection.
        if naming.by_collection {
            ids.extend(RawDocumentBuf::try_from(&swept::mark_id(&naming.pipeline)));
        }
        let mut cursors = self.find_cursors(session, &ids).await?;
        swept::stand_in(&mut cursors, &asked);
        Ok(cursors)
    }

    pub(super) async fn find_cursors(
        &self,
        session: &mut ClientSession,
        ids: &[RawDocumentBuf],
    ) -> Result<HashMap<Identity, Cursor>, Failure> {
        let mut cursors = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(cursors);
        }
        let failed = |error| self.failed("read cursors", error);
        let command = runs::find_command(CURSORS, ids.iter());
        let found = self.database.run_raw_cursor_command(command).session(&mut *session).await.map_err(failed)?;
        let mut found = found.with_type::<RawDocumentBuf>();
        while found.advance(session).await.map_err(failed)? {
            let (identity, cursor) = read_cursor(found.current()).map_err(Failure::Fatal)?;
            cursors.insert(identity, cursor);
        }
        Ok(cursors)
    }

    /// A command on what is ours: the server does not say which event is to blame when it is refused.
    pub(super) async fn own(
        &self,
        session: &mut ClientSession,
        doing: &'static str,
        command: RawDocumentBuf,
    ) -> Result<(), Failure> {
        let answer = self.database.run_raw_command(command).session(&mut *session).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if retry::classify_mongo(&error) == ErrorClass::Permanent => {
                return Err(Failure::Refused { culprit: None, error: self.store_error(doing, error) });
            }
            Err(error) => return Err(self.failed(doing, error)),
        };
        let Some((_, code)) = first_error(&answer) else { return Ok(()) };
        let error = Error::Statement { doing, database: self.database.name().to_owned(), code };
        match retry::classify_mongo_code(code) {
            // A key that is taken: somebody else was faster, and the next run sees it.
            ErrorClass::Permanent if code == DUPLICATE_KEY => Err(Failure::Transient(error)),
            ErrorClass::Transient => Err(Failure::Transient(error)),
            // An aggregate whose id MongoDB does not take: found by taking the group apart.
            ErrorClass::Permanent => Err(Failure::Refused { culprit: None, error }),
            ErrorClass::Fatal => Err(Failure::Fatal(error)),
        }
    }

    async fn models(&self, session: &mut ClientSession, plan: &Plan, run: &Run) -> Result<(), Failure> {
        const DOING: &str = "write a read model";
        let command = run.command(&plan.statements);
        let culprit = |number: usize| (plan.statements[number].at, plan.statements[number].model);
        let only = || match run.statements[..] {
            [one] => Some(culprit(one)),
            _ => None,
        };
        let answer = match self.database.run_raw_command(command).session(&mut *session).await {
            Ok(answer) => answer,
            Err(error) if retry::classify_mongo(&error) == ErrorClass::Permanent => {
                return Err(Failure::Refused { culprit: only(), error: self.store_error(DOING, error) });
            }
            Err(error) => return Err(self.failed(DOING, error)),
        };
        let Some((index, code)) = first_error(&answer) else { return Ok(()) };
        let error = Error::Statement { doing: DOING, database: self.database.name().to_owned(), code };
        match retry::classify_mongo_code(code) {
            ErrorClass::Transient => Err(Failure::Transient(error)),
            ErrorClass::Fatal => Err(Failure::Fatal(error)),
            ErrorClass::Permanent => {
                let culprit = run.statements.get(index).map(|number| culprit(*number));
                Err(Failure::Refused { culprit, error })
            }
        }
    }

    /// Asks again while the answer is that it is not known; the driver then asks for a majority with a time limit.
    pub(super) async fn commit(&self, session: &mut ClientSession, deadline: Instant) -> Result<(), Failure> {
        const PAUSE: Duration = Duration::from_millis(50);
        loop {
            let error = match timeout_at(deadline, session.commit_transaction()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => return Err(Failure::Unknown),
            };
            if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
                if Instant::now() + PAUSE >= deadline {
                    return Err(Failure::Unknown);
                }
                sleep(PAUSE).await;
                continue;
            }
            // The server has said no: nothing of it is there.
            let passing =
                error.contains_label(TRANSIENT_TRANSACTION_ERROR) || retry::classify_mongo(&error) != ErrorClass::Fatal;
            let error = self.store_error("commit", error);
            return Err(if passing { Failure::Transient(error) } else { Failure::Fatal(error) });
        }
    }

    pub(super) fn failed(&self, doing: &'static str, error: mongodb::error::Error) -> Failure {
        let verdict = retry::classify_mongo(&error);
        let error = self.store_error(doing, error);
        match verdict {
            ErrorClass::Transient => Failure::Transient(error),
            ErrorClass::Permanent | ErrorClass::Fatal => Failure::Fatal(error),
        }
    }

    pub(super) fn store_error(&self, doing: &'static str, error: mongodb::error::Error) -> Error {
        Error::Store { doing, database: self.database.name().to_owned(), source: error.into() }
    }

    fn too_late(&self) -> Error {
        Error::TooLate { doing: "apply events in one transaction", within: self.within }
    }
}

/// The first of `writeErrors`: which statement, and the code.
pub(super) fn first_error(answer: &Document) -> Option<(usize, i32)> {
    let Some(Bson::Document(error)) = answer.get_array("writeErrors").ok()?.first() else { return None };
    let index = error.get_i32("index").ok().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    Some((index, error.get_i32("code").unwrap_or(0)))
}
