//! The session lock or the connection is lost: nothing is applied twice or out of order.

use std::time::Duration;

use serde_json::json;

use crate::fixture::*;

#[tokio::test]
async fn lost_locks_with_two_consumers_do_no_harm() {
    let fixture = SessionFixture::start().await;
    let events = events(3_000, 30);
    fixture.inject_fault(json!({ "kind": "expire_session_lock", "entity": SUBSCRIPTION_PATH, "skip": 50, "times": 40, "one_in": 30, "seed": 7 })).await;
    fixture.publish(&events).await;
    let (one, other) = (fixture.consume(sessions(8)), fixture.consume(sessions(8)));
    fixture.assert_applied(&events).await;
    fixture.wait_until_settled().await;
    let lost = one.counts().sessions.locks_lost + other.counts().sessions.locks_lost;
    assert!(lost > 0, "no lock was lost");
    assert!(one.counts().sessions.redelivered + other.counts().sessions.redelivered > 0);
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_holder_that_lost_its_lock_settles_nothing() {
    let fixture = SessionFixture::start().await;
    let events = events(40, 1);
    fixture.publish(&events).await;
    // The transaction conflicts with the locked document and is retried until the lock is released.
    let blocker = DocumentLock::new(&fixture).await;
    let one = fixture.consume(sessions(1));
    one.wait_until("a conflict in the first consumer", |counts, _| counts.events.conflicts > 0).await;
    fixture
        .inject_fault(json!({ "kind": "expire_session_lock", "entity": SUBSCRIPTION_PATH, "session": "order-0" }))
        .await;
    let other = fixture.consume(sessions(1));
    other
        .wait_until("a conflict in the second consumer on the same session", |counts, _| counts.events.conflicts > 0)
        .await;
    blocker.release().await;
    fixture.assert_applied(&events).await;
    other.wait_until("the second consumer to settle all messages", |counts, _| counts.sessions.settled == 40).await;
    one.wait_until("the first consumer to notice the lost lock", |counts, _| counts.sessions.locks_lost == 1).await;
    assert_eq!(one.counts().sessions.settled, 0);
    let (one_did, other_did) = (one.counts().events, other.counts().events);
    // The first holder had a first credit window of 16 messages.
    assert_eq!((one_did.applied + other_did.applied, one_did.duplicates + other_did.duplicates), (40, 16));
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_connection_lost_while_settling_costs_only_a_redelivery() {
    let fixture = SessionFixture::start().await;
    let events = events(2_000, 20);
    fixture
        .inject_fault(json!({ "kind": "drop_connection", "entity": SUBSCRIPTION_PATH, "skip": 5, "times": 6, "one_in": 10, "seed": 3 }))
        .await;
    fixture.publish(&events).await;
    let consumer = fixture.consume(sessions(8));
    fixture.assert_applied(&events).await;
    fixture.wait_until_settled().await;
    assert!(consumer.counts().sessions.dropped > 0, "no connection was lost");
    consumer.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn a_lock_is_renewed_during_a_slow_transaction() {
    let fixture = SessionFixture::with(|outlet| outlet.lock_duration = Duration::from_secs(5)).await;
    let events = events(5, 1);
    fixture.publish(&events).await;
    // The transaction conflicts with the locked document and is retried until the lock is released.
    let blocker = DocumentLock::new(&fixture).await;
    let consumer = fixture.consume(sessions(1));
    consumer.wait_until("a conflict", |counts, _| counts.events.conflicts > 0).await;
    // Longer than the lock.
    tokio::time::sleep(Duration::from_secs(7)).await;
    blocker.release().await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 5).await;
    assert_eq!((consumer.counts().sessions.locks_lost, consumer.counts().sessions.accepted), (0, 1));
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}
