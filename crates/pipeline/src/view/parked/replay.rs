//! Replays or discards queued events inside one transaction.

use std::borrow::Cow;

use mongodb::ClientSession;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, DateTime, RawDocument, RawDocumentBuf, doc};

use super::document::DISCARDED;
use super::store::{ParkedQueueOperation, ParkedStore, Queued};
use super::{ParkReason, ParkedEntry};
use crate::error_policy::{self, ErrorClass};
use crate::view::delivered_event::{DeliveredEvent, EventBody};
use crate::view::error::Error;
use crate::view::projection::{ProjectionEvent, Statements, project};
use crate::view::transaction::{TransactionFailure, first_write_error};
use crate::view::upcast::UpcastedEvents;
use crate::view::{PARKED_EVENTS, commands};

impl ParkedStore {
    /// Applies each event, statement by statement. The inner error: how many succeeded before the failing one, and the reason.
    pub(super) async fn replay(
        &self,
        session: &mut ClientSession,
        model: &str,
        queued: &[Queued],
    ) -> Result<Result<(), (i64, String)>, TransactionFailure> {
        let Some(projection) = self.models.find(model) else {
            return Err(TransactionFailure::Fatal(Error::UnknownModel(model.to_owned())));
        };
        for (done, (_, _, event)) in queued.iter().enumerate() {
            let done = i64::try_from(done).unwrap_or(i64::MAX);
            let Some(event) = self.with_body(event).await? else {
                return Ok(Err((done, "the body is not stored, and the source does not have it".to_owned())));
            };
            let EventBody::Document(document) = &event.body else { unreachable!("the event has a body") };
            let upcasted = UpcastedEvents::evaluate_one(&self.store.database, projection, &event).await;
            let upcasted = upcasted.map_err(|error| self.store.classify_error("upcast event", error))?;
            let document: &RawDocument = match upcasted.get(0, projection, &event) {
                Some(Ok(upcasted)) => upcasted,
                Some(Err(detail)) => return Ok(Err((done, detail.clone()))),
                None => document,
            };
            let statements = match project(projection, &ProjectionEvent::new(&event, document)) {
                Ok(statements) => statements,
                Err(detail) => return Ok(Err((done, detail))),
            };
            if let Err(detail) = self.execute(session, statements).await? {
                return Ok(Err((done, detail)));
            }
        }
        Ok(Ok(()))
    }

    async fn execute(
        &self,
        session: &mut ClientSession,
        statements: Statements,
    ) -> Result<Result<(), String>, TransactionFailure> {
        for command in commands::one_per_statement(&statements.list) {
            let answer =
                self.store.database.run_raw_command(command.to_document(&statements.list)).session(&mut *session).await;
            let code = match answer {
                Ok(answer) => first_write_error(&answer).map(|(_, code)| code),
                Err(error) => match (error_policy::classify_mongo(&error), mongo_error::error_code(&error)) {
                    (ErrorClass::Permanent, Some(code)) => Some(code),
                    (_, _) => return Err(self.store.classify_error("replay event", error)),
                },
            };
            if let Some(code) = code {
                return Ok(Err(format!("the server refused a statement with error {code}")));
            }
        }
        Ok(Ok(()))
    }

    /// The event itself if its body is stored, else as the source has it. A marker has no type either: without the source no clause of a
    /// model would match it.
    async fn with_body<'e>(
        &self,
        event: &'e DeliveredEvent,
    ) -> Result<Option<Cow<'e, DeliveredEvent>>, TransactionFailure> {
        match (&event.body, &self.source) {
            (EventBody::Document(_), _) => Ok(Some(Cow::Borrowed(event))),
            (EventBody::Oversize(_) | EventBody::Marker(_), None) => Ok(None),
            (EventBody::Oversize(_) | EventBody::Marker(_), Some(source)) => {
                let completed = source.complete(event).await.map_err(TransactionFailure::Transient)?;
                Ok(completed.map(Cow::Owned))
            }
        }
    }

    /// Replayed events are deleted; discarded ones are kept under a new unique id.
    pub(super) async fn remove_from_queue(
        &self,
        session: &mut ClientSession,
        queued: &[Queued],
        operation: &ParkedQueueOperation,
    ) -> Result<(), TransactionFailure> {
        if queued.is_empty() {
            return Ok(());
        }
        if let ParkedQueueOperation::Discard(_) = operation {
            let kept: Vec<RawDocumentBuf> = queued.iter().map(|(raw, ..)| to_discarded(raw)).collect();
            for documents in commands::chunks_by_size(&kept) {
                let command = commands::insert_command(PARKED_EVENTS, documents.iter());
                self.store.run_own_command(session, "store discarded events", command).await?;
            }
        }
        let ids = queued.iter().filter_map(|(raw, ..)| Bson::try_from(raw.get("_id").ok()??).ok());
        let filter = doc! { "_id": { "$in": ids.collect::<Vec<_>>() } };
        let command = doc! { "delete": PARKED_EVENTS, "deletes": [{ "q": filter, "limit": 0 }] };
        let command = RawDocumentBuf::try_from(&command).expect("it came out of BSON");
        self.store.run_own_command(session, "remove events from the queue", command).await
    }
}

fn to_discarded(raw: &RawDocumentBuf) -> RawDocumentBuf {
    let mut kept = RawDocumentBuf::new();
    for (name, value) in raw.iter().flatten() {
        match name.as_str() {
            "_id" => {
                let mut id = value.as_document().map(ToOwned::to_owned).unwrap_or_default();
                // Unique: a later queue of this aggregate uses the same numbers again.
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

/// The entry of an event that a pause had queued and that cannot be applied.
pub(super) fn poison_entry(paused: &ParkedEntry, number: i64, event: &DeliveredEvent, detail: &str) -> ParkedEntry {
    ParkedEntry {
        reason: ParkReason::Poison,
        detail: detail.to_owned(),
        event_id: event.key.clone(),
        sequence: event.sequence,
        head: number,
        ..paused.clone()
    }
}

/// The entry after these events left the queue; `None` if the queue is empty.
pub(super) fn remaining_entry(parked: &ParkedEntry, document_deleted: &[Queued]) -> Option<ParkedEntry> {
    let head = document_deleted.last().map_or(parked.next, |(_, number, _)| number + 1);
    (head < parked.next).then(|| ParkedEntry { head, ..parked.clone() })
}
