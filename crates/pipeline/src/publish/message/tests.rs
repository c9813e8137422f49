use std::num::NonZeroU32;

use mongodb::bson::{DateTime, Timestamp, doc, oid::ObjectId, uuid::Uuid};

use super::*;
use crate::event::ResumeToken;

fn event(aggregate: impl Into<Bson>, data: &str) -> ChangeEvent {
    ChangeEvent {
        token: ResumeToken::try_from(doc! { "_data": data }).unwrap(),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        key: Bson::ObjectId(ObjectId::from_bytes([7; 12])),
        aggregate: AggregateId::new(aggregate.into()),
        event_type: Some("OrderPlaced".into()),
        sequence: Some(3),
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: 1 }),
        wall_time: Some(DateTime::from_millis(1_700_000_000_123)),
        document: RawDocumentBuf::try_from(&doc! { "type": "OrderPlaced", "price": 7_i64 }).unwrap(),
    }
}

fn encoder(term: u64) -> Encoder {
    Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::new(2), Term::new(term))
}

fn encode(encoder: &mut Encoder, event: &ChangeEvent, content: BodyLocation) -> amqp::Message {
    let aggregate = event.aggregate.as_ref().unwrap();
    let session = encoder.session_id(aggregate);
    let bytes = encoder.encode(event, aggregate, &EventMessageId::for_event(event, None), &session, content);
    amqp::Message::parse(bytes).unwrap()
}

fn text(message: &amqp::Message, name: &str) -> Option<String> {
    message.application_property(name).and_then(|value| value.as_str()).map(str::to_owned)
}

fn typed_value(message: &amqp::Message, name: &str) -> Option<Bson> {
    let property = message.application_property(name)?;
    let document = RawDocumentBuf::from_bytes(property.as_binary()?.to_vec()).unwrap();
    Some(Document::try_from(&*document).unwrap().get("v").unwrap().clone())
}

#[test]
fn everything_a_consumer_needs_is_on_the_message() {
    let event = event("order-7", "8211");
    let message = encode(&mut encoder(5), &event, BodyLocation::Inline);
    let properties = message.properties().unwrap();
    let expected = EventMessageId::for_event(&event, None);
    assert_eq!(properties.message_id.unwrap().as_str(), Some(expected.as_str()));
    assert_eq!(expected.as_str(), crate::event::sha256_hex(&[b"8211"]));
    assert_eq!((properties.group_id, message.partition_key()), (Some("order-7"), Some("order-7")));
    assert_eq!((properties.subject, properties.content_type), (Some("OrderPlaced"), Some("application/bson")));
    assert_eq!(text(&message, property::OPERATION).as_deref(), Some("insert"));
    assert_eq!(text(&message, property::NAMESPACE).as_deref(), Some("shop.events"));
    assert_eq!(text(&message, property::TOKEN).as_deref(), Some("8211"));
    assert_eq!(text(&message, property::CLOUD_EVENTS_TYPE).as_deref(), Some("OrderPlaced"));
    assert_eq!(text(&message, property::CLOUD_EVENTS_SOURCE).as_deref(), Some("mongodb:shop.events"));
    assert_eq!(text(&message, property::TRACEPARENT).unwrap().len(), 55);
    let long = |name| message.application_property(name).and_then(|value| value.as_integer());
    assert_eq!(long(property::FORMAT), Some(1));
    assert_eq!((long(property::EPOCH), long(property::TERM), long(property::SEQUENCE)), (Some(2), Some(5), Some(3)));
    let committed = message.application_property(property::COMMITTED).unwrap().as_timestamp();
    assert_eq!(committed, Some(1_700_000_000_123));
    assert_eq!(typed_value(&message, property::AGGREGATE), Some("order-7".into()));
    assert_eq!(typed_value(&message, property::KEY), Some(event.key.clone()));
    assert_eq!(message.data().next().unwrap(), event.document.as_bytes());
}

#[test]
fn messages_of_two_leaders_differ_only_in_the_term() {
    let event = event("order-7", "8211");
    let aggregate = event.aggregate.as_ref().unwrap();
    let id = EventMessageId::for_event(&event, None);
    let write = |term| encoder(term).encode(&event, aggregate, &id, "order-7", BodyLocation::Inline);
    let (one, other) = (write(5), write(6));
    let different = one.iter().zip(&other).filter(|(one, other)| one != other).count();
    assert_eq!((one.len(), different), (other.len(), 1));
    assert_eq!(one, write(5));
}

#[test]
fn ids_keep_their_type() {
    for value in [Bson::Int32(7), Bson::Int64(7), Bson::Double(7.5), ObjectId::new().into(), Uuid::new().into()] {
        let message = encode(&mut encoder(1), &event(value.clone(), "8211"), BodyLocation::Inline);
        assert_eq!(typed_value(&message, property::AGGREGATE), Some(value));
    }
    let long = "x".repeat(4_096);
    let message = encode(&mut encoder(1), &event(long.as_str(), "8211"), BodyLocation::Inline);
    assert_eq!(typed_value(&message, property::AGGREGATE), Some(long.into()));
    assert!(message.properties().unwrap().group_id.unwrap().len() <= 128);
}

