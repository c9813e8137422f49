//! Messages that are not simply an event: bodies kept apart, markers, those of others, those of a newer version.

use std::time::Duration;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::envelope::property;
use pipeline::event::{ChangeEvent, Epoch, Term};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId, rejected_marker};
use pipeline::publish::{BodyFormat, SessionMapping};
use servicebus::{EncodedMessage, Message};

use crate::house::*;

fn large(number: i64) -> ChangeEvent {
    let document = doc! { "aggregateId": "order-0", "type": "Added", "n": number, "weight": "w".repeat(5 << 20) };
    ChangeEvent { document: RawDocumentBuf::try_from(&document).unwrap(), ..event("order-0", number) }
}

#[tokio::test]
async fn a_body_that_is_kept_apart_is_fetched_and_applied_in_its_place() {
    let house = House::start().await;
    for body in [BodyFormat::Bson, BodyFormat::Json] {
        let first = if body == BodyFormat::Bson { 1 } else { 4 };
        let events = [event("order-0", first), large(first + 1), event("order-0", first + 2)];
        let mut encoder = Encoder::new(body, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
        let kept = encoder.body(&events[1]).unwrap_or_else(|| events[1].document.as_bytes().to_vec());
        house.oversize().store(EventMessageId::for_event(&events[1], None).as_str(), &kept).await.unwrap();
        let messages = [BodyLocation::Inline, BodyLocation::ClaimCheck, BodyLocation::Inline];
        house
            .send(events.iter().zip(messages).map(|(event, content)| encode(&mut encoder, event, content)).collect())
            .await;
    }
    let run = house.consume(sessions(2));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 6).await;
    // What came as JSON has small numbers, and applies as well.
    let order = house.view("orders").await.remove(0);
    let seen = order.get_array("seen").unwrap().iter();
    let seen: Vec<i64> = seen.map(|n| n.as_i64().or(n.as_i32().map(i64::from)).unwrap()).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn an_event_whose_body_is_gone_parks_its_aggregate_and_no_other() {
    let house = House::start().await;
    let events = events(20, 2);
    let mut encoder = encoder();
    let content = |event: &ChangeEvent| {
        if event.key == Bson::Int64(10) { BodyLocation::ClaimCheck } else { BodyLocation::Inline }
    };
    house.send(events.iter().map(|event| encode(&mut encoder, event, content(event))).collect()).await;
    let run = house.consume(sessions(2));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 20).await;
    assert_eq!(house.parked("order-0").await, Some(("no_body".to_owned(), 6)));
    assert_eq!(house.parked("order-1").await, None);
    let seen = house.seen().await;
    assert_eq!((seen["order-0"].as_slice(), seen["order-1"].len()), ([2, 4, 6, 8].as_slice(), 10));
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_marker_parks_its_aggregate() {
    let house = House::start().await;
    let events = events(3, 1);
    let mut encoder = encoder();
    let mut messages: Vec<_> = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect();
    let refused = amqp::Message::parse(messages[1].bytes().clone()).unwrap();
    messages[1] = EncodedMessage::message(rejected_marker(&refused).unwrap());
    house.send(messages).await;
    let run = house.consume(sessions(1));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 3).await;
    assert_eq!(house.parked("order-0").await, Some(("marker".to_owned(), 2)));
    assert_eq!(house.seen().await["order-0"], [1]);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_of_somebody_else_goes_to_the_dead_letters_and_its_session_goes_on() {
    let house = House::start().await;
    let events = events(4, 1);
    house.publish(&events[..2]).await;
    house.send(vec![Message::new("hello").with_session("order-0").with_id("theirs").encode()]).await;
    house.publish(&events[2..]).await;
    let run = house.consume(sessions(1));
    house.holds(&events).await;
    run.until("it to be left for people", |counts, _| {
        counts.sessions.unreadable == 1 && counts.sessions.set_aside == 1
    })
    .await;
    run.until("all to be settled", |counts, _| counts.sessions.settled == 5).await;
    run.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn a_message_of_a_newer_version_is_left_where_it_is() {
    let house = House::start().await;
    let others = events(20, 2);
    house.publish(&others).await;
    let newer = Message::new("who knows").with_session("order-9").with_property(property::FORMAT, 2).with_id("newer");
    house.send(vec![newer.encode()]).await;
    let run = house.consume(sessions(2));
    house.holds(&others).await;
    run.until("it to be tried more than once", |counts, _| counts.sessions.dropped > 1).await;
    run.stop().await.unwrap();
    let mut session = house.bus.accept_session(KEPT_BY, "order-9").await.unwrap();
    let left = session.receive(1, SOON).await.unwrap();
    assert_eq!((left[0].message_id().as_deref(), left[0].delivery_count()), (Some("newer"), 0));
}

#[tokio::test]
async fn an_event_whose_body_cannot_be_read_parks_its_aggregate_and_is_kept_for_people() {
    let house = House::start().await;
    let events = events(3, 1);
    let mut encoder = encoder();
    let mut messages: Vec<_> = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect();
    messages[1] = EncodedMessage::message(broken(messages[1].bytes().clone()));
    house.send(messages).await;
    let run = house.consume(sessions(1));
    run.until("it to be kept for people", |counts, _| counts.sessions.settled == 3 && counts.sessions.set_aside == 1)
        .await;
    assert_eq!(house.parked("order-0").await, Some(("no_body".to_owned(), 2)));
    assert_eq!(house.seen().await["order-0"], [1]);
    run.stop().await.unwrap();
}

/// The same envelope around something that is no document.
fn broken(message: bytes::Bytes) -> bytes::Bytes {
    let message = amqp::Message::parse(message).unwrap();
    let mut buffer = bytes::BytesMut::new();
    amqp::message::MessageWriter::new(&mut buffer)
        .message_annotations_over(message.message_annotations(), &[], |_| {})
        .properties(&message.properties().unwrap())
        .application_properties_over(message.application_properties(), &[], |_| {})
        .data(b"no document");
    buffer.freeze()
}

/// A gap that only a sequence shows is healed from the source, also through the bus.
#[tokio::test]
async fn with_a_sequence_what_is_missing_on_the_bus_is_read_from_the_source() {
    let mut house = House::start().await;
    house.source.sequence = Some("n".into());
    let numbered = |number: i64| ChangeEvent { sequence: Some(number), ..event("order-0", number) };
    let events: Vec<_> = (1..=10).map(numbered).collect();
    let documents = events.iter().map(|event| {
        let mut document = Document::try_from(&*event.document).unwrap();
        document.insert("_id", event.key.clone());
        document
    });
    house.source_database.collection::<Document>("events").insert_many(documents).await.unwrap();
    let sent: Vec<_> = events.iter().filter(|event| ![4, 5].contains(&event.sequence.unwrap())).cloned().collect();
    house.publish(&sent).await;
    let run = house.consume(sessions(1));
    house.holds_within(&events, Duration::from_secs(20)).await;
    assert_eq!(run.counts().events.gaps_healed, 1);
    run.stop().await.unwrap();
}
