//! Queues without sessions, dead letters, and settlement results.

use std::time::Duration;

use servicebus::{BusErrorKind, Error, Map, Message, Settlement, Value};

use crate::fixture::*;

fn numbered(count: usize) -> impl Iterator<Item = Message> {
    (0..count).map(|number| Message::new(number.to_string()))
}

#[tokio::test]
async fn a_range_is_completed_in_one_frame() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(100)).await;
    let proxy = testkit::proxy::Proxy::start(fixture.broker.address()).await.unwrap();
    let client = ClientFixture::client_by(proxy.address(), long_timeouts());
    let mut receiver = client.receiver(PLAIN);
    let mut messages = Vec::new();
    while messages.len() < 100 {
        messages.extend(receiver.receive(100, SOON).await.unwrap());
    }
    let before = proxy.counters().to_target.delivered;
    receiver.settle(&messages, Settlement::Complete).await.unwrap();
    let sent = proxy.counters().to_target.delivered - before;
    assert!(sent < 150, "a frame for the range and one for credit, not a hundred: {sent} bytes");
    receiver.close().await.unwrap();
    let mut receiver = fixture.client.receiver(PLAIN);
    assert!(receiver.receive(1, MOMENT).await.unwrap().is_empty(), "all are gone");
}

#[tokio::test]
async fn settling_twice_fails_and_settling_once_does_not() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(2)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let mut messages = receiver.receive(2, SOON).await.unwrap();
    while messages.len() < 2 {
        messages.extend(receiver.receive(1, SOON).await.unwrap());
    }
    receiver.settle(&messages[..1], Settlement::Complete).await.unwrap();
    let error = receiver.settle(&messages, Settlement::Complete).await.unwrap_err();
    let Error::Unsettled { requested: 2, failed, .. } = &error else { panic!("{error:?}") };
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, messages[0].sequence_number());
    assert_eq!(error.kind(), BusErrorKind::MessageLockLost);
}

#[tokio::test]
async fn a_lost_lock_fails_only_its_own_message() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(1)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let mut messages = receiver.receive(1, SOON).await.unwrap();
    fixture.broker.advance_clock(Duration::from_secs(61));
    fixture.send(PLAIN, [Message::new("fresh")]).await;
    // The expired message is redelivered, and the new one arrives; both are locked.
    let mut fresh = Vec::new();
    while fresh.len() < 2 {
        fresh.extend(receiver.receive(2, SOON).await.unwrap());
    }
    messages.extend(fresh);
    let error = receiver.settle(&messages, Settlement::Complete).await.unwrap_err();
    let Error::Unsettled { requested: 3, failed, .. } = &error else { panic!("{error:?}") };
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(error.condition(), Some("com.microsoft:message-lock-lost"));
}

#[tokio::test]
async fn a_renewed_message_stays_locked() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(1)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let messages = receiver.receive(1, SOON).await.unwrap();
    fixture.broker.advance_clock(Duration::from_secs(40));
    let until = receiver.renew_lock(&messages[0]).await.unwrap();
    assert!(until > messages[0].locked_until().unwrap());
    fixture.broker.advance_clock(Duration::from_secs(40));
    receiver.settle(&messages, Settlement::Complete).await.unwrap();
}

#[tokio::test]
async fn dead_letters_carry_their_reason() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(1)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let messages = receiver.receive(1, SOON).await.unwrap();
    let settler = receiver.settler().unwrap();
    settler.dead_letter(&messages[0], "Poison", "cannot be applied").await.unwrap();
    let mut dead = fixture.client.receiver("plain/$DeadLetterQueue");
    let letters = dead.receive(1, SOON).await.unwrap();
    assert_eq!(bodies(&letters), ["0"]);
    assert_eq!(letters[0].dead_letter_reason(), Some("Poison"));
    assert_eq!(letters[0].dead_letter_description(), Some("cannot be applied"));
    dead.settle(&letters, Settlement::Complete).await.unwrap();
    dead.close().await.unwrap();
}

#[tokio::test]
async fn release_redelivers_unchanged_and_abandon_changed() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(1)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let messages = receiver.receive(1, SOON).await.unwrap();
    receiver.settle(&messages, Settlement::Release).await.unwrap();
    let messages = receiver.receive(1, SOON).await.unwrap();
    assert_eq!(messages[0].delivery_count(), 0);
    let properties = Map::new().with("tried", Value::from("once"));
    receiver.settle(&messages, Settlement::Abandon { properties }).await.unwrap();
    let messages = receiver.receive(1, SOON).await.unwrap();
    assert_eq!(messages[0].delivery_count(), 1);
    assert_eq!(messages[0].application_property("tried").unwrap().as_str(), Some("once"));
    receiver.settler().unwrap().defer(&messages[0]).await.unwrap();
    assert!(receiver.receive(1, MOMENT).await.unwrap().is_empty(), "a deferred message is not delivered");
}

#[tokio::test]
async fn closing_a_receiver_releases_prefetched_messages() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(20)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let one = receiver.receive(1, SOON).await.unwrap();
    receiver.settle(&one, Settlement::Complete).await.unwrap();
    receiver.close().await.unwrap();
    let mut receiver = fixture.client.receiver(PLAIN);
    let mut rest = Vec::new();
    while rest.len() < 19 {
        let more = receiver.receive(20, SOON).await.unwrap();
        assert!(!more.is_empty(), "{} of 19 came", rest.len());
        rest.extend(more);
    }
    assert!(rest.iter().all(|message| message.delivery_count() == 0));
}

#[tokio::test]
async fn a_message_of_another_receiver_is_not_settled() {
    let fixture = ClientFixture::start().await;
    fixture.send(PLAIN, numbered(1)).await;
    let mut receiver = fixture.client.receiver(PLAIN);
    let messages = receiver.receive(1, SOON).await.unwrap();
    let mut other = fixture.client.receiver(PLAIN);
    assert!(other.receive(1, MOMENT).await.unwrap().is_empty());
    let error = other.settle(&messages, Settlement::Complete).await.unwrap_err();
    assert_eq!(error.kind(), BusErrorKind::MessageLockLost);
    receiver.settle(&messages, Settlement::Complete).await.unwrap();
}
