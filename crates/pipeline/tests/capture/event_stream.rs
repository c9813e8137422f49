//! The stream of an event store: order, types, back-pressure, stopping.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc, oid::ObjectId, uuid::Uuid};
use pipeline::capture::{CaptureState, Config, Error, StartPosition};
use pipeline::checkpoint::CheckpointPhase;
use pipeline::event::Operation;
use testkit::wait::wait_for;

use crate::fixture::{CaptureFixture, CaptureRun, TIMEOUT, aggregate, event, insert_all, versions};

#[tokio::test]
async fn inserts_are_captured_in_order_with_all_fields() {
    let fixture = CaptureFixture::new("inserts").await;
    let mut reading = fixture.read(fixture.source()).await;
    insert_all(&fixture.events(), (0..5000).map(|version| event(format!("order-{}", version % 7), version))).await;
    let events = reading.events(5000).await;
    assert_eq!(versions(&events), (0..5000).collect::<Vec<_>>());
    assert!(events.windows(2).all(|pair| pair[0].token < pair[1].token));
    for event in &events {
        assert_eq!(event.operation, Operation::Insert);
        assert_eq!(event.event_type.as_deref(), Some("Happened"));
        assert_eq!(event.document.get("_id").unwrap().and_then(|id| Bson::try_from(id).ok()), Some(event.key.clone()));
        assert_eq!(event.namespace.collection, "events");
        assert!(event.cluster_time.is_some() && event.cluster_time == event.token.cluster_time());
        assert!(
            event.wall_time.is_some() && event.committed_at() == event.wall_time,
            "a server of today dates commits to the millisecond"
        );
    }
    let status = reading.handle.status();
    assert_eq!((status.state, status.events), (CaptureState::Reading, 5000));
    assert!(status.token.is_some_and(|token| token >= events[4999].token));
    reading.stop().await;
}

#[tokio::test]
async fn aggregate_ids_of_any_type_are_captured() {
    let fixture = CaptureFixture::new("types").await;
    let mut reading = fixture.read(fixture.source()).await;
    let ids: [Bson; 5] = ["a".into(), 7.into(), 7.5.into(), ObjectId::new().into(), Uuid::new().into()];
    for (version, id) in (1..).zip(&ids) {
        fixture.events().insert_one(event(id.clone(), version)).await.unwrap();
    }
    let read: Vec<_> = reading.events(5).await.iter().map(aggregate).collect();
    assert_eq!(read, ids);
    fixture.events().insert_one(doc! { "type": "Homeless" }).await.unwrap();
    let homeless = reading.event().await;
    assert!(homeless.aggregate.is_none() && homeless.sequence.is_none());
    reading.stop().await;
}

#[tokio::test]
async fn other_operations_are_counted_and_not_captured() {
    let fixture = CaptureFixture::new("foreign").await;
    let mut reading = fixture.read(fixture.source()).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    fixture.events().update_one(doc! {}, doc! { "$set": { "version": 9 } }).await.unwrap();
    fixture.events().replace_one(doc! {}, event("a", 10)).await.unwrap();
    fixture.events().delete_one(doc! {}).await.unwrap();
    fixture.events().insert_one(event("a", 2)).await.unwrap();
    assert_eq!(versions(&reading.events(2).await), [1, 2]);
    assert_eq!(reading.handle.status().non_inserts, 3);
    reading.stop().await;
}

#[tokio::test]
async fn a_quiet_stream_advances_its_watermark() {
    let fixture = CaptureFixture::new("quiet").await;
    let mut reading = fixture.read(fixture.source()).await;
    let first = reading.next_watermark().await;
    fixture.database.collection::<Document>("others").insert_one(doc! { "x": 1 }).await.unwrap();
    let later = reading.next_watermark().await;
    assert!(later > first);
    reading.stop().await;

    fixture.events().insert_one(event("a", 1)).await.unwrap();
    let mut resumed = CaptureRun::resume(fixture.capture(fixture.source()), CheckpointPhase::Stream { token: later });
    assert_eq!(versions(&resumed.events(1).await), [1]);
    resumed.stop().await;
}

#[tokio::test]
async fn every_captured_token_resumes_after_its_event() {
    let fixture = CaptureFixture::new("resume").await;
    let mut reading = fixture.read(fixture.source()).await;
    insert_all(&fixture.events(), (0..10).map(|version| event("a", version))).await;
    let events = reading.events(10).await;
    reading.stop().await;
    for (at, event) in events.iter().enumerate().take(9) {
        let phase = CheckpointPhase::Stream { token: event.token.clone() };
        let mut resumed = CaptureRun::resume(fixture.capture(fixture.source()), phase);
        let expected: Vec<_> = (at as i64 + 1..10).collect();
        assert_eq!(versions(&resumed.events(expected.len()).await), expected);
        resumed.stop().await;
    }
}

