use std::num::NonZeroU32;

use bytes::{Bytes, BytesMut};
use mongodb::bson::{RawDocument, Timestamp, doc, oid::ObjectId, uuid::Uuid};

use super::*;
use crate::event::{ChangeEvent, ResumeToken};
use crate::publish::message::{BodyLocation, Encoder, EventMessageId};
use crate::publish::{self, SessionMapping};
use crate::trace::TraceSampling;

fn event(aggregate: impl Into<Bson>) -> ChangeEvent {
    ChangeEvent {
        token: ResumeToken::try_from(doc! { "_data": "8211" }).unwrap(),
        operation: Operation::Update,
        namespace: Arc::new(Namespace::new("shop", "events.of.may")),
        key: Bson::ObjectId(ObjectId::from_bytes([7; 12])),
        aggregate: AggregateId::new(aggregate.into()),
        event_type: Some("OrderPlaced".into()),
        sequence: Some(3),
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: 1 }),
        wall_time: Some(DateTime::from_millis(1_700_000_000_123)),
        document: RawDocumentBuf::try_from(&doc! { "type": "OrderPlaced", "price": 7, "at": DateTime::from_millis(5) })
            .unwrap(),
    }
}

fn encoder(body: publish::BodyFormat, sessions: SessionMapping) -> Encoder {
    Encoder::new(body, sessions, Epoch::new(2), Term::new(5))
}

fn encoded(encoder: &mut Encoder, event: &ChangeEvent, content: BodyLocation) -> Message {
    let aggregate = event.aggregate.as_ref().unwrap();
    let session = encoder.session_id(aggregate);
    Message::parse(encoder.encode(event, aggregate, &EventMessageId::for_event(event, None), &session, content))
        .unwrap()
}

fn whole(event: &ChangeEvent) -> Message {
    encoded(&mut encoder(publish::BodyFormat::Bson, SessionMapping::Aggregate), event, BodyLocation::Inline)
}

fn read(message: &Message) -> Result<DeliveredEvent, UnreadableMessage> {
    MessageReader::default().read(message, 4)
}

fn document_of(event: &DeliveredEvent) -> &RawDocument {
    let EventBody::Document(document) = &event.body else { panic!("{event:?} has no body") };
    document
}

#[test]
fn a_published_event_is_read_back_unchanged() {
    let event = event("order-7");
    let read = read(&whole(&event)).unwrap();
    assert_eq!(read.message_id, EventMessageId::for_event(&event, None).as_str());
    assert_eq!((read.operation, &read.namespace, &read.key), (event.operation, &event.namespace, &event.key));
    assert_eq!((Some(&read.aggregate), &read.event_type), (event.aggregate.as_ref(), &event.event_type));
    assert_eq!((read.sequence, read.term, read.delivery_count), (Some(3), Term::new(5), 4));
    assert_eq!(read.position, Some(PositionKey::new(Epoch::new(2), "8211")));
    assert_eq!(read.committed, Some(DateTime::from_millis(1_700_000_000_123)));
    assert!(!read.dead_lettered);
    assert_eq!(document_of(&read), &*event.document);
}

#[test]
fn the_trace_context_is_read_only_when_tracing() {
    let event = event("order-7");
    let (id, all) = (EventMessageId::for_event(&event, None), TraceSampling::one_in(NonZeroU32::MIN));
    let mut tracing = encoder(publish::BodyFormat::Bson, SessionMapping::Aggregate).sampling(all);
    let reads_traces = encoded(&mut tracing, &event, BodyLocation::Inline);
    let read = |message: &Message, traces| MessageReader::with_tracing(traces).read(message, 0).unwrap().trace;
    assert_eq!(read(&reads_traces, true), Some(TraceContext::for_message(&id, true)));
    assert_eq!(read(&whole(&event), true), Some(TraceContext::for_message(&id, false)));
    assert_eq!(read(&reads_traces, false), None);
    let named = |message: &Message| message.application_property(property::DIAGNOSTIC_ID).is_some();
    assert_eq!((named(&reads_traces), named(&whole(&event))), (true, false));
}

#[test]
fn ids_of_any_type_keep_their_type() {
    let ids: [Bson; 9] = [
        7.into(),
        7_i64.into(),
        7.5.into(),
        true.into(),
        ObjectId::new().into(),
        Uuid::new().into(),
        "x".repeat(4_096).into(),
        "".into(),
        doc! { "tenant": 1, "order": "a" }.into(),
    ];
    for sessions in [SessionMapping::Aggregate, SessionMapping::Buckets(NonZeroU32::new(8).unwrap())] {
        for id in &ids {
            let event = event(id.clone());
            let message = encoded(&mut encoder(publish::BodyFormat::Bson, sessions), &event, BodyLocation::Inline);
            assert_eq!(read(&message).unwrap().aggregate.value(), id);
        }
    }
}

