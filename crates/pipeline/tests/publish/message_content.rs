//! The content of messages.

use mongodb::bson::{Bson, oid::ObjectId, uuid::Uuid};
use pipeline::capture::CaptureItem;
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::envelope::property;
use pipeline::event::{ChangeEvent, Operation};
use pipeline::publish::{BodyFormat, Config, PublishEnd};

use crate::fixture::*;

#[tokio::test]
async fn ids_of_any_type_and_length_keep_their_type() {
    let fixture = PublishFixture::with_default_topic().await;
    let ids: Vec<Bson> = vec![
        7.into(),
        8_i64.into(),
        9.5.into(),
        ObjectId::new().into(),
        Uuid::new().into(),
        "x".repeat(4_096).into(),
        "order-7".into(),
    ];
    let run = fixture.publish(1, Config::default()).await;
    let events: Vec<_> =
        ids.iter().zip(1..).map(|(id, number)| CaptureItem::Change(event(id.clone(), number))).collect();
    run.send(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    let mut received: Vec<_> = fixture.receive_all(ids.len()).await.into_values().flatten().collect();
    received.sort_by_key(number);
    let typed: Vec<_> = received.iter().map(|message| typed(message, property::AGGREGATE)).collect();
    assert_eq!(typed, ids);
    assert!(received.iter().all(|message| message.session_id() == message.partition_key()));
}

#[tokio::test]
async fn a_json_body_is_readable_by_others() {
    let fixture = PublishFixture::start(|_| {}).await;
    let run = fixture.publish(1, Config { body: BodyFormat::Json, ..Config::default() }).await;
    run.send(&events(1, 1)).await;
    run.drain().await.unwrap();
    let message = fixture.receive_all(1).await.into_values().flatten().next().unwrap();
    assert_eq!(message.content_type(), Some("application/json"));
    assert_eq!(message.body(), r#"{"aggregateId":"order-0","n":1}"#);
}

#[tokio::test]
async fn snapshot_events_and_watermarks_move_the_checkpoint() {
    let fixture = PublishFixture::start(|_| {}).await;
    let run = fixture.publish(1, Config::default()).await;
    let progress = |scanned| SnapshotProgress { run: "r1".into(), scanned, after: Some(Bson::Int64(7)) };
    let scanned = |number| ChangeEvent {
        token: token(1),
        operation: Operation::Snapshot,
        cluster_time: None,
        wall_time: None,
        ..event(format!("order-{number}"), number)
    };
    run.send(&[CaptureItem::Snapshot(scanned(1), progress(1)), CaptureItem::Snapshot(scanned(2), progress(2))]).await;
    testkit::wait::wait_for("the snapshot's progress", SOON, async || {
        let phase = fixture.phase().await;
        if phase == (CheckpointPhase::Snapshot { start: token(1), progress: progress(2) }) {
            Ok(())
        } else {
            Err(phase)
        }
    })
    .await;
    run.send(&[CaptureItem::Watermark(stream(5), None)]).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(5));
    fixture.receive_all(2).await;
}
