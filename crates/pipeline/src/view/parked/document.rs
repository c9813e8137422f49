//! Parked entries and parked events as stored in MongoDB.

use std::collections::BTreeMap;
use std::sync::Arc;

use mongodb::bson::raw::{CString, cstr};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::{ParkReason, ParkedEntry};
use crate::event::{AggregateId, Epoch, Namespace, Operation, Term};
use crate::input_limits;
use crate::view::cursor_document::{CursorIdScheme, FORMAT, StoredDocument, to_i64};
use crate::view::delivered_event::{DeliveredEvent, EventBody, PositionKey};
use crate::view::error::Error;

/// A larger body stays in the source, where a replay reads it: the document must hold the body and our fields.
const LARGEST_KEPT: usize = 15 * 1024 * 1024;

const ENTRY: &str = "parked entry";
const EVENT: &str = "parked event";

/// The `parked` map of a cursor.
pub(in crate::view) fn parked_entries_document(parked: &BTreeMap<String, ParkedEntry>) -> RawDocumentBuf {
    let mut fields = RawDocumentBuf::new();
    for (model, entry) in parked {
        let Ok(model) = CString::try_from(model.as_str()) else { continue };
        let mut raw = RawDocumentBuf::new();
        raw.append(cstr!("reason"), entry.reason.as_str());
        raw.append(cstr!("detail"), entry.detail.as_str());
        raw.append(cstr!("eventId"), raw_value(&entry.event_id));
        raw.append(cstr!("sequence"), entry.sequence.map_or(RawBson::Null, RawBson::Int64));
        raw.append(cstr!("since"), entry.since);
        raw.append(cstr!("head"), entry.head);
        raw.append(cstr!("next"), entry.next);
        if !entry.dead_letter_ids.is_empty() {
            let mut ids = RawArrayBuf::new();
            entry.dead_letter_ids.iter().for_each(|id| ids.push(id.as_str()));
            raw.append(cstr!("letters"), ids);
        }
        fields.append(model, raw);
    }
    fields
}

pub(in crate::view) fn read_parked_entries(fields: &RawDocument) -> Result<BTreeMap<String, ParkedEntry>, Error> {
    let mut parked = BTreeMap::new();
    for field in fields {
        let unreadable = || Error::Unreadable { what: ENTRY, field: "parked", problem: "is not a document" };
        let Ok((model, RawBsonRef::Document(entry))) = field else { return Err(unreadable()) };
        parked.insert(model.as_str().to_owned(), read_entry(entry)?);
    }
    Ok(parked)
}

fn read_entry(document: &RawDocument) -> Result<ParkedEntry, Error> {
    let fields = StoredDocument { what: ENTRY, document };
    let reason = ParkReason::read(fields.text("reason")?);
    Ok(ParkedEntry {
        reason: reason.ok_or_else(|| fields.unreadable("reason", "is unknown to this version"))?,
        detail: fields.text("detail")?.to_owned(),
        event_id: fields.value("eventId")?,
        sequence: fields.optional_number("sequence")?,
        since: fields.date("since")?,
        head: fields.number("head")?,
        next: fields.number("next")?,
        dead_letter_ids: read_dead_letter_ids(document),
    })
}

fn read_dead_letter_ids(document: &RawDocument) -> Vec<String> {
    let ids = document.get_array("letters").into_iter().flatten().flatten();
    ids.filter_map(|id| id.as_str().map(str::to_owned)).collect()
}

/// The `_id` of a queued event. The ids of one queue are adjacent and in the order of their numbers.
pub(in crate::view) fn parked_event_id(
    naming: &CursorIdScheme,
    namespace: &Namespace,
    aggregate: &AggregateId,
    model: &str,
    number: impl Into<RawBson>,
) -> RawDocumentBuf {
    let mut id = naming.id(namespace, aggregate);
    id.append(cstr!("model"), model);
    id.append(cstr!("n"), number.into());
    id
}

