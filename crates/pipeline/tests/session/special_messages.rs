//! Messages that are no plain event: oversize bodies, markers, foreign messages, newer formats.

use std::time::Duration;

use amqp::codec::MapWriter;
use amqp::message::MessageWriter;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::envelope::property;
use pipeline::event::{ChangeEvent, Epoch, Namespace, ResumeToken, Term};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId};
use pipeline::publish::{BodyFormat, SessionMapping};
use servicebus::{EncodedMessage, Message};

use crate::fixture::*;

fn large(number: i64) -> ChangeEvent {
    let document = doc! { "aggregateId": "order-0", "type": "Added", "n": number, "weight": "w".repeat(5 << 20) };
    ChangeEvent { document: RawDocumentBuf::try_from(&document).unwrap(), ..event("order-0", number) }
}

fn encode_inline(events: &[ChangeEvent]) -> Vec<EncodedMessage> {
    let mut encoder = encoder();
    events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect()
}

/// The same message with other application properties and another body.
fn rewrite(
    message: &EncodedMessage,
    replaced: &[&str],
    replace: impl FnOnce(&mut MapWriter<'_>),
    body: &[u8],
) -> EncodedMessage {
    let message = amqp::Message::parse(message.bytes().clone()).unwrap();
    let mut buffer = bytes::BytesMut::new();
    MessageWriter::new(&mut buffer)
        .message_annotations_over(message.message_annotations(), &[], |_| {})
        .properties(&message.properties().unwrap())
        .application_properties_over(message.application_properties(), replaced, replace)
        .data(body);
    EncodedMessage::message(buffer.freeze())
}

/// Waits until so many unreadable messages are in the dead-letter queue and the dead-letter reader has deferred them.
async fn wait_until_deferred(consumer: &RunningConsumer, count: u64) {
    consumer
        .wait_until("the dead letters to be deferred", |counts, _| {
            counts.sessions.unreadable == count && counts.sessions.dead_letters_deferred == count
        })
        .await;
}

/// Of three messages of one aggregate the first is applied; the second has no readable body, parks the aggregate and is dead-lettered.
async fn assert_second_parks_for_its_body(fixture: &SessionFixture) {
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
    let mut messages = encode_inline(&events);
    let refused = amqp::Message::parse(messages[1].bytes().clone()).unwrap();
    messages[1] = EncodedMessage::message(encoder().rejected_marker(&refused).unwrap());
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
    wait_until_deferred(&consumer, 1).await;
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
    let mut messages = encode_inline(&events);
    messages[1] = rewrite(&messages[1], &[], |_| {}, b"no document");
    fixture.send(messages).await;
    assert_second_parks_for_its_body(&fixture).await;
}

/// So many levels of documents, as BSON.
fn nested(levels: usize) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    for _ in 1..levels {
        let mut outer = RawDocumentBuf::new();
        outer.append(mongodb::bson::cstr!("v"), document);
        document = outer;
    }
    document
}

#[tokio::test]
async fn an_aggregate_id_nested_2000_levels_stops_no_pod() {
    let fixture = SessionFixture::start().await;
    let events = events(3, 1);
    let mut messages = encode_inline(&events);
    let nested_id = |map: &mut MapWriter<'_>| {
        amqp::codec::encode::binary(map.string(property::AGGREGATE), nested(2_000).as_bytes());
    };
    messages[1] = rewrite(&messages[1], &[property::AGGREGATE], nested_id, events[1].document.as_bytes());
    fixture.send(messages).await;
    let consumer = fixture.consume(sessions(1));
    wait_until_deferred(&consumer, 1).await;
    fixture.assert_applied(&[events[0].clone(), events[2].clone()]).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_body_nested_too_deep_parks_its_aggregate() {
    let fixture = SessionFixture::start().await;
    let mut events = events(3, 1);
    events[1].document = nested(2_000);
    fixture.publish(&events).await;
    assert_second_parks_for_its_body(&fixture).await;
}

