//! Messages as consumers will see them.

use mongodb::bson::{Bson, oid::ObjectId, uuid::Uuid};
use pipeline::capture::CaptureItem;
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::envelope::property;
use pipeline::event::{ChangeEvent, Operation};
use pipeline::publish::{BodyFormat, Config, PublishEnd};

use crate::house::*;

#[tokio::test]
async fn ids_of_any_type_and_length_travel_typed() {
    let house = House::as_designed().await;
    let ids: Vec<Bson> = vec![
        7.into(),
        8_i64.into(),
        9.5.into(),
        ObjectId::new().into(),
        Uuid::new().into(),
        "x".repeat(4_096).into(),
        "order-7".into(),
    ];
    let run = house.publish(1, Config::default()).await;
    let events: Vec<_> =
        ids.iter().zip(1..).map(|(id, number)| CaptureItem::Change(event(id.clone(), number))).collect();
    run.give(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    let mut received: Vec<_> = house.received(ids.len()).await.into_values().flatten().collect();
    received.sort_by_key(number);
    let typed: Vec<_> = received.iter().map(|message| typed(message, property::AGGREGATE)).collect();
    assert_eq!(typed, ids);
    assert!(received.iter().all(|message| message.session_id() == message.partition_key()));
}

#[tokio::test]
async fn others_may_read_the_topic_as_json() {
    let house = House::start(|_| {}).await;
    let run = house.publish(1, Config { body: BodyFormat::Json, ..Config::default() }).await;
    run.give(&events(1, 1)).await;
    run.drain().await.unwrap();
    let message = house.received(1).await.into_values().flatten().next().unwrap();
    assert_eq!(message.content_type(), Some("application/json"));
    assert_eq!(message.body(), r#"{"aggregateId":"order-0","n":1}"#);
}

#[tokio::test]
async fn a_snapshot_moves_its_own_checkpoint_and_a_mark_moves_it_on() {
    let house = House::start(|_| {}).await;
    let run = house.publish(1, Config::default()).await;
    let progress = |scanned| SnapshotProgress { run: "r1".into(), scanned, after: Some(Bson::Int64(7)) };
    let scanned = |number| ChangeEvent {
        token: token(1),
        operation: Operation::Snapshot,
        cluster_time: None,
        wall_time: None,
        ..event(format!("order-{number}"), number)
    };
    run.give(&[CaptureItem::Snapshot(scanned(1), progress(1)), CaptureItem::Snapshot(scanned(2), progress(2))]).await;
    testkit::wait::wait_for("the snapshot's progress", SOON, async || {
        let phase = house.phase().await;
        if phase == (CheckpointPhase::Snapshot { start: token(1), progress: progress(2) }) {
            Ok(())
        } else {
            Err(phase)
        }
    })
    .await;
    run.give(&[CaptureItem::Watermark(stream(5), None)]).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(house.phase().await, stream(5));
    house.received(2).await;
}
