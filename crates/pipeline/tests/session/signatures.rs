//! Signed messages: forged and changed ones move no cursor, and keys change without losing a message.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use amqp::Value;
use bytes::{Bytes, BytesMut};
use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use pipeline::consumer::Config;
use pipeline::envelope::property;
use pipeline::event::ChangeEvent;
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId};
use pipeline::signing::MessageKeys;
use pipeline::stored::claim_check;
use servicebus::{EncodedMessage, Map, Message, Settlement};

use crate::fixture::*;

const OLD: &str = "old:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const NEW: &str = "new:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
/// The id of the old key with the bytes of the new one.
const WRONG: &str = "old:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

fn keys(text: &str) -> MessageKeys {
    MessageKeys::parse(text).unwrap()
}

fn signing(keys: &MessageKeys) -> Encoder {
    encoder().signing(Some(Arc::new(keys.clone())))
}

fn consume_with(fixture: &SessionFixture, config: Config, keys: MessageKeys) -> RunningConsumer {
    let mut dependencies = fixture.dependencies(client(&fixture.broker));
    dependencies.message_keys = Some(Arc::new(keys));
    RunningConsumer::start(config, dependencies)
}

fn encode_one(encoder: &mut Encoder, event: &ChangeEvent) -> Bytes {
    encode(encoder, event, BodyLocation::Inline).bytes().clone()
}

/// The message with this property, or with this body.
fn altered(message: Bytes, property: Option<(&str, Value)>, body: Option<&[u8]>) -> EncodedMessage {
    let message = amqp::Message::parse(message).unwrap();
    let left_out: Vec<_> = property.iter().map(|(name, _)| *name).collect();
    let whole = message.data().next().unwrap();
    let mut buffer = BytesMut::new();
    amqp::message::MessageWriter::new(&mut buffer)
        .message_annotations_over(message.message_annotations(), &[], |_| {})
        .properties(&message.properties().unwrap())
        .application_properties_over(message.application_properties(), &left_out, |map| {
            if let Some((name, value)) = &property {
                value.encode(map.string(name));
            }
        })
        .data(body.unwrap_or(&whole));
    EncodedMessage::message(buffer.freeze())
}

/// The event with another number in its body, in the envelope of the first.
fn with_body_of(message: Bytes, other: &ChangeEvent) -> EncodedMessage {
    altered(message, None, Some(other.document.as_bytes()))
}

#[tokio::test]
async fn forged_and_changed_messages_move_no_cursor() {
    let fixture = SessionFixture::start().await;
    let keys = keys(OLD);
    let events = events(6, 1);
    let forged = event("order-0", 99);
    let signed = encode_one(&mut signing(&keys), &forged);
    let messages = vec![
        // Unsigned, and with the key of somebody else.
        EncodedMessage::message(encode_one(&mut encoder(), &forged)),
        EncodedMessage::message(encode_one(&mut signing(&self::keys(WRONG)), &forged)),
        // Signed messages that were changed on their way.
        altered(signed.clone(), Some((property::TOKEN, Value::String("82FFFFFFFFFF".into()))), None),
        altered(signed.clone(), Some((property::SEQUENCE, Value::Long(5))), None),
        altered(signed.clone(), Some((property::SIGNATURE, Value::String("old:AAAA".into()))), None),
        with_body_of(signed, &event("order-0", 98)),
    ];
    let count = messages.len() as u64;
    fixture.publish_as(&events[..1], signing(&keys)).await;
    fixture.send(messages).await;
    fixture.publish_as(&events[1..], signing(&keys)).await;
    let consumer = consume_with(&fixture, sessions(1), keys);
    fixture.assert_applied(&events).await;
    consumer
        .wait_until("the forged messages to be deferred", |counts, _| {
            counts.sessions.unverified == count && counts.sessions.dead_letters_deferred == count
        })
        .await;
    assert_eq!((consumer.counts().sessions.unreadable, consumer.counts().sessions.unsigned), (0, 1));
    consumer.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_changed_oversize_body_parks_its_aggregate() {
    let fixture = SessionFixture::start().await;
    let keys = keys(OLD);
    let events = events(4, 2);
    let mut encoder = signing(&keys);
    let messages = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::ClaimCheck)).collect();
    for event in &events {
        let id = EventMessageId::for_event(event, None);
        fixture.oversize().store(id.as_str(), event.document.as_bytes()).await.unwrap();
    }
    // The body of another event of the same length: only the hash tells.
    let changed = EventMessageId::for_event(&events[0], None);
    let forged = event("order-1", 9);
    let body = Binary { subtype: BinarySubtype::Generic, bytes: forged.document.as_bytes().to_vec() };
    assert_eq!(forged.document.as_bytes().len(), events[0].document.as_bytes().len());
    let bodies = fixture.coordination.collection::<Document>(claim_check::COLLECTION);
    let filter = doc! { "_id.message": changed.as_str() };
    bodies.update_one(filter, doc! { "$set": { "body": body } }).await.unwrap();
    fixture.send(messages).await;
    let consumer = consume_with(&fixture, sessions(1), keys);
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 4).await;
    assert_eq!(fixture.parked("order-1").await, Some(("no_body".to_owned(), 2)));
    assert_eq!(consumer.counts().sessions.unverified, 1);
    assert_eq!(fixture.applied_numbers().await, expected(&[events[1].clone(), events[3].clone()]));
    consumer.stop().await.unwrap();
}

