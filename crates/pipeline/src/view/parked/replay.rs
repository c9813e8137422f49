//! One transaction's work at the desk: events of a queue applied again, or put aside.

use mongodb::ClientSession;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, RawDocumentBuf, doc};

use super::Parked;
use super::desk::{Act, Desk, Queued};
use super::document::DISCARDED;
use crate::retry::{self, ErrorClass};
use crate::view::delivered::{Body, Delivered};
use crate::view::error::Error;
use crate::view::plan::Planned;
use crate::view::projection::{Event, Statements, statements};
use crate::view::transaction::{Failure, first_error};
use crate::view::{PARKED_EVENTS, runs};

impl Desk {
    /// Applies each, statement by statement. The inner error: how many went well before the one that did not, and why.
    pub(super) async fn replay(
        &self,
        session: &mut ClientSession,
        model: &str,
        waiting: &[Queued],
    ) -> Result<Result<(), (i64, String)>, Failure> {
        let Some(projection) = self.models.iter().find(|known| known.name() == model) else {
            return Err(Failure::Fatal(Error::NoModel(model.to_owned())));
        };
        for (done, (_, _, event)) in waiting.iter().enumerate() {
            let done = i64::try_from(done).unwrap_or(i64::MAX);
            let document = match &event.body {
                Body::Document(document) => Some(document.clone()),
                Body::Oversize(_) | Body::Marker(_) => self.kept_in_source(event).await?,
            };
            let Some(document) = document else {
                return Ok(Err((done, "its body is not kept, and the source does not have it".to_owned())));
            };
            let statements = match statements(&**projection, &Event::new(event, &document)) {
                Ok(statements) => statements,
                Err(detail) => return Ok(Err((done, detail))),
            };
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
                Err(error) => match (retry::classify_mongo(&error), mongo_error::error_code(&error)) {
                    (ErrorClass::Permanent, Some(code)) => Some(code),
                    (_, _) => return Err(self.store.failed("replay an event", error)),
                },
            };
            if let Some(code) = code {
                return Ok(Err(format!("the server refused a statement with error {code}")));
            }
        }
        Ok(Ok(()))
    }

    async fn kept_in_source(&self, event: &Delivered) -> Result<Option<RawDocumentBuf>, Failure> {
        let Some(history) = &self.history else { return Ok(None) };
        history.document(&event.namespace, &event.key).await.map_err(Failure::Transient)
    }

    /// Replayed events are gone; discarded ones are kept under an id that nothing else will ever have.
    pub(super) async fn take_from_queue(
        &self,
        session: &mut ClientSession,
        waiting: &[Queued],
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
                id.append(cstr!("discarded"), ObjectId::new());
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
pub(super) fn left_of(parked: &Parked, gone: &[Queued]) -> Option<Parked> {
    let head = gone.last().map_or(parked.next, |(_, number, _)| number + 1);
    (head < parked.next).then(|| Parked { head, ..parked.clone() })
}
