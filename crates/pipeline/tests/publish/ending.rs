//! How a run ends: drained, lost, deposed, its gate shut.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lease::CandidateId;
use mongodb::bson::Timestamp;
use pipeline::checkpoint::{self, CheckpointStore, Claim};
use pipeline::event::Term;
use pipeline::publish::{CheckpointInterval, Config, Error, PauseReason, PublishEnd, PublishState};
use testkit::proxy::{Direction, NetworkFault, Proxy};

use crate::house::*;

/// Saves only when told to end.
fn rarely() -> Config {
    Config { checkpoint: CheckpointInterval::Every(Duration::from_secs(3_600)), ..Config::default() }
}

#[tokio::test]
async fn a_drain_brings_out_what_was_captured_and_saves() {
    let house = House::as_designed().await;
    let run = house.publish(1, rarely()).await;
    let handle = run.handle.clone();
    let events = events(500, 7);
    run.give(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(house.phase().await, stream(500));
    let counts = handle.counts();
    assert_eq!((counts.published, counts.in_flight_events, counts.in_flight_bytes), (500, 0, 0));
    assert_eq!(handle.state(), PublishState::Idle);
    let saved = handle.progress();
    let last = Some(Timestamp { time: 1_700_000_000, increment: 500 });
    assert_eq!((saved.acknowledged, saved.saved), (last, last));
    assert!(saved.last_save.is_some());
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn the_checkpoint_follows_while_events_come() {
    let house = House::as_designed().await;
    let run = house.publish(1, Config::default()).await;
    run.give(&events(10, 3)).await;
    testkit::wait::wait_for("the checkpoint at the tenth event", SOON, async || {
        let phase = house.phase().await;
        if phase == stream(10) { Ok(()) } else { Err(phase) }
    })
    .await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
}

#[tokio::test]
async fn a_checkpoint_for_each_event_is_saved_for_each() {
    let house = House::as_designed().await;
    let run = house.publish(1, Config { checkpoint: CheckpointInterval::Each, ..Config::default() }).await;
    let handle = run.handle.clone();
    let events = events(20, 3);
    run.give(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(handle.counts().saves, 20);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn a_shut_gate_lets_nothing_more_out() {
    let house = House::as_designed().await;
    let run = house.publish(1, Config::default()).await;
    let events = events(300, 10);
    run.give(&events[..100]).await;
    run.published(100).await;
    run.gate.store(false, SeqCst);
    run.offer(&events[100..]).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::GateClosed { term } if term == Term::new(1)), "{error}");
    house.holds_in_order(&events[..100]).await;
}

#[tokio::test]
async fn a_deposed_leader_cannot_save_and_ends() {
    let house = House::as_designed().await;
    let run = house.publish(1, Config::default()).await;
    run.give(&events(10, 2)).await;
    testkit::wait::wait_for("a first save", SOON, async || {
        let counts = run.counts();
        if counts.saves > 0 { Ok(()) } else { Err(counts) }
    })
    .await;
    let next = Claim { term: Term::new(2), claimant: CandidateId::new(99), pod_id: "other".into() };
    let inherited = house.checkpoints().claim(&next).await.unwrap();
    run.offer(&events(200, 2)[10..]).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::Deposed { .. })), "{error}");
    assert_eq!(house.phase().await, inherited.phase);
}

#[tokio::test]
async fn an_epoch_that_ended_ends_the_run() {
    let house = House::as_designed().await;
    let run = house.publish(1, Config::default()).await;
    let claim = Claim { term: Term::new(1), claimant: CandidateId::new(1), pod_id: "operator".into() };
    house.checkpoints().begin_epoch(&claim, EPOCH, &stream(500)).await.unwrap();
    run.offer(&events(10, 2)).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::EpochEnded { .. })), "{error}");
}

#[tokio::test]
async fn a_lost_term_ends_at_once_and_saves_nothing() {
    let house = House::as_designed().await;
    let before = house.publish(1, rarely()).await;
    let (mut run, unstarted) = (before, house.phase().await);
    run.give(&events(100, 10)).await;
    run.published(100).await;
    run.lose();
    assert_eq!(run.end().await.unwrap(), PublishEnd::TermLost);
    assert_eq!(house.phase().await, unstarted);
}

#[tokio::test]
async fn a_bus_that_does_not_answer_cannot_keep_a_pod_from_ending() {
    let house = House::as_designed().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = house.topic(house.client(proxy.address()), &gate);
    let config = Config { drain: DRAIN, ..rarely() };
    let run = house.publish_to(topic, gate, 1, config).await;
    run.give(&events(5, 5)).await;
    run.published(5).await;
    proxy.inject(NetworkFault::Withhold(Direction::ToClient)).await;
    let more = events(105, 5);
    run.give(&more[5..]).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Unfinished { events: 100 });
    assert_eq!(house.phase().await, stream(5), "what was acknowledged is saved");
}

/// The rest of a drain that is taken twice would be seen by a slow machine too.
const DRAIN: Duration = Duration::from_secs(4);

/// It has taken the time it was given, once.
fn took_one_drain(took: Duration) {
    assert!((DRAIN / 2..DRAIN * 3 / 2).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_bus_that_was_never_there_cannot_keep_a_pod_from_ending() {
    let house = House::as_designed().await;
    // A port that was free a moment ago, and nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = house.topic(house.client(nobody), &gate);
    let run = house.publish_to(topic, gate, 1, Config { drain: DRAIN, ..Config::default() }).await;
    let unstarted = house.phase().await;
    // How large a message may be is not known: none of them can become one.
    run.give(&events(200, 5)).await;
    run.is_in(PublishState::Paused(PauseReason::Unreachable)).await;
    let (ended, took) = run.stop().await;
    assert!(matches!(ended.unwrap(), PublishEnd::Unfinished { events: 1.. }));
    took_one_drain(took);
    assert_eq!(house.phase().await, unstarted, "nothing was acknowledged");
}

#[tokio::test]
async fn a_bus_that_does_not_answer_while_the_window_is_full_cannot_keep_a_pod_from_ending() {
    let house = House::as_designed().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = house.topic(house.client(proxy.address()), &gate);
    let window_events = 16.try_into().unwrap();
    let run = house.publish_to(topic, gate, 1, Config { drain: DRAIN, window_events, ..rarely() }).await;
    let events = events(205, 20);
    run.give(&events[..5]).await;
    run.published(5).await;
    proxy.inject(NetworkFault::Withhold(Direction::ToClient)).await;
    run.give(&events[5..]).await;
    testkit::wait::wait_for("a full window", SOON, async || match run.counts().in_flight_events {
        11.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let (ended, took) = run.stop().await;
    assert!(matches!(ended.unwrap(), PublishEnd::Unfinished { events: 16.. }));
    took_one_drain(took);
    assert_eq!(house.phase().await, stream(5), "what was acknowledged is saved, and nothing else");
    // The next leader sends what follows the checkpoint.
    let next = house.publish(2, Config::default()).await;
    next.give(&events[5..]).await;
    assert_eq!(next.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}
