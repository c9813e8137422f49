//! When a session is released: at its limits, or earlier when another session needs the slot.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use mongodb::bson::{RawDocumentBuf, doc};
use pipeline::event::ChangeEvent;

use crate::fixture::*;

#[tokio::test]
async fn a_session_is_kept_while_nobody_needs_its_slot() {
    let fixture = SessionFixture::start().await;
    let mut config = sessions(4);
    config.session.session_idle_timeout = Duration::from_secs(60);
    config.session.max_session_duration = Duration::from_secs(60);
    let consumer = fixture.consume(config);
    let events = events(5, 1);
    for (event, settled) in events.iter().zip(1..) {
        fixture.publish(std::slice::from_ref(event)).await;
        consumer.wait_until("the message to be settled", |counts, _| counts.sessions.settled == settled).await;
    }
    assert_eq!((consumer.counts().sessions.accepted, consumer.counts().sessions.held), (1, 1));
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_session_is_released_after_the_idle_timeout() {
    let fixture = SessionFixture::start().await;
    let mut config = sessions(4);
    config.session.session_idle_timeout = Duration::from_millis(200);
    let consumer = fixture.consume(config);
    fixture.publish(&events(1, 1)).await;
    consumer
        .wait_until("the session to be settled and closed", |counts, _| {
            counts.sessions.settled == 1 && counts.sessions.held == 0
        })
        .await;
    assert_eq!(consumer.counts().bytes_in_flight, 0);
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_session_is_released_at_once_when_others_wait() {
    let fixture = SessionFixture::start().await;
    let mut config = sessions(1);
    // Longer than this test runs.
    config.session.session_idle_timeout = Duration::from_secs(3_600);
    config.session.max_session_duration = Duration::from_secs(3_600);
    let consumer = fixture.consume(config);
    let events = events(30, 3);
    for (event, settled) in events.iter().zip(1..) {
        fixture.publish(std::slice::from_ref(event)).await;
        consumer.wait_until("the message to be settled", |counts, _| counts.sessions.settled == settled).await;
    }
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_is_released_after_its_event_limit() {
    let fixture = SessionFixture::start().await;
    let events = events(1_000, 1);
    fixture.publish(&events).await;
    let mut config = sessions(2);
    config.session.max_session_events = NonZeroUsize::new(100).unwrap();
    let consumer = fixture.consume(config);
    fixture.assert_applied(&events).await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 1_000).await;
    assert!(consumer.counts().sessions.accepted >= 10, "{:?}", consumer.counts());
    assert_eq!(consumer.counts().sessions.redelivered, 0, "released messages do not count as redelivered");
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_is_released_after_its_time_limit() {
    let fixture = SessionFixture::start().await;
    let mut config = sessions(2);
    config.session.max_session_duration = Duration::from_millis(100);
    config.session.session_idle_timeout = Duration::from_secs(60);
    let consumer = fixture.consume(config);
    let mut events = vec![];
    // Never idle for long, and yet released and accepted several times.
    while consumer.counts().sessions.accepted < 4 {
        let next = event("order-0", events.len() as i64 + 1);
        fixture.publish(std::slice::from_ref(&next)).await;
        events.push(next);
        assert!(events.len() < 20_000, "{:?}", consumer.counts());
    }
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn large_messages_stay_within_the_budget() {
    let fixture = SessionFixture::start().await;
    let large = |number: i64| {
        let document = doc! { "aggregateId": "x", "type": "Added", "n": number, "weight": "w".repeat(100 << 10) };
        ChangeEvent {
            document: RawDocumentBuf::try_from(&document).unwrap(),
            ..event(format!("order-{}", number % 8), number)
        }
    };
    let events: Vec<_> = (1..=240).map(large).collect();
    fixture.publish(&events).await;
    let mut config = sessions(8);
    let budget = 2 << 20;
    config.session.bytes_in_flight = NonZeroUsize::new(budget).unwrap();
    let consumer = fixture.consume(config);
    let (mut most, started) = (0, Instant::now());
    while consumer.counts().sessions.settled < 240 {
        most = most.max(consumer.counts().bytes_in_flight);
        assert!(started.elapsed() < SOON, "{:?}", consumer.counts());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One message per session may exceed the budget.
    assert!(most > 0 && most <= budget + 8 * (104 << 10), "{most}");
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}
