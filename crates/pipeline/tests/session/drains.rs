//! Stopping, and starting again.

use std::time::{Duration, Instant};

use pipeline::consumer::State;
use testkit::proxy::{Fault, Proxy};

use crate::house::*;

#[tokio::test]
async fn a_stop_settles_what_is_in_hand_and_leaves_the_rest_as_it_was() {
    let house = House::start().await;
    let events = events(6_000, 12);
    house.publish(&events).await;
    let run = house.consume(sessions(6));
    run.until("some to be applied", |counts, _| counts.events.applied > 300).await;
    let handle = run.handle.clone();
    run.stop().await.unwrap();
    let counts = handle.counts();
    assert_eq!(handle.state(), State::Idle);
    assert_eq!((counts.sessions.held, counts.sessions.bytes_in_flight), (0, 0));
    assert_eq!(counts.sessions.settled, counts.events.applied, "all that was applied, and nothing else, is settled");
    let next = house.consume(sessions(6));
    house.holds(&events).await;
    assert_eq!((next.counts().events.duplicates, next.counts().sessions.redelivered), (0, 0));
    next.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn a_stop_ends_in_time_though_a_transaction_does_not() {
    let house = House::start().await;
    let events = events(10, 1);
    house.publish(&events[..5]).await;
    let mut config = sessions(1);
    config.session.drain_within = Duration::from_millis(300);
    let mongo = testkit::mongo::shared().await.unwrap();
    let address = mongo.uri().trim_start_matches("mongodb://").split('/').next().unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    let through = format!("mongodb://{}/?directConnection=true", proxy.address());
    let mut places = house.places(client(&house.broker));
    places.views = mongodb::Client::with_uri_str(through).await.unwrap().database(house.views.name());
    let run = Run::start(config, places);
    run.until("the first to be settled", |counts, _| counts.sessions.settled == 5).await;
    proxy.inject(Fault::Freeze).await;
    house.publish(&events[5..]).await;
    run.until("more to be in hand", |counts, _| counts.sessions.received > 5).await;
    let started = Instant::now();
    run.stop().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    proxy.heal().await;
    let next = house.consume(sessions(1));
    house.holds(&events).await;
    next.stop().await.unwrap();
}

#[tokio::test]
async fn a_stop_does_not_wait_for_what_fails_again_and_again() {
    let house = House::start().await;
    let events = events(5, 1);
    house.publish(&events).await;
    let blocker = Blocker::new(&house).await;
    let run = house.consume(sessions(1));
    run.until("it to be at work", |counts, _| counts.events.conflicts > 0).await;
    let (handle, started) = (run.handle.clone(), Instant::now());
    run.stop().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "there were twenty seconds for it: {:?}", started.elapsed());
    assert_eq!(handle.counts().sessions.dropped, 0, "that it stops is no failure");
    blocker.go().await;
    let next = house.consume(sessions(1));
    house.holds(&events).await;
    assert_eq!(next.counts().sessions.redelivered, 0, "a session that is let go does not count as a delivery");
    next.stop().await.unwrap();
}

#[tokio::test]
async fn a_batch_that_fails_is_not_settled_and_comes_again() {
    let house = House::start().await;
    let events = events(20, 1);
    house.publish(&events).await;
    let blocker = Blocker::new(&house).await;
    let mut config = sessions(2);
    config.view.retry_for = Duration::from_millis(100);
    let run = house.consume(config);
    run.until("it to fail twice", |counts, _| counts.sessions.dropped >= 2).await;
    blocker.go().await;
    // Short: with the defect planted this is what is waited for in vain.
    house.holds_within(&events, Duration::from_secs(10)).await;
    run.until("it to be settled", |counts, _| counts.sessions.settled == 20).await;
    assert_eq!(run.counts().sessions.redelivered, 0, "a session that is let go does not count as a delivery");
    assert_eq!(run.handle.state(), State::Consuming);
    run.stop().await.unwrap();
    house.is_drained().await;
}
