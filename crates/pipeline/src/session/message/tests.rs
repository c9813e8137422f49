use std::num::NonZeroU32;

use bytes::{Bytes, BytesMut};
use mongodb::bson::{Timestamp, doc, oid::ObjectId, uuid::Uuid};

use super::*;
use crate::event::{ChangeEvent, ResumeToken};
use crate::publish::message::{BodyLocation, Encoder, EventMessageId, rejected_marker};
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

fn read(message: &Message) -> Result<Delivered, Unreadable> {
    Reader::default().read(message, 4)
}

fn document_of(event: &Delivered) -> &RawDocument {
    let Body::Document(document) = &event.body else { panic!("{event:?} has no body") };
    document
}

#[test]
fn what_was_published_is_what_is_read() {
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
fn where_a_trace_goes_on_is_read_where_somebody_traces() {
    let event = event("order-7");
    let (id, all) = (EventMessageId::for_event(&event, None), TraceSampling::one_in(NonZeroU32::MIN));
    let mut tracing = encoder(publish::BodyFormat::Bson, SessionMapping::Aggregate).sampling(all);
    let traced = encoded(&mut tracing, &event, BodyLocation::Inline);
    let read = |message: &Message, traces| Reader::traced(traces).read(message, 0).unwrap().trace;
    assert_eq!(read(&traced, true), Some(TraceContext::for_message(&id, true)));
    assert_eq!(read(&whole(&event), true), Some(TraceContext::for_message(&id, false)));
    assert_eq!(read(&traced, false), None);
    let named = |message: &Message| message.application_property(property::DIAGNOSTIC_ID).is_some();
    assert_eq!((named(&traced), named(&whole(&event))), (true, false));
}

#[test]
fn ids_of_any_type_come_back_typed() {
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
fn a_key_that_is_the_aggregate_is_read_from_there() {
    let event = ChangeEvent { key: 7.into(), ..event(7) };
    assert_eq!(read(&whole(&event)).unwrap().key, Bson::Int32(7));
}

#[test]
fn what_an_event_does_not_have_is_not_there() {
    let event =
        ChangeEvent { event_type: None, sequence: None, cluster_time: None, wall_time: None, ..event("order-7") };
    let read = read(&whole(&event)).unwrap();
    assert_eq!((read.event_type, read.sequence, read.committed), (None, None, None));
}

#[test]
fn every_operation_comes_back() {
    for operation in Operation::ALL {
        let event = ChangeEvent { operation, ..event("order-7") };
        assert_eq!(read(&whole(&event)).unwrap().operation, operation);
    }
}

#[test]
fn a_body_of_json_comes_back_as_a_document() {
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
fn a_body_elsewhere_and_a_marker_say_where_to_look() {
    let event = event("order-7");
    let id = EventMessageId::for_event(&event, None);
    let mut encoder = encoder(publish::BodyFormat::Bson, SessionMapping::Aggregate);
    let elsewhere = read(&encoded(&mut encoder, &event, BodyLocation::ClaimCheck)).unwrap();
    assert!(matches!(&elsewhere.body, Body::Oversize(at) if at == id.as_str()));
    let refused = encoded(&mut encoder, &event, BodyLocation::ClaimCheck);
    let marker = Message::parse(rejected_marker(&refused).unwrap()).unwrap();
    let marker = read(&marker).unwrap();
    assert!(matches!(&marker.body, Body::Marker(at) if at == id.as_str()), "whatever else is said of its body");
    assert_eq!((marker.sequence, marker.event_type), (Some(3), None));
    assert_eq!(Some(&marker.aggregate), event.aggregate.as_ref());
}

/// The message of an event with some properties changed or left out, and with this body.
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
fn a_message_of_somebody_else_is_not_ours() {
    let message = servicebus::Message::new("hello").with_session("order-7").encode();
    let message = Message::parse(Bytes::clone(message.bytes())).unwrap();
    assert!(matches!(read(&message), Err(Unreadable::NotOurs)));
}

#[test]
fn a_newer_format_is_told_from_a_broken_message() {
    let newer = changed(&[property::FORMAT], &[(property::FORMAT, amqp::Value::Int(2))], b"");
    assert!(matches!(read(&newer), Err(Unreadable::Newer { format: 2 })));
}

#[test]
fn a_property_that_is_missing_is_named() {
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
        assert!(matches!(read(&message), Err(Unreadable::Property { name }) if name == missing), "{missing}");
    }
    let aggregate = (property::AGGREGATE, amqp::Value::Binary(Bytes::from_static(b"no document")));
    let broken = changed(&[property::AGGREGATE], &[aggregate], b"");
    assert!(matches!(read(&broken), Err(Unreadable::Property { name: property::AGGREGATE })));
}

#[test]
fn an_event_whose_body_cannot_be_read_keeps_its_place() {
    let Err(Unreadable::Body(event)) = read(&changed(&[], &[], b"no document")) else { panic!("it was read") };
    assert_eq!(event.sequence, Some(3));
    assert!(matches!(&event.body, Body::Oversize(id) if *id == event.message_id), "it is parked as one without a body");
}

#[test]
fn why_a_message_cannot_be_read_says_nothing_of_its_contents() {
    let error = read(&changed(&[], &[], b"alice")).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("alice") && !shown.contains("order-7"), "{shown}");
}
