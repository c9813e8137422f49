//! Events on the bus end in the read model.

use mongodb::bson::doc;
use pipeline::consumer::State;

use crate::house::*;

#[tokio::test]
async fn every_event_takes_effect_once_and_in_order() {
    let house = House::start().await;
    let events = events(3_000, 20);
    house.publish(&events).await;
    let run = house.consume(sessions(8));
    house.holds(&events).await;
    run.until("everything to be settled", |counts, _| counts.sessions.settled == 3_000).await;
    let counts = run.counts();
    assert_eq!((counts.events.applied, counts.events.duplicates, counts.sessions.redelivered), (3_000, 0, 0));
    assert!(run.handle.last_progress().is_some());
    run.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn what_comes_while_it_runs_is_applied_too() {
    let house = House::start().await;
    let run = house.consume(sessions(4));
    let events = events(200, 5);
    for part in events.chunks(20) {
        house.publish(part).await;
    }
    house.holds(&events).await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn what_is_published_twice_takes_effect_once() {
    let house = House::start().await;
    let events = events(100, 4);
    house.publish(&events).await;
    house.publish(&events).await;
    let run = house.consume(sessions(4));
    run.until("all to be settled", |counts, _| counts.sessions.settled == 200).await;
    house.holds(&events).await;
    assert_eq!(run.counts().events.duplicates, 100);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn two_consumers_share_the_sessions() {
    let house = House::start().await;
    let events = events(4_000, 200);
    let (one, other) = (house.consume(sessions(8)), house.consume(sessions(8)));
    for part in events.chunks(400) {
        house.publish(part).await;
    }
    house.holds(&events).await;
    let applied = [one.counts().events.applied, other.counts().events.applied];
    assert!(applied.iter().all(|applied| *applied > 400), "both took part: {applied:?}");
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn many_aggregates_of_one_event_drain_without_a_stall() {
    let house = House::start().await;
    let events = events(2_000, 2_000);
    house.publish(&events).await;
    let started = std::time::Instant::now();
    let run = house.consume(sessions(32));
    house.holds(&events).await;
    // Had each session been held idle for its second, this would have taken over a minute.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    println!("2,000 sessions of one event in {:?}: {:?}", started.elapsed(), run.counts());
    run.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn a_mistake_in_a_read_model_is_told_before_anything_is_accepted() {
    let mut house = House::start().await;
    house.models = serde_json::json!({ "orders": { "when": { "Added": { "$put": { "n": 1 } } } } });
    house.publish(&events(1, 1)).await;
    let run = house.consume(sessions(1));
    let handle = run.handle.clone();
    let error = run.ended().await.unwrap_err();
    assert!(error.to_string().contains("1 mistakes"), "{error}");
    assert!(matches!(handle.state(), State::Halted(_)));
    assert_eq!(handle.counts().sessions.accepted, 0);
}

#[tokio::test]
async fn a_subscription_that_is_missing_is_told_and_waited_for() {
    let house = House::start().await;
    let mut places = house.places(client(&house.broker));
    places.subscription = "nobody".into();
    let run = Run::start(sessions(2), places);
    let missing = State::Troubled(pipeline::session::Trouble::SubscriptionMissing);
    run.until("the trouble to be told", |_, state| state == missing).await;
    run.stop().await.unwrap();
    assert_eq!(house.views.collection::<mongodb::bson::Document>("orders").count_documents(doc! {}).await.unwrap(), 0);
}