#[test]
fn a_key_equal_to_the_aggregate_is_read_from_the_aggregate() {
    let event = ChangeEvent { key: 7.into(), ..event(7) };
    assert_eq!(read(&whole(&event)).unwrap().key, Bson::Int32(7));
}

#[test]
fn absent_event_fields_stay_absent() {
    let event =
        ChangeEvent { event_type: None, sequence: None, cluster_time: None, wall_time: None, ..event("order-7") };
    let read = read(&whole(&event)).unwrap();
    assert_eq!((read.event_type, read.sequence, read.committed), (None, None, None));
}

#[test]
fn every_operation_can_be_read_back() {
    for operation in Operation::ALL {
        let event = ChangeEvent { operation, ..event("order-7") };
        assert_eq!(read(&whole(&event)).unwrap().operation, operation);
    }
}

#[test]
fn a_json_body_is_read_as_a_document() {
    let message = encoded(
        &mut encoder(publish::BodyFormat::Json, SessionMapping::Aggregate),
        &event("order-7"),
        BodyLocation::Inline,
    );
    let read = read(&message).unwrap();
    let document = Document::try_from(document_of(&read)).unwrap();
    assert_eq!(document, doc! { "type": "OrderPlaced", "price": 7, "at": DateTime::from_millis(5) });
}

#[test]
fn oversize_and_marker_messages_name_the_stored_body() {
    let event = event("order-7");
    let id = EventMessageId::for_event(&event, None);
    let mut encoder = encoder(publish::BodyFormat::Bson, SessionMapping::Aggregate);
    let elsewhere = read(&encoded(&mut encoder, &event, BodyLocation::ClaimCheck)).unwrap();
    assert!(matches!(&elsewhere.body, EventBody::Oversize(at) if at == id.as_str()));
    let refused = encoded(&mut encoder, &event, BodyLocation::ClaimCheck);
    let marker = Message::parse(encoder.rejected_marker(&refused).unwrap()).unwrap();
    let marker = read(&marker).unwrap();
    assert!(
        matches!(&marker.body, EventBody::Marker(at) if at == id.as_str()),
        "the marker wins over an oversize reference"
    );
    assert_eq!((marker.sequence, marker.event_type), (Some(3), None));
    assert_eq!(Some(&marker.aggregate), event.aggregate.as_ref());
}

/// The message of an event with changed or removed properties and this body.
fn changed(leave_out: &[&str], add: &[(&str, amqp::Value)], body: &[u8]) -> Message {
    let message = whole(&event("order-7"));
    let properties = message.properties().unwrap();
    let mut buffer = BytesMut::new();
    amqp::message::MessageWriter::new(&mut buffer)
        .properties(&properties)
        .application_properties_over(message.application_properties(), leave_out, |map| {
            for (name, value) in add {
                value.encode(map.string(name));
            }
        })
        .data(body);
    Message::parse(buffer.freeze()).unwrap()
}

#[test]
fn a_foreign_message_is_recognised() {
    let message = servicebus::Message::new("hello").with_session("order-7").encode();
    let message = Message::parse(Bytes::clone(message.bytes())).unwrap();
    assert!(matches!(read(&message), Err(UnreadableMessage::NotHeadwater)));
}

#[test]
fn a_newer_format_is_not_a_broken_message() {
    let newer = changed(&[property::FORMAT], &[(property::FORMAT, amqp::Value::Int(2))], b"");
    assert!(matches!(read(&newer), Err(UnreadableMessage::NewerFormat { format: 2 })));
}

#[test]
fn a_missing_property_is_named() {
    let needed = [
        property::OPERATION,
        property::NAMESPACE,
        property::AGGREGATE,
        property::TOKEN,
        property::EPOCH,
        property::TERM,
    ];
    for missing in needed {
        let message = changed(&[missing], &[], b"");
        assert!(matches!(read(&message), Err(UnreadableMessage::Property { name }) if name == missing), "{missing}");
    }
    let aggregate = (property::AGGREGATE, amqp::Value::Binary(Bytes::from_static(b"no document")));
    let broken = changed(&[property::AGGREGATE], &[aggregate], b"");
    assert!(matches!(read(&broken), Err(UnreadableMessage::Property { name: property::AGGREGATE })));
}

#[test]
fn an_event_with_an_unreadable_body_keeps_its_sequence() {
    let Err(UnreadableMessage::Body(event)) = read(&changed(&[], &[], b"no document")) else {
        panic!("the message was read")
    };
    assert_eq!(event.sequence, Some(3));
    assert!(
        matches!(&event.body, EventBody::Oversize(id) if *id == event.message_id),
        "it is parked like an event without a body"
    );
}

#[test]
fn read_errors_do_not_show_message_contents() {
    let error = read(&changed(&[], &[], b"alice")).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("alice") && !shown.contains("order-7"), "{shown}");
}
