//! Events that cannot be applied, and those that the bus gave up on.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use pipeline::view::OnPoison;
use servicebus::Settlement;

use crate::house::*;

/// Nothing can be appended to it.
async fn poison(house: &House, aggregate: &str) {
    let orders = house.views.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": aggregate, "seen": "no list" }).await.unwrap();
}

async fn mend(house: &House, aggregate: &str) {
    let orders = house.views.collection::<Document>("orders");
    orders.update_one(doc! { "_id": aggregate }, doc! { "$set": { "seen": [] } }).await.unwrap();
}

#[tokio::test]
async fn a_poisoned_aggregate_is_parked_and_the_others_go_on() {
    let house = House::start().await;
    let events = events(600, 6);
    poison(&house, "order-2").await;
    house.publish(&events).await;
    let run = house.consume(sessions(6));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 600).await;
    assert_eq!(house.parked("order-2").await, Some(("poison".to_owned(), 100)));
    assert_eq!((run.counts().events.applied, run.counts().events.parked), (500, 100));
    run.stop().await.unwrap();
    mend(&house, "order-2").await;
    let mut expected = expected(&events);
    expected.insert("order-2".into(), vec![]);
    assert_eq!(house.seen().await, expected);
    house.is_drained().await;
}

#[tokio::test]
async fn a_poisoned_message_may_go_to_the_dead_letters_besides_and_stays_there() {
    let house = House::start().await;
    let events = events(5, 1);
    poison(&house, "order-0").await;
    house.publish(&events).await;
    let mut config = sessions(1);
    config.view.on_poison = OnPoison::DeadLetter;
    let run = house.consume(config);
    run.until("it to be left for people", |counts, _| counts.sessions.settled == 5 && counts.sessions.set_aside == 1)
        .await;
    assert_eq!(run.counts().sessions.dead_letters, 0, "our own letters are not parked again");
    assert_eq!(house.parked("order-0").await, Some(("poison".to_owned(), 5)));
    run.stop().await.unwrap();
}

/// Gives a session's first message back as failed, so many times.
async fn abandon(house: &House, session: &str, times: u32) {
    for _ in 0..times {
        let mut held = house.bus.accept_session(KEPT_BY, session).await.unwrap();
        let messages = held.receive(1, SOON).await.unwrap();
        held.settle(&messages[..1], Settlement::Abandon { properties: servicebus::Map::new() }).await.unwrap();
        held.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_event_seen_half_as_often_as_the_bus_allows_is_parked_untried() {
    let house = House::with(|outlet| outlet.max_delivery_count = 20).await;
    let events = events(3, 1);
    house.publish(&events).await;
    abandon(&house, "order-0", 10).await;
    let run = house.consume(sessions(1).with_max_delivery_count(20));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 3).await;
    assert_eq!(house.parked("order-0").await, Some(("delivery_count".to_owned(), 3)));
    assert!(house.view("orders").await.is_empty());
    run.stop().await.unwrap();
}

#[tokio::test]
async fn an_event_seen_less_often_is_applied() {
    let house = House::with(|outlet| outlet.max_delivery_count = 20).await;
    let events = events(3, 1);
    house.publish(&events).await;
    abandon(&house, "order-0", 6).await;
    let run = house.consume(sessions(1).with_max_delivery_count(20));
    house.holds(&events).await;
    assert!(run.counts().sessions.redelivered >= 1);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn what_the_bus_dead_lettered_is_parked() {
    let house = House::with(|outlet| outlet.max_delivery_count = 1).await;
    let events = events(6, 2);
    house.publish(&events).await;
    abandon(&house, "order-0", 1).await;
    let run = house.consume(sessions(2));
    run.until("the letter to be parked", |counts, _| counts.sessions.dead_letters == 1).await;
    run.until("all to be settled", |counts, _| counts.sessions.settled == 5).await;
    let (reason, waiting) = house.parked("order-0").await.unwrap();
    assert_eq!(reason, "dead_lettered");
    // Those behind it were applied before the letter was read, or wait with it.
    let applied = house.seen().await.get("order-0").map_or(0, Vec::len);
    assert_eq!((applied as i64 + waiting, house.seen().await["order-1"].len()), (3, 3));
    run.stop().await.unwrap();
    let mut letters = house.bus.receiver(&format!("{KEPT_BY}/$DeadLetterQueue"));
    assert!(letters.receive(1, Duration::from_millis(100)).await.unwrap().is_empty(), "the letter is taken");
}
