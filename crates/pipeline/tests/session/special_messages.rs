//! Messages that are no plain event: oversize bodies, markers, foreign messages, newer formats.

use std::time::Duration;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::envelope::property;
use pipeline::event::{ChangeEvent, Epoch, Term};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId, rejected_marker};
use pipeline::publish::{BodyFormat, SessionMapping};
use servicebus::{EncodedMessage, Message};

use crate::fixture::*;

fn large(number: i64) -> ChangeEvent {
    let document = doc! { "aggregateId": "order-0", "type": "Added", "n": number, "weight": "w".repeat(5 << 20) };
    ChangeEvent { document: RawDocumentBuf::try_from(&document).unwrap(), ..event("order-0", number) }
}

#[tokio::test]
async fn an_oversize_body_is_fetched_and_applied_in_order() {
    let fixture = SessionFixture::start().await;
    for body in [BodyFormat::Bson, BodyFormat::Json] {
        let first = if body == BodyFormat::Bson { 1 } else { 4 };
        let events = [event("order-0", first), large(first + 1), event("order-0", first + 2)];
        let mut encoder = Encoder::new(body, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
        let kept = encoder.body(&events[1]).unwrap_or_else(|| events[1].document.as_bytes().to_vec());
        fixture.oversize().store(EventMessageId::for_event(&events[1], None).as_str(), &kept).await.unwrap();
        let messages = [BodyLocation::Inline, BodyLocation::ClaimCheck, BodyLocation::Inline];
        fixture
            .send(events.iter().zip(messages).map(|(event, content)| encode(&mut encoder, event, content)).collect())
            .await;
    }
    let consumer = fixture.consume(sessions(2));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 6).await;
    // JSON turns small integers into 32-bit ones, which apply as well.
    let order = fixture.view("orders").await.remove(0);
    let applied_numbers = order.get_array("seen").unwrap().iter();
    let applied_numbers: Vec<i64> =
        applied_numbers.map(|n| n.as_i64().or(n.as_i32().map(i64::from)).unwrap()).collect();
    assert_eq!(applied_numbers, [1, 2, 3, 4, 5, 6]);
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_missing_body_parks_only_its_own_aggregate() {
    let fixture = SessionFixture::start().await;
    let events = events(20, 2);
    let mut encoder = encoder();
    let content = |event: &ChangeEvent| {
        if event.key == Bson::Int64(10) { BodyLocation::ClaimCheck } else { BodyLocation::Inline }
    };
    fixture.send(events.iter().map(|event| encode(&mut encoder, event, content(event))).collect()).await;
    let consumer = fixture.consume(sessions(2));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 20).await;
    assert_eq!(fixture.parked("order-0").await, Some(("no_body".to_owned(), 6)));
    assert_eq!(fixture.parked("order-1").await, None);
    let applied_numbers = fixture.applied_numbers().await;
    assert_eq!(
        (applied_numbers["order-0"].as_slice(), applied_numbers["order-1"].len()),
        ([2, 4, 6, 8].as_slice(), 10)
    );
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_marker_parks_its_aggregate() {
    let fixture = SessionFixture::start().await;
    let events = events(3, 1);
    let mut encoder = encoder();
    let mut messages: Vec<_> = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect();
    let refused = amqp::Message::parse(messages[1].bytes().clone()).unwrap();
    messages[1] = EncodedMessage::message(rejected_marker(&refused).unwrap());
    fixture.send(messages).await;
    let consumer = fixture.consume(sessions(1));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 3).await;
    assert_eq!(fixture.parked("order-0").await, Some(("marker".to_owned(), 2)));
    assert_eq!(fixture.applied_numbers().await["order-0"], [1]);
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_foreign_message_is_dead_lettered_and_its_session_continues() {
    let fixture = SessionFixture::start().await;
    let events = events(4, 1);
    fixture.publish(&events[..2]).await;
    fixture.send(vec![Message::new("hello").with_session("order-0").with_id("theirs").encode()]).await;
    fixture.publish(&events[2..]).await;
    let consumer = fixture.consume(sessions(1));
    fixture.assert_applied(&events).await;
    consumer
        .wait_until("the dead letter to be deferred", |counts, _| {
            counts.sessions.unreadable == 1 && counts.sessions.dead_letters_deferred == 1
        })
        .await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 5).await;
    consumer.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_message_with_a_newer_format_stays_in_the_subscription() {
    let fixture = SessionFixture::start().await;
    let others = events(20, 2);
    fixture.publish(&others).await;
    let newer = Message::new("who knows").with_session("order-9").with_property(property::FORMAT, 2).with_id("newer");
    fixture.send(vec![newer.encode()]).await;
    let consumer = fixture.consume(sessions(2));
    fixture.assert_applied(&others).await;
    consumer.wait_until("more than one attempt", |counts, _| counts.sessions.dropped > 1).await;
    consumer.stop().await.unwrap();
    let mut session = fixture.bus.accept_session(SUBSCRIPTION_PATH, "order-9").await.unwrap();
    let left = session.receive(1, SOON).await.unwrap();
    assert_eq!((left[0].message_id().as_deref(), left[0].delivery_count()), (Some("newer"), 0));
}

#[tokio::test]
async fn an_unreadable_body_parks_its_aggregate_and_is_dead_lettered() {
    let fixture = SessionFixture::start().await;
    let events = events(3, 1);
    let mut encoder = encoder();
    let mut messages: Vec<_> = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect();
    messages[1] = EncodedMessage::message(broken(messages[1].bytes().clone()));
    fixture.send(messages).await;
    let consumer = fixture.consume(sessions(1));
    consumer
        .wait_until("the dead letter to be deferred", |counts, _| {
            counts.sessions.settled == 3 && counts.sessions.dead_letters_deferred == 1
        })
        .await;
    assert_eq!(fixture.parked("order-0").await, Some(("no_body".to_owned(), 2)));
    assert_eq!(fixture.applied_numbers().await["order-0"], [1]);
    consumer.stop().await.unwrap();
}

/// The same envelope with a body that is no document.
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

/// A gap in the sequence is healed from the source, also for events from the bus.
#[tokio::test]
async fn a_sequence_gap_on_the_bus_is_healed_from_the_source() {
    let mut fixture = SessionFixture::start().await;
    fixture.source.sequence = Some("n".into());
    let numbered = |number: i64| ChangeEvent { sequence: Some(number), ..event("order-0", number) };
    let events: Vec<_> = (1..=10).map(numbered).collect();
    let documents = events.iter().map(|event| {
        let mut document = Document::try_from(&*event.document).unwrap();
        document.insert("_id", event.key.clone());
        document
    });
    fixture.source_database.collection::<Document>("events").insert_many(documents).await.unwrap();
    let sent: Vec<_> = events.iter().filter(|event| ![4, 5].contains(&event.sequence.unwrap())).cloned().collect();
    fixture.publish(&sent).await;
    let consumer = fixture.consume(sessions(1));
    fixture.assert_applied_within(&events, Duration::from_secs(20)).await;
    assert_eq!(consumer.counts().events.gaps_healed, 1);
    consumer.stop().await.unwrap();
}
