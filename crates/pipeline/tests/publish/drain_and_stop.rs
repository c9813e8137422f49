//! How the publisher stops: drained, term lost, deposed, gate closed.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lease::CandidateId;
use mongodb::bson::Timestamp;
use pipeline::checkpoint::{self, CheckpointClaim, CheckpointStore};
use pipeline::event::Term;
use pipeline::publish::{CheckpointInterval, Config, Error, PauseReason, PublishEnd, PublishState};
use testkit::proxy::{Direction, NetworkFault, Proxy};

use crate::fixture::*;

/// Saves only at the stop.
fn save_only_at_stop() -> Config {
    Config { checkpoint: CheckpointInterval::Every(Duration::from_secs(3_600)), ..Config::default() }
}

#[tokio::test]
async fn a_drain_publishes_captured_events_and_saves() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, save_only_at_stop()).await;
    let handle = run.handle.clone();
    let events = events(500, 7);
    run.send(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(500));
    let counts = handle.counts();
    assert_eq!((counts.published, counts.in_flight_events, counts.in_flight_bytes), (500, 0, 0));
    assert_eq!(handle.state(), PublishState::Idle);
    let saved = handle.progress();
    let last = Some(Timestamp { time: 1_700_000_000, increment: 500 });
    assert_eq!((saved.acknowledged, saved.saved), (last, last));
    assert!(saved.last_save.is_some());
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn the_checkpoint_follows_during_publishing() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, Config::default()).await;
    run.send(&events(10, 3)).await;
    testkit::wait::wait_for("the checkpoint at the tenth event", SOON, async || {
        let phase = fixture.phase().await;
        if phase == stream(10) { Ok(()) } else { Err(phase) }
    })
    .await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
}

#[tokio::test]
async fn checkpoint_each_saves_after_every_event() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, Config { checkpoint: CheckpointInterval::Each, ..Config::default() }).await;
    let handle = run.handle.clone();
    let events = events(20, 3);
    run.send(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(handle.counts().saves, 20);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn a_closed_gate_stops_all_sends() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, Config::default()).await;
    let events = events(300, 10);
    run.send(&events[..100]).await;
    run.wait_until_published(100).await;
    run.gate.store(false, SeqCst);
    run.try_send(&events[100..]).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::GateClosed { term } if term == Term::new(1)), "{error}");
    fixture.assert_received_in_order(&events[..100]).await;
}

#[tokio::test]
async fn a_deposed_leader_fails_to_save_and_stops() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, Config::default()).await;
    run.send(&events(10, 2)).await;
    testkit::wait::wait_for("a first save", SOON, async || {
        let counts = run.counts();
        if counts.saves > 0 { Ok(()) } else { Err(counts) }
    })
    .await;
    let next = CheckpointClaim { term: Term::new(2), claimant: CandidateId::new(99), pod_id: "other".into() };
    let inherited = fixture.checkpoints().claim(&next).await.unwrap();
    run.try_send(&events(200, 2)[10..]).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::Deposed { .. })), "{error}");
    assert_eq!(fixture.phase().await, inherited.phase);
}

#[tokio::test]
async fn a_new_epoch_stops_the_publisher() {
    let fixture = PublishFixture::with_default_topic().await;
    let run = fixture.publish(1, Config::default()).await;
    let claim = CheckpointClaim { term: Term::new(1), claimant: CandidateId::new(1), pod_id: "operator".into() };
    fixture.checkpoints().begin_epoch(&claim, EPOCH, &stream(500)).await.unwrap();
    run.try_send(&events(10, 2)).await;
    let error = run.end().await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::EpochEnded { .. })), "{error}");
}

#[tokio::test]
async fn a_lost_term_stops_at_once_and_saves_nothing() {
    let fixture = PublishFixture::with_default_topic().await;
    let before = fixture.publish(1, save_only_at_stop()).await;
    let (mut run, unstarted) = (before, fixture.phase().await);
    run.send(&events(100, 10)).await;
    run.wait_until_published(100).await;
    run.lose_term();
    assert_eq!(run.end().await.unwrap(), PublishEnd::TermLost);
    assert_eq!(fixture.phase().await, unstarted);
}

#[tokio::test]
async fn a_drain_ends_although_the_bus_does_not_respond() {
    let fixture = PublishFixture::with_default_topic().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = fixture.topic(fixture.client(proxy.address()), &gate);
    let config = Config { drain: DRAIN, ..save_only_at_stop() };
    let run = fixture.publish_to(topic, gate, 1, config).await;
    run.send(&events(5, 5)).await;
    run.wait_until_published(5).await;
    proxy.inject(NetworkFault::Withhold(Direction::ToClient)).await;
    let more = events(105, 5);
    run.send(&more[5..]).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Unfinished { events: 100 });
    assert_eq!(fixture.phase().await, stream(5), "acknowledged events are saved");
}

/// Long enough that a drain that runs twice is visible on a slow machine.
const DRAIN: Duration = Duration::from_secs(4);

/// The stop took one drain, not two.
fn assert_took_one_drain(took: Duration) {
    assert!((DRAIN / 2..DRAIN * 3 / 2).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_drain_ends_although_the_bus_was_never_reachable() {
    let fixture = PublishFixture::with_default_topic().await;
    // A free port that nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = fixture.topic(fixture.client(nobody), &gate);
    let run = fixture.publish_to(topic, gate, 1, Config { drain: DRAIN, ..Config::default() }).await;
    let unstarted = fixture.phase().await;
    // The size limit of a message is unknown without a link, so no event is admitted.
    run.send(&events(200, 5)).await;
    run.wait_for_state(PublishState::Paused(PauseReason::Unreachable)).await;
    let (ended, took) = run.stop().await;
    assert!(matches!(ended.unwrap(), PublishEnd::Unfinished { events: 1.. }));
    assert_took_one_drain(took);
    assert_eq!(fixture.phase().await, unstarted, "nothing was acknowledged");
}

#[tokio::test]
async fn a_drain_with_a_full_window_ends_without_a_response() {
    let fixture = PublishFixture::with_default_topic().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = fixture.topic(fixture.client(proxy.address()), &gate);
    let window_events = 16.try_into().unwrap();
    let run = fixture.publish_to(topic, gate, 1, Config { drain: DRAIN, window_events, ..save_only_at_stop() }).await;
    let events = events(205, 20);
    run.send(&events[..5]).await;
    run.wait_until_published(5).await;
    proxy.inject(NetworkFault::Withhold(Direction::ToClient)).await;
    run.send(&events[5..]).await;
    testkit::wait::wait_for("a full window", SOON, async || match run.counts().in_flight_events {
        11.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let (ended, took) = run.stop().await;
    assert!(matches!(ended.unwrap(), PublishEnd::Unfinished { events: 16.. }));
    assert_took_one_drain(took);
    assert_eq!(fixture.phase().await, stream(5), "only acknowledged events are saved");
    // The next leader publishes the events after the checkpoint.
    let next = fixture.publish(2, Config::default()).await;
    next.send(&events[5..]).await;
    assert_eq!(next.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}