#[expect(clippy::disallowed_methods, reason = "the setting under test is a date")]
#[tokio::test]
async fn unsigned_messages_are_accepted_only_until_the_time() {
    let fixture = SessionFixture::start().await;
    let (events, now) = (events(8, 2), SystemTime::now());
    fixture.publish(&events[..4]).await;
    let open = keys(OLD).accepting_unsigned_until(now + Duration::from_secs(3_600));
    let consumer = consume_with(&fixture, sessions(2), open);
    fixture.assert_applied(&events[..4]).await;
    fixture.publish_as(&events[4..6], signing(&keys(OLD))).await;
    fixture.assert_applied(&events[..6]).await;
    assert_eq!((consumer.counts().sessions.unsigned, consumer.counts().sessions.unverified), (4, 0));
    consumer.stop().await.unwrap();
    fixture.publish(&events[6..]).await;
    let consumer = consume_with(&fixture, sessions(2), keys(OLD).accepting_unsigned_until(now));
    consumer
        .wait_until("the unsigned messages to be deferred", |counts, _| {
            counts.sessions.unverified == 2 && counts.sessions.dead_letters_deferred == 2
        })
        .await;
    fixture.assert_applied(&events[..6]).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn keys_rotate_while_old_and_new_pods_run() {
    let fixture = SessionFixture::start().await;
    let both = || keys(&format!("{OLD} {NEW}"));
    let new_signs = || both().signing_with("new").unwrap();
    // Each step: the keys of the pods that are not updated yet, of those that are, and of the leader.
    let steps = [
        (keys(OLD), both(), keys(OLD)),
        (keys(OLD), both(), both()),
        (both(), new_signs(), both()),
        (both(), new_signs(), new_signs()),
        (new_signs(), keys(NEW), new_signs()),
        (new_signs(), keys(NEW), keys(NEW)),
    ];
    let events = events(240, 12);
    for (part, (before, after, leader)) in events.chunks(40).zip(steps) {
        let pods = [before, after].map(|keys| consume_with(&fixture, sessions(6), keys));
        fixture.publish_as(part, signing(&leader)).await;
        fixture.wait_until_settled().await;
        for pod in pods {
            assert_eq!((pod.counts().sessions.unverified, pod.counts().sessions.unsigned), (0, 0));
            pod.stop().await.unwrap();
        }
    }
    fixture.assert_applied(&events).await;
}

#[tokio::test]
async fn a_message_of_an_unknown_key_waits_for_a_pod_that_has_it() {
    let fixture = SessionFixture::start().await;
    let events = events(6, 1);
    let leader = keys(&format!("{NEW} {OLD}"));
    let behind = consume_with(&fixture, sessions(1), keys(OLD));
    fixture.publish_as(&events, signing(&leader)).await;
    behind.wait_until("the session to be released", |counts, _| counts.sessions.dropped >= 2).await;
    let updated = consume_with(&fixture, sessions(1), leader);
    fixture.assert_applied(&events).await;
    fixture.wait_until_settled().await;
    for pod in [behind, updated] {
        assert_eq!(pod.counts().sessions.unverified, 0);
        pod.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_message_nobody_can_verify_does_not_block_its_session() {
    let fixture = SessionFixture::start().await;
    let events = events(4, 1);
    fixture.publish_as(&events[..2], signing(&keys(OLD))).await;
    fixture.publish_as(&[event("order-0", 99)], signing(&keys(NEW))).await;
    fixture.publish_as(&events[2..], signing(&keys(OLD))).await;
    // Nor does one of a newer format, which nobody can verify.
    let newer = Message::new("who knows").with_session("order-1").with_property(property::FORMAT, 2).with_id("newer");
    fixture.send(vec![newer.encode()]).await;
    let consumer = consume_with(&fixture, sessions(2), keys(OLD));
    fixture.assert_applied(&events).await;
    consumer
        .wait_until("the messages to be deferred", |counts, _| {
            counts.sessions.unverified == 2 && counts.sessions.dead_letters_deferred == 2
        })
        .await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_dead_letter_is_verified_before_it_is_parked() {
    let fixture = SessionFixture::start().await;
    let keys = keys(OLD);
    let (real, forged) = (event("order-0", 1), event("order-1", 2));
    fixture.publish_as(std::slice::from_ref(&real), signing(&keys)).await;
    let signed = encode_one(&mut signing(&keys), &forged);
    fixture.send(vec![with_body_of(signed, &event("order-1", 3))]).await;
    // As the bus does it at its delivery limit.
    for session in ["order-0", "order-1"] {
        let mut held = fixture.bus.accept_session(SUBSCRIPTION_PATH, session).await.unwrap();
        let messages = held.receive(1, SOON).await.unwrap();
        let reason = "MaxDeliveryCountExceeded".into();
        let letter = Settlement::DeadLetter { reason, description: String::new(), properties: Map::new() };
        held.settle(&messages[..1], letter).await.unwrap();
        held.close().await.unwrap();
    }
    let consumer = consume_with(&fixture, sessions(1), keys);
    consumer
        .wait_until("the dead letters to be handled", |counts, _| {
            counts.sessions.dead_letters_parked == 1 && counts.sessions.dead_letters_deferred == 1
        })
        .await;
    assert_eq!(consumer.counts().sessions.unverified, 1);
    assert_eq!(fixture.parked("order-0").await, Some(("dead_lettered".to_owned(), 1)));
    assert_eq!(fixture.parked("order-1").await, None);
    consumer.stop().await.unwrap();
    let cursors = fixture.views.collection::<Document>("_headwater_cursors");
    assert_eq!(cursors.count_documents(doc! { "_id.aggregate": "order-1" }).await.unwrap(), 0);
}