/// With a sequence, and a source that has these events.
pub(crate) async fn sequenced(fixture: &mut SessionFixture, count: i64) -> Vec<ChangeEvent> {
    fixture.source.sequence = Some("n".into());
    let events: Vec<_> =
        (1..=count).map(|number| ChangeEvent { sequence: Some(number), ..event("order-0", number) }).collect();
    let documents = events.iter().map(|event| {
        let mut document = Document::try_from(&*event.document).unwrap();
        document.insert("_id", event.key.clone());
        document
    });
    fixture.source_database.collection::<Document>("events").insert_many(documents).await.unwrap();
    events
}

/// Higher than the token of any event.
fn at_the_end(event: ChangeEvent) -> ChangeEvent {
    ChangeEvent { token: ResumeToken::try_from(doc! { "_data": "82FFFFFFFFFF" }).unwrap(), ..event }
}

/// Sends the forged messages between real ones: all real events are applied, and the forged ones are dead-lettered.
async fn assert_moves_no_cursor(fixture: &SessionFixture, forged: Vec<EncodedMessage>, events: &[ChangeEvent]) {
    let count = forged.len() as u64;
    fixture.publish(&events[..1]).await;
    fixture.send(forged).await;
    fixture.publish(&events[1..]).await;
    let consumer = fixture.consume(sessions(1));
    fixture.assert_applied(events).await;
    wait_until_deferred(&consumer, count).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_without_a_sequence_moves_no_cursor() {
    let mut fixture = SessionFixture::start().await;
    let events = sequenced(&mut fixture, 6).await;
    let forged = at_the_end(event("order-0", 99));
    let forged = encode(&mut encoder(), &forged, BodyLocation::Inline);
    assert_moves_no_cursor(&fixture, vec![forged], &events).await;
}

#[tokio::test]
async fn a_message_of_an_unknown_collection_moves_no_cursor() {
    let fixture = SessionFixture::start().await;
    let events = events(6, 1);
    let forged = at_the_end(event("order-0", 99));
    let forged = ChangeEvent { namespace: std::sync::Arc::new(Namespace::new("shop", "others")), ..forged };
    let forged = encode(&mut encoder(), &forged, BodyLocation::Inline);
    assert_moves_no_cursor(&fixture, vec![forged], &events).await;
}

#[tokio::test]
async fn a_message_of_an_unknown_epoch_moves_no_cursor() {
    let fixture = SessionFixture::start().await;
    let events = events(6, 1);
    let in_epoch = |epoch: u64, number: i64| {
        let mut encoder = Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::new(epoch), Term::new(1));
        encode(&mut encoder, &event("order-0", number), BodyLocation::Inline)
    };
    assert_moves_no_cursor(&fixture, vec![in_epoch(7, 97), in_epoch(0, 98)], &events).await;
    // The same epoch once the checkpoint has reached it.
    let checkpoints = fixture.coordination.collection::<Document>("checkpoints");
    checkpoints.insert_one(doc! { "_id": &fixture.pipeline, "epoch": 7_i64 }).await.unwrap();
    fixture.send(vec![in_epoch(7, 99)]).await;
    let consumer = fixture.consume(sessions(1));
    let mut all = events.clone();
    all.push(event("order-0", 99));
    fixture.assert_applied(&all).await;
    consumer.stop().await.unwrap();
}

/// A gap in the sequence is healed from the source, also for events from the bus.
#[tokio::test]
async fn a_sequence_gap_on_the_bus_is_healed_from_the_source() {
    let mut fixture = SessionFixture::start().await;
    let events = sequenced(&mut fixture, 10).await;
    let sent: Vec<_> = events.iter().filter(|event| ![4, 5].contains(&event.sequence.unwrap())).cloned().collect();
    fixture.publish(&sent).await;
    let consumer = fixture.consume(sessions(1));
    fixture.assert_applied_within(&events, Duration::from_secs(20)).await;
    assert_eq!(consumer.counts().events.gaps_healed, 1);
    consumer.stop().await.unwrap();
}