#[tokio::test]
async fn the_watermark_passes_filtered_events() {
    let fixture = CaptureFixture::new("filter").await;
    let filter = vec![doc! { "$match": { "fullDocument.aggregateId": { "$ne": "noise" } } }];
    let capture = fixture.capture_with(fixture.source(), Config { filter, ..Config::default() });
    let mut reading = CaptureRun::start(capture, StartPosition::Now).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    insert_all(&fixture.events(), (0..100).map(|version| event("noise", version))).await;
    let only = reading.event().await;
    assert_eq!(aggregate(&only), "a".into());
    assert!(reading.next_watermark().await > only.token);
    reading.stop().await;
}

#[tokio::test]
async fn the_queue_is_bounded_in_events() {
    let fixture = CaptureFixture::new("pressure").await;
    let config = Config {
        batch_size: NonZeroU32::new(100).unwrap(),
        read_ahead_events: NonZeroU32::new(300).unwrap(),
        ..Config::default()
    };
    let mut reading = CaptureRun::start(fixture.capture_with(fixture.source(), config), StartPosition::Now).await;
    insert_all(&fixture.events(), (0..5000).map(|version| event("a", version))).await;
    let handle = reading.handle.clone();
    let seen = wait_for("the queue to be full", TIMEOUT, async || {
        let status = handle.status();
        if status.state == CaptureState::Full { Ok(status.events) } else { Err(status) }
    });
    assert!(seen.await <= 300);
    // The bound holds for every later batch.
    let mut read = Vec::new();
    while read.len() < 5000 {
        let Some(batch) = reading.intake.next().await else { panic!("capture ended: {:?}", handle.status()) };
        read.extend(batch.iter().filter_map(|captured| captured.event().cloned()));
        let status = handle.status();
        assert!(status.events <= read.len() as u64 + 300, "{} taken: {status:?}", read.len());
    }
    assert_eq!(versions(&read), (0..5000).collect::<Vec<_>>());
    reading.stop().await;
}

#[tokio::test]
async fn the_queue_is_bounded_in_bytes() {
    let fixture = CaptureFixture::new("bytes").await;
    let config = Config {
        batch_size: NonZeroU32::new(10).unwrap(),
        read_ahead_bytes: NonZeroU32::new(1 << 20).unwrap(),
        ..Config::default()
    };
    let mut reading = CaptureRun::start(fixture.capture_with(fixture.source(), config), StartPosition::Now).await;
    let large = |version| {
        let mut document = event("a", version);
        document.insert("payload", "x".repeat(50_000));
        document
    };
    insert_all(&fixture.events(), (0..100).map(large)).await;
    let handle = reading.handle.clone();
    let seen = wait_for("the queue to be full", TIMEOUT, async || {
        let status = handle.status();
        if status.state == CaptureState::Full { Ok(status.events) } else { Err(status) }
    });
    assert!(seen.await <= 21);
    assert_eq!(versions(&reading.events(100).await), (0..100).collect::<Vec<_>>());
    reading.stop().await;
}

#[tokio::test]
async fn a_stop_is_immediate_and_keeps_queued_events() {
    let fixture = CaptureFixture::new("stop").await;
    let config = Config { max_await: Duration::from_secs(30), ..Config::default() };
    let capture = pipeline::capture::Capture::new(fixture.database.client(), fixture.source(), config);
    let mut reading = CaptureRun::start(capture, StartPosition::Now).await;
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    let handle = reading.handle.clone();
    wait_for("the event to be read", TIMEOUT, async || {
        let status = handle.status();
        if status.events == 1 { Ok(()) } else { Err(status) }
    })
    .await;
    // A getMore of thirty seconds is in flight.
    let asked = Instant::now();
    reading.stop.cancel();
    (&mut reading.running).await.unwrap().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(versions(&reading.events(1).await), [1]);
    assert_eq!(reading.handle.status().state, CaptureState::Ended);
    while let Some(captured) = reading.next().await {
        assert!(captured.event().is_none());
    }
}

#[tokio::test]
async fn capture_ends_when_the_receiver_is_dropped() {
    let fixture = CaptureFixture::new("deserted").await;
    let CaptureRun { intake, running, .. } = fixture.read(fixture.source()).await;
    drop(intake);
    fixture.events().insert_one(event("a", 1)).await.unwrap();
    tokio::time::timeout(TIMEOUT, running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn an_unstarted_phase_is_an_error() {
    let fixture = CaptureFixture::new("unstarted").await;
    let reading = CaptureRun::resume(fixture.capture(fixture.source()), CheckpointPhase::Unstarted);
    assert!(matches!(reading.wait_for_error().await, Error::Unstarted));
}