#[test]
fn a_key_equal_to_the_aggregate_is_omitted() {
    let event = ChangeEvent { key: "order-7".into(), ..event("order-7", "8211") };
    let message = encode(&mut encoder(1), &event, BodyLocation::Inline);
    assert!(message.application_property(property::KEY).is_none());
}

#[test]
fn a_replay_changes_the_message_id_of_a_change() {
    let event = event("order-7", "8211");
    let of = |replay| EventMessageId::for_replay(&event, None, ReplayCounter::new(replay));
    // Older versions send the hash of the token: both must agree until an operator raises the counter.
    assert_eq!(of(0).as_str(), crate::event::sha256_hex(&[b"8211"]));
    assert_eq!(of(0), EventMessageId::for_event(&event, None));
    assert!(of(0) != of(1) && of(1) != of(2));
}

#[test]
fn snapshot_message_ids_depend_on_run_and_document() {
    let event = event("order-7", "8211");
    let other = ChangeEvent { key: 8.into(), ..event.clone() };
    let swept = ChangeEvent { operation: Operation::Delete, ..event.clone() };
    // On another shard there may be one with the same `_id`.
    let elsewhere = ChangeEvent { aggregate: AggregateId::new("order-8".into()), ..event.clone() };
    let later = ChangeEvent { sequence: Some(4), ..event.clone() };
    let ids = [
        EventMessageId::for_event(&event, None),
        EventMessageId::for_event(&event, Some("one")),
        EventMessageId::for_event(&event, Some("two")),
        EventMessageId::for_event(&other, Some("one")),
        EventMessageId::for_event(&swept, Some("one")),
        EventMessageId::for_event(&elsewhere, Some("one")),
        EventMessageId::for_event(&later, Some("one")),
    ];
    for (at, id) in ids.iter().enumerate() {
        assert!(!ids[..at].contains(id), "{at}");
    }
    assert_eq!(ids[0], EventMessageId::for_event(&other, None), "a change is named by its token alone");
}

#[test]
fn claim_check_and_marker_refer_to_the_stored_event() {
    let event = event("order-7", "8211");
    let id = EventMessageId::for_event(&event, None);
    let elsewhere = encode(&mut encoder(1), &event, BodyLocation::ClaimCheck);
    assert_eq!(text(&elsewhere, property::OVERSIZE).as_deref(), Some(id.as_str()));
    assert!(elsewhere.data().next().unwrap().is_empty());
    let whole = encode(&mut encoder(1), &event, BodyLocation::Inline);
    let marker = amqp::Message::parse(rejected_marker(&whole).unwrap()).unwrap();
    assert_eq!(text(&marker, property::MARKER).as_deref(), Some(id.as_str()));
    let (before, after) = (whole.properties().unwrap(), marker.properties().unwrap());
    assert_eq!((after.message_id, after.group_id, after.subject), (before.message_id, before.group_id, None));
    assert_eq!(marker.partition_key(), Some("order-7"));
    assert_eq!(text(&marker, property::TOKEN).as_deref(), Some("8211"));
    assert_eq!(typed_value(&marker, property::AGGREGATE), Some("order-7".into()));
    assert!(marker.data().next().unwrap().is_empty());
    assert_eq!(super::rejected_marker(&marker), None, "a marker has no marker");
}

#[test]
fn json_is_relaxed_extended_json() {
    let mut json = Encoder::new(BodyFormat::Json, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
    let message = encode(&mut json, &event("order-7", "8211"), BodyLocation::Inline);
    assert_eq!(message.data().next().unwrap(), r#"{"type":"OrderPlaced","price":7}"#);
    assert_eq!(message.properties().unwrap().content_type, Some("application/json"));
}

#[test]
fn an_aggregate_always_maps_to_the_same_bucket() {
    let buckets = SessionMapping::Buckets(NonZeroU32::new(4).unwrap());
    let encoder = Encoder::new(BodyFormat::Bson, buckets, Epoch::FIRST, Term::new(1));
    let session = |number: i32| encoder.session_id(&AggregateId::new(number.into()).unwrap());
    let names: std::collections::BTreeSet<_> = (0..100).map(session).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["bucket-0", "bucket-1", "bucket-2", "bucket-3"]);
    assert_eq!(session(7), session(7));
}

#[test]
fn messages_of_any_size_share_one_encoder() {
    let mut encoder = encoder(1);
    for size in [10, 100_000, 10, 9_000, 300, 40_000] {
        let document = RawDocumentBuf::try_from(&doc! { "text": "x".repeat(size) }).unwrap();
        let event = ChangeEvent { document, ..event("order-7", "8211") };
        assert_eq!(
            encode(&mut encoder, &event, BodyLocation::Inline).data().next().unwrap(),
            event.document.as_bytes()
        );
    }
}
