//! A session's lock is lost, or the way to the bus: nothing is applied twice or out of order.

use std::time::Duration;

use serde_json::json;

use crate::house::*;

#[tokio::test]
async fn locks_that_are_lost_while_others_take_the_sessions_do_no_harm() {
    let house = House::start().await;
    let events = events(3_000, 30);
    house.arm(json!({ "kind": "expire_session_lock", "entity": KEPT_BY, "skip": 50, "times": 40, "one_in": 30, "seed": 7 })).await;
    house.publish(&events).await;
    let (one, other) = (house.consume(sessions(8)), house.consume(sessions(8)));
    house.holds(&events).await;
    house.is_quiet().await;
    let lost = one.counts().sessions.locks_lost + other.counts().sessions.locks_lost;
    assert!(lost > 0, "no lock was lost");
    assert!(one.counts().sessions.redelivered + other.counts().sessions.redelivered > 0);
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn a_holder_that_is_slow_past_its_lock_settles_nothing_and_the_next_one_skips_what_it_did() {
    let house = House::start().await;
    let events = events(40, 1);
    house.publish(&events).await;
    // The transaction meets another's lock on the document, and is tried again until that is gone.
    let blocker = Blocker::new(&house).await;
    let one = house.consume(sessions(1));
    one.until("the first to be at work", |counts, _| counts.events.conflicts > 0).await;
    house.arm(json!({ "kind": "expire_session_lock", "entity": KEPT_BY, "session": "order-0" })).await;
    let other = house.consume(sessions(1));
    other.until("the second to be at work on the same session", |counts, _| counts.events.conflicts > 0).await;
    blocker.go().await;
    house.holds(&events).await;
    other.until("the second to settle it all", |counts, _| counts.sessions.settled == 40).await;
    one.until("the first to see that its lock is lost", |counts, _| counts.sessions.locks_lost == 1).await;
    assert_eq!(one.counts().sessions.settled, 0);
    let (one_did, other_did) = (one.counts().events, other.counts().events);
    // The first holder had a first window of 16 in hand.
    assert_eq!((one_did.applied + other_did.applied, one_did.duplicates + other_did.duplicates), (40, 16));
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn connections_that_die_while_messages_are_settled_cost_only_a_redelivery() {
    let house = House::start().await;
    let events = events(2_000, 20);
    house
        .arm(json!({ "kind": "drop_connection", "entity": KEPT_BY, "skip": 5, "times": 6, "one_in": 10, "seed": 3 }))
        .await;
    house.publish(&events).await;
    let run = house.consume(sessions(8));
    house.holds(&events).await;
    house.is_quiet().await;
    assert!(run.counts().sessions.dropped > 0, "no connection died");
    run.stop().await.unwrap();
    house.is_drained().await;
}

#[tokio::test]
async fn a_lock_is_renewed_while_a_transaction_takes_long() {
    let house = House::with(|outlet| outlet.lock_duration = Duration::from_secs(5)).await;
    let events = events(5, 1);
    house.publish(&events).await;
    // The transaction meets another's lock on the document, and is tried again until that is gone.
    let blocker = Blocker::new(&house).await;
    let run = house.consume(sessions(1));
    run.until("it to be at work", |counts, _| counts.events.conflicts > 0).await;
    // Longer than the lock.
    tokio::time::sleep(Duration::from_secs(7)).await;
    blocker.go().await;
    run.until("everything to be settled", |counts, _| counts.sessions.settled == 5).await;
    assert_eq!((run.counts().sessions.locks_lost, run.counts().sessions.accepted), (0, 1));
    house.holds(&events).await;
    run.stop().await.unwrap();
}
