//! Events published to the bus reach the read models.

use mongodb::bson::doc;
use pipeline::consumer::ConsumerState;

use crate::fixture::*;

#[tokio::test]
async fn a_gap_waits_for_the_event_that_arrives_next() {
    let mut fixture = SessionFixture::start().await;
    // The source has none of the events.
    fixture.source.sequence = Some("n".into());
    let sequenced = |number: i64, token: i64| pipeline::event::ChangeEvent {
        sequence: Some(number),
        token: event("order-0", token).token,
        ..event("order-0", number)
    };
    fixture.publish(&[sequenced(1, 1), sequenced(3, 2)]).await;
    let consumer = fixture.consume(sessions(1));
    consumer.wait_until("the event after the gap", |counts, _| counts.sessions.received == 2).await;
    fixture.publish(&[sequenced(4, 3), sequenced(2, 4)]).await;
    let events: Vec<_> = (1..=4).map(|number| event("order-0", number)).collect();
    fixture.assert_applied(&events).await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 4).await;
    assert_eq!((fixture.parked("order-0").await, consumer.counts().events.gaps_healed), (None, 0));
    consumer.stop().await.unwrap();
}

/// The source has every event, so that only the wait keeps a gap from being read there.
#[tokio::test]
async fn a_gap_waits_before_it_asks_the_source() {
    let mut fixture = SessionFixture::start().await;
    let events = crate::special_messages::sequenced(&mut fixture, 21).await;
    let consumer = fixture.consume(sessions(1));
    fixture.publish(&events[..1]).await;
    // On a busy machine an event may arrive after the wait; not every time.
    let mut rounds = events[1..].chunks(2).zip(1..);
    let waited = loop {
        let Some((pair, round)) = rounds.next() else { break false };
        let healed = consumer.counts().events.gaps_healed;
        fixture.publish(&pair[1..]).await;
        consumer.wait_until("the event after the gap", |counts, _| counts.sessions.received == 2 * round).await;
        // Longer than a read of the source, and shorter than the wait.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        fixture.publish(&pair[..1]).await;
        consumer.wait_until("both to be settled", |counts, _| counts.sessions.settled == 2 * round + 1).await;
        if consumer.counts().events.gaps_healed == healed {
            break true;
        }
    };
    assert!(waited, "every gap was read from the source");
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn every_event_takes_effect_once_and_in_order() {
    let fixture = SessionFixture::start().await;
    let events = events(3_000, 20);
    fixture.publish(&events).await;
    let consumer = fixture.consume(sessions(8));
    fixture.assert_applied(&events).await;
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 3_000).await;
    let counts = consumer.counts();
    assert_eq!((counts.events.applied, counts.events.duplicates, counts.sessions.redelivered), (3_000, 0, 0));
    assert!(consumer.handle.last_progress().is_some());
    consumer.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn events_published_while_running_are_applied() {
    let fixture = SessionFixture::start().await;
    let consumer = fixture.consume(sessions(4));
    let events = events(200, 5);
    for part in events.chunks(20) {
        fixture.publish(part).await;
    }
    fixture.assert_applied(&events).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn events_published_twice_take_effect_once() {
    let fixture = SessionFixture::start().await;
    let events = events(100, 4);
    fixture.publish(&events).await;
    fixture.publish(&events).await;
    let consumer = fixture.consume(sessions(4));
    consumer.wait_until("all messages to be settled", |counts, _| counts.sessions.settled == 200).await;
    fixture.assert_applied(&events).await;
    assert_eq!(consumer.counts().events.duplicates, 100);
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn two_consumers_share_the_sessions() {
    let fixture = SessionFixture::start().await;
    let events = events(4_000, 200);
    let (one, other) = (fixture.consume(sessions(8)), fixture.consume(sessions(8)));
    for part in events.chunks(400) {
        fixture.publish(part).await;
    }
    fixture.assert_applied(&events).await;
    let applied = [one.counts().events.applied, other.counts().events.applied];
    assert!(applied.iter().all(|applied| *applied > 400), "one consumer applied too little: {applied:?}");
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn many_single_event_aggregates_drain_without_a_stall() {
    let fixture = SessionFixture::start().await;
    let events = events(2_000, 2_000);
    fixture.publish(&events).await;
    let started = std::time::Instant::now();
    let consumer = fixture.consume(sessions(32));
    fixture.assert_applied(&events).await;
    // If each session were held idle for its second, this would take over a minute.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    println!("2,000 sessions of one event in {:?}: {:?}", started.elapsed(), consumer.counts());
    consumer.stop().await.unwrap();
    fixture.assert_drained().await;
}

#[tokio::test]
async fn an_invalid_read_model_is_reported_before_any_accept() {
    let mut fixture = SessionFixture::start().await;
    fixture.models = serde_json::json!({ "orders": { "when": { "Added": { "$put": { "n": 1 } } } } });
    fixture.publish(&events(1, 1)).await;
    let consumer = fixture.consume(sessions(1));
    let handle = consumer.handle.clone();
    let error = consumer.join().await.unwrap_err();
    assert!(error.to_string().contains("1 problems"), "{error}");
    assert!(matches!(handle.state(), ConsumerState::Halted(_)));
    assert_eq!(handle.counts().sessions.accepted, 0);
}

#[tokio::test]
async fn a_missing_subscription_is_reported_and_waited_for() {
    let fixture = SessionFixture::start().await;
    let mut dependencies = fixture.dependencies(client(&fixture.broker));
    dependencies.subscription = "nobody".into();
    let consumer = RunningConsumer::start(sessions(2), dependencies);
    let missing = ConsumerState::Blocked(pipeline::session::SessionProblem::SubscriptionMissing);
    consumer.wait_until("the problem to be reported", |_, state| state == missing).await;
    consumer.stop().await.unwrap();
    assert_eq!(
        fixture.views.collection::<mongodb::bson::Document>("orders").count_documents(doc! {}).await.unwrap(),
        0
    );
}
