//! Events that cannot be applied, and events that the bus dead-lettered.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use pipeline::view::OnPoison;
use servicebus::Settlement;

use crate::fixture::*;

/// Makes `$push` fail for this aggregate.
async fn poison(fixture: &SessionFixture, aggregate: &str) {
    let orders = fixture.views.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": aggregate, "seen": "no list" }).await.unwrap();
}

async fn repair(fixture: &SessionFixture, aggregate: &str) {
    let orders = fixture.views.collection::<Document>("orders");
    orders.update_one(doc! { "_id": aggregate }, doc! { "$set": { "seen": [] } }).await.unwrap();
}

#[tokio::test]
async fn a_poisoned_aggregate_is_parked_and_others_continue() {
    let fixture = SessionFixture::start().await;
    let events = events(600, 6);
    poison(&fixture, "order-2").await;
    fixture.publish(&events).await;
    let consumer = fixture.consume(sessions(6));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 600).await;
    assert_eq!(fixture.parked("order-2").await, Some(("poison".to_owned(), 100)));
    assert_eq!((consumer.counts().events.applied, consumer.counts().events.parked), (500, 100));
    consumer.stop().await.unwrap();
    repair(&fixture, "order-2").await;
    let mut expected = expected(&events);
    expected.insert("order-2".into(), vec![]);
    assert_eq!(fixture.applied_numbers().await, expected);
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_poisoned_message_may_also_be_dead_lettered() {
    let fixture = SessionFixture::start().await;
    let events = events(5, 1);
    poison(&fixture, "order-0").await;
    fixture.publish(&events).await;
    let mut config = sessions(1);
    config.view.on_poison = OnPoison::DeadLetter;
    let consumer = fixture.consume(config);
    consumer
        .wait_until("the dead letter to be deferred", |counts, _| {
            counts.sessions.settled == 5 && counts.sessions.dead_letters_deferred == 1
        })
        .await;
    assert_eq!(consumer.counts().sessions.dead_letters_parked, 0, "our own dead letters are not parked again");
    assert_eq!(fixture.parked("order-0").await, Some(("poison".to_owned(), 5)));
    consumer.stop().await.unwrap();
}

/// Abandons the first message of a session so many times.
async fn abandon(fixture: &SessionFixture, session: &str, times: u32) {
    for _ in 0..times {
        let mut held = fixture.bus.accept_session(SUBSCRIPTION_PATH, session).await.unwrap();
        let messages = held.receive(1, SOON).await.unwrap();
        held.settle(&messages[..1], Settlement::Abandon { properties: servicebus::Map::new() }).await.unwrap();
        held.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_event_at_half_the_delivery_limit_is_parked_untried() {
    let fixture = SessionFixture::with(|outlet| outlet.max_delivery_count = 20).await;
    let events = events(3, 1);
    fixture.publish(&events).await;
    abandon(&fixture, "order-0", 10).await;
    let consumer = fixture.consume(sessions(1).with_max_delivery_count(20));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 3).await;
    assert_eq!(fixture.parked("order-0").await, Some(("delivery_count".to_owned(), 3)));
    assert!(fixture.view("orders").await.is_empty());
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn an_event_below_half_the_delivery_limit_is_applied() {
    let fixture = SessionFixture::with(|outlet| outlet.max_delivery_count = 20).await;
    let events = events(3, 1);
    fixture.publish(&events).await;
    abandon(&fixture, "order-0", 6).await;
    let consumer = fixture.consume(sessions(1).with_max_delivery_count(20));
    fixture.assert_applied(&events).await;
    assert!(consumer.counts().sessions.redelivered >= 1);
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn events_dead_lettered_by_the_bus_are_parked() {
    let fixture = SessionFixture::with(|outlet| outlet.max_delivery_count = 1).await;
    let events = events(6, 2);
    fixture.publish(&events).await;
    abandon(&fixture, "order-0", 1).await;
    let consumer = fixture.consume(sessions(2));
    consumer.wait_until("the dead letter to be parked", |counts, _| counts.sessions.dead_letters_parked == 1).await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 5).await;
    let (reason, waiting) = fixture.parked("order-0").await.unwrap();
    assert_eq!(reason, "dead_lettered");
    // Later events were applied before the dead letter was read, or are queued with it.
    let applied = fixture.applied_numbers().await.get("order-0").map_or(0, Vec::len);
    assert_eq!((applied as i64 + waiting, fixture.applied_numbers().await["order-1"].len()), (3, 3));
    consumer.stop().await.unwrap();
    let mut letters = fixture.bus.receiver(&format!("{SUBSCRIPTION_PATH}/$DeadLetterQueue"));
    assert!(letters.receive(1, Duration::from_millis(100)).await.unwrap().is_empty(), "the dead letter is settled");
}