/// A queued event.
pub(in crate::view) fn parked_event_document(
    id: RawDocumentBuf,
    event: &DeliveredEvent,
    now: DateTime,
) -> RawDocumentBuf {
    let mut raw = RawDocumentBuf::new();
    raw.append(cstr!("_id"), id);
    raw.append(cstr!("format"), FORMAT);
    raw.append(cstr!("state"), WAITING);
    raw.append(cstr!("messageId"), event.message_id.as_str());
    raw.append(cstr!("operation"), event.operation.as_str());
    raw.append(cstr!("database"), event.namespace.database.as_str());
    raw.append(cstr!("collection"), event.namespace.collection.as_str());
    raw.append(cstr!("eventId"), raw_value(&event.key));
    if let Some(event_type) = &event.event_type {
        raw.append(cstr!("type"), event_type.as_str());
    }
    raw.append(cstr!("sequence"), event.sequence.map_or(RawBson::Null, RawBson::Int64));
    if let Some(position) = &event.position {
        raw.append(cstr!("epoch"), to_i64(position.epoch.get()));
        raw.append(cstr!("position"), &*position.key);
    }
    raw.append(cstr!("term"), to_i64(event.term.get()));
    raw.append(cstr!("committed"), event.committed.map_or(RawBson::Null, RawBson::DateTime));
    raw.append(cstr!("parkedAt"), now);
    match &event.body {
        EventBody::Document(body) if body.as_bytes().len() <= LARGEST_KEPT => {
            if input_limits::nests_deeper_than(body, input_limits::MAX_NESTING - 1) {
                // One level more would be one too many. Older versions find no body, and read it from the source.
                raw.append(cstr!("bodyBytes"), binary(body));
            } else {
                raw.append(cstr!("body"), body);
            }
        }
        EventBody::Document(_) => raw.append(cstr!("oversize"), ""),
        EventBody::Oversize(kept) => raw.append(cstr!("oversize"), kept.as_str()),
        EventBody::Marker(kept) => raw.append(cstr!("marker"), kept.as_str()),
    }
    raw
}

pub(super) const WAITING: &str = "waiting";
pub(in crate::view) const DISCARDED: &str = "discarded";

/// The number in the queue, and the event.
pub(super) fn read_event(document: &RawDocument) -> Result<(i64, DeliveredEvent), Error> {
    let fields = StoredDocument { what: EVENT, document };
    fields.check_format()?;
    let id = document.get_document("_id").map_err(|_| fields.unreadable("_id", "is not a document"))?;
    let id = StoredDocument { what: EVENT, document: id };
    let aggregate = AggregateId::new(id.value("aggregate")?);
    let operation = Operation::from_name(fields.text("operation")?);
    let position = match (fields.optional_number("epoch")?, document.get_str("position")) {
        (Some(epoch), Ok(key)) => Some(PositionKey::new(Epoch::new(epoch.unsigned_abs()), key)),
        (_, _) => None,
    };
    let delivered = DeliveredEvent {
        message_id: fields.text("messageId")?.to_owned(),
        operation: operation.ok_or_else(|| fields.unreadable("operation", "is unknown to this version"))?,
        namespace: Arc::new(Namespace::new(fields.text("database")?, fields.text("collection")?)),
        aggregate: aggregate.ok_or_else(|| fields.unreadable("_id", "names no aggregate"))?,
        key: fields.value("eventId")?,
        event_type: document.get_str("type").ok().map(str::to_owned),
        sequence: fields.optional_number("sequence")?,
        position,
        term: Term::new(fields.number("term")?.unsigned_abs()),
        body: read_body(document),
        committed: document.get_datetime("committed").ok(),
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    };
    Ok((id.number("n")?, delivered))
}

fn read_body(document: &RawDocument) -> EventBody {
    if let Ok(body) = document.get_document("body") {
        return EventBody::Document(body.to_owned());
    }
    let bytes = document.get_binary("bodyBytes").ok();
    if let Some(body) = bytes.and_then(|kept| RawDocumentBuf::from_bytes(kept.bytes.to_vec()).ok()) {
        return EventBody::Document(body);
    }
    match document.get_str("oversize") {
        Ok(kept) => EventBody::Oversize(kept.to_owned()),
        Err(_) => EventBody::Marker(document.get_str("marker").unwrap_or_default().to_owned()),
    }
}

fn binary(body: &RawDocument) -> RawBson {
    RawBson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: body.as_bytes().to_vec() })
}

/// BSON values always convert back.
fn raw_value(value: &Bson) -> RawBson {
    RawBson::try_from(value.clone()).unwrap_or(RawBson::Null)
}
