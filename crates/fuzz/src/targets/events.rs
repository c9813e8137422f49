//! Messages as a consumer reads them, and the documents in them.

use std::sync::{Arc, LazyLock};

use amqp::Message;
use bytes::Bytes;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, Timestamp, doc};
use pipeline::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, ResumeToken, Term};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId};
use pipeline::publish::{BodyFormat, SessionMapping};
use pipeline::session::message::MessageReader;
use pipeline::signing::MessageKeys;
use pipeline::view::{DeliveredEvent, EventBody, PositionKey, Projection, ProjectionEvent, ReadModel, Statements};
use serde_json::json;

pub(super) const NAMES: &[&[u8]] = &[
    b"$exists\0",
    b"$each\0",
    b"$slice\0",
    b"$gt\0",
    b"$in\0",
    b"$where\0",
    b"headwater-aggregate",
    b"headwater-format",
    b"headwater-sequence",
    b"\x03\0\x05\0\0\0\0",
    b"\x04\0\x05\0\0\0\0",
    b"\x0b\0.*\0\0",
    b"\xff\xff\xff\x7f",
    b"\x05\0\0\0\0",
];

fn source_document() -> Document {
    doc! {
        "_id": "order-1-1", "aggregateId": "order-1", "version": 1_i64, "type": "Hostile",
        "payload": { "v": { "$exists": true }, "list": [1, "a", { "x": 1 }], "n": 5, "at": DateTime::from_millis(5) },
    }
}

fn change(aggregate: Bson, document: &Document) -> ChangeEvent {
    ChangeEvent {
        token: ResumeToken::try_from(doc! { "_data": "8211" }).expect("a token"),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        key: "order-1-1".into(),
        aggregate: AggregateId::new(aggregate),
        event_type: Some("Hostile".into()),
        sequence: Some(1),
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: 1 }),
        wall_time: Some(DateTime::from_millis(1_700_000_000_123)),
        document: RawDocumentBuf::try_from(document).expect("BSON"),
    }
}

static KEYS: LazyLock<Arc<MessageKeys>> = LazyLock::new(|| {
    let keys = MessageKeys::parse("a:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=");
    Arc::new(keys.expect("a key of 32 bytes"))
});

/// Signed messages as a publisher writes them, with bodies in both formats.
pub(super) fn envelopes() -> Vec<Vec<u8>> {
    let aggregates = [Bson::from("order-1"), 7.into(), doc! { "a": { "b": [1, { "c": 2 }] } }.into()];
    let mut messages = vec![];
    for (aggregate, format) in aggregates.into_iter().zip([BodyFormat::Bson, BodyFormat::Json, BodyFormat::Bson]) {
        let event = change(aggregate, &source_document());
        let encoder = Encoder::new(format, SessionMapping::Aggregate, Epoch::new(2), Term::new(5));
        let mut encoder = encoder.signing(Some(Arc::clone(&KEYS)));
        let Some(aggregate) = &event.aggregate else { continue };
        let session = encoder.session_id(aggregate);
        let id = EventMessageId::for_event(&event, None);
        messages.push(encoder.encode(&event, aggregate, &id, &session, BodyLocation::Inline).to_vec());
    }
    messages
}

pub(super) fn read_envelope(data: &[u8]) {
    let Ok(message) = Message::parse(Bytes::copy_from_slice(data)) else { return };
    let _ = MessageReader::default().verifying(Some(Arc::clone(&KEYS))).read(&message, 0);
    let Ok(event) = MessageReader::default().read(&message, 0) else { return };
    let _ = (event.aggregate.session_id(), format!("{event:?}"));
    apply_all(&event);
}

pub(super) fn documents() -> Vec<Vec<u8>> {
    let other = doc! { "type": "Hostile", "payload": { "v": [{ "$each": [] }, null, "$$ROOT"], "list": [], "n": 0.5 } };
    [source_document(), other]
        .iter()
        .filter_map(|it| RawDocumentBuf::try_from(it).ok())
        .map(RawDocumentBuf::into_bytes)
        .collect()
}

pub(super) fn project_document(data: &[u8]) {
    let Ok(document) = RawDocumentBuf::from_bytes(data.to_vec()) else { return };
    apply_all(&delivered(EventBody::Document(document)));
}

pub(super) fn delivered(body: EventBody) -> DeliveredEvent {
    DeliveredEvent {
        message_id: "message-1".to_owned(),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        aggregate: AggregateId::new("order-1".into()).expect("a text"),
        key: "order-1-1".into(),
        event_type: Some("Hostile".to_owned()),
        sequence: Some(1),
        position: Some(PositionKey::new(Epoch::new(1), "8211")),
        term: Term::new(1),
        body,
        committed: None,
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    }
}

/// One model per operator, and a mirror.
static MODELS: LazyLock<Vec<ReadModel>> = LazyLock::new(|| {
    let v = "$$event.payload.v";
    let updates = [
        json!({ "$set": { "v": v, "w": [v, { "x": v }] }, "$inc": { "n": v }, "$min": { "m": v }, "$bit": { "b": { "or": v } } }),
        json!({ "$push": { "l": v }, "$addToSet": { "s": v }, "$pullAll": { "p": v } }),
        json!({ "$push": { "l": { "$each": v, "$slice": "$$event.payload.n", "$sort": 1 } } }),
        json!({ "$pull": { "l": v, "k": { "sku": v, "$or": [{ "a": { "$in": v } }, { "b": { "$not": { "$eq": v } } }] } } }),
        json!([{ "$set": { "v": v } }]),
    ];
    let mut declared: Vec<_> = updates.iter().map(|update| json!({ "when": { "Hostile": update } })).collect();
    declared.push(json!({ "key": v, "when": { "Hostile": "delete" } }));
    declared.push(json!({ "mirror": true }));
    let compile = |one| ReadModel::compile("model", &serde_json::from_value(one).expect("declared")).expect("valid");
    declared.into_iter().map(compile).collect()
});

fn apply_all(event: &DeliveredEvent) {
    let EventBody::Document(document) = &event.body else { return };
    for model in &*MODELS {
        if model.handles(event) {
            // A refusal is fine; the event would be parked.
            let _ = model.apply(&ProjectionEvent::new(event, document), &mut Statements::default());
        }
    }
}
