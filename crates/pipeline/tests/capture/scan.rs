//! Snapshots: order, resuming, types, filters, and the stream that follows.

use std::num::NonZeroU32;

use mongodb::bson::{Bson, Document, doc, oid::ObjectId, uuid::Uuid};
use pipeline::capture::{CaptureItem, Config, Error, PipelineStart};
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::event::{ChangeEvent, Operation, ResumeToken};
use pipeline::source::SourceConfig;

use crate::house::{House, Reading, aggregate, event, index, insert_all, majority};

/// Ids of several types, in the order an index has them.
pub(crate) fn ids() -> Vec<Bson> {
    let (uuid, id) = (Uuid::from_bytes([7; 16]), ObjectId::from_bytes([7; 12]));
    vec![
        7.into(),
        7.5.into(),
        "a".into(),
        "b".into(),
        doc! { "region": "north", "n": 1 }.into(),
        uuid.into(),
        id.into(),
    ]
}

/// Five versions of each aggregate, the late ones first, and one document without an aggregate.
async fn fill(house: &House) -> usize {
    index(&house.events()).await;
    let all = ids().into_iter().flat_map(|id| (0..5).rev().map(move |version| event(id.clone(), version)));
    insert_all(&house.events(), all).await;
    house.events().insert_one(doc! { "type": "Homeless" }).await.unwrap();
    ids().len() * 5 + 1
}

/// Batches so small that several are needed.
pub(crate) fn small() -> Config {
    Config { batch_size: NonZeroU32::new(4).unwrap(), ..Config::default() }
}

async fn begin(house: &House, source: &SourceConfig, config: &Config) -> (ResumeToken, SnapshotProgress) {
    let capture = house.capture_with(source.clone(), config.clone());
    match capture.initial_phase(&PipelineStart::Beginning).await.unwrap() {
        CheckpointPhase::Snapshot { start, progress } => (start, progress),
        other => panic!("{other:?}"),
    }
}

async fn scan(
    house: &House,
    source: &SourceConfig,
    config: &Config,
    start: &ResumeToken,
    progress: &SnapshotProgress,
) -> Vec<(ChangeEvent, SnapshotProgress)> {
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress: progress.clone() };
    let mut reading = Reading::from(house.capture_with(source.clone(), config.clone()), phase);
    let scanned = reading.snapshot().await;
    reading.stop().await;
    scanned
}

fn keys(scanned: &[(ChangeEvent, SnapshotProgress)]) -> Vec<Bson> {
    scanned.iter().map(|(event, _)| event.key.clone()).collect()
}

#[tokio::test]
async fn events_are_scanned_in_order_per_aggregate_and_can_be_resumed_anywhere() {
    let house = House::new("scan").await;
    let count = fill(&house).await;
    let (source, config) = (house.source(), small());
    let (start, progress) = begin(&house, &source, &config).await;
    let scanned = scan(&house, &source, &config, &start, &progress).await;
    assert_eq!(scanned.len(), count);
    assert!(scanned[0].0.aggregate.is_none());
    let order: Vec<_> = scanned[1..].iter().map(|(event, _)| (aggregate(event), event.sequence.unwrap())).collect();
    let expected: Vec<_> = ids().into_iter().flat_map(|id| (0..5).map(move |version| (id.clone(), version))).collect();
    assert_eq!(order, expected);
    for (at, (event, reached)) in scanned.iter().enumerate() {
        assert_eq!((event.operation, &event.token, event.cluster_time), (Operation::Snapshot, &start, None));
        assert_eq!((&reached.run, reached.scanned), (&progress.run, at as u64 + 1));
    }
    for at in 0..count {
        let rest = scan(&house, &source, &config, &start, &scanned[at].1).await;
        assert_eq!(keys(&rest), keys(&scanned[at + 1..]), "resumed after {at}");
        assert!(rest.iter().all(|(_, reached)| reached.run == progress.run));
    }
}

#[tokio::test]
async fn documents_with_the_same_key_are_repeated_rather_than_skipped() {
    let house = House::new("same").await;
    index(&house.events()).await;
    insert_all(&house.events(), (0..9).map(|n| event("a", n / 3))).await;
    let (source, config) = (house.source(), small());
    let (start, progress) = begin(&house, &source, &config).await;
    let scanned = scan(&house, &source, &config, &start, &progress).await;
    assert_eq!(scanned.len(), 9);
    for at in 0..9 {
        let rest = keys(&scan(&house, &source, &config, &start, &scanned[at].1).await);
        assert!(keys(&scanned[at + 1..]).iter().all(|key| rest.contains(key)), "resumed after {at}");
        assert!(!rest.contains(&scanned[at].0.key));
    }
}

#[tokio::test]
async fn the_stream_follows_from_where_the_snapshot_began() {
    let house = House::new("follow").await;
    fill(&house).await;
    let source = house.source();
    let (start, progress) = begin(&house, &source, &small()).await;
    house.events().insert_one(event("late", 1)).await.unwrap();
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress };
    let mut reading = Reading::from(house.capture_with(source, small()), phase);
    reading.snapshot().await;
    assert_eq!(reading.marks.last(), Some(&CheckpointPhase::Stream { token: start }));
    house.events().insert_one(event("late", 2)).await.unwrap();
    let followed = reading.events(2).await;
    assert_eq!(followed.iter().map(|event| event.sequence).collect::<Vec<_>>(), [Some(1), Some(2)]);
    reading.stop().await;
}

#[tokio::test]
async fn documents_are_scanned_by_key_through_several_collections_and_one_that_does_not_exist() {
    let house = House::new("keys").await;
    for name in ["orders", "customers"] {
        insert_all(&majority(&house.database, name), ids().into_iter().map(|id| doc! { "_id": id, "in": name })).await;
    }
    let collections = vec!["orders".into(), "missing".into(), "customers".into()];
    let source = SourceConfig { collection: None, collections, ..house.documents() };
    house.capture(source.clone()).check(&PipelineStart::Beginning).await.unwrap();
    let (start, progress) = begin(&house, &source, &small()).await;
    let scanned = scan(&house, &source, &small(), &start, &progress).await;
    let order: Vec<_> =
        scanned.iter().map(|(event, _)| (event.namespace.collection.as_str(), event.key.clone())).collect();
    let expected: Vec<_> =
        ["customers", "orders"].into_iter().flat_map(|name| ids().into_iter().map(move |id| (name, id))).collect();
    assert_eq!(order, expected);
    for (event, _) in &scanned {
        assert_eq!(aggregate(event), event.key);
        assert_eq!(event.event_type.as_deref(), Some("snapshot"));
        assert_eq!(event.document.get_str("in").unwrap(), event.namespace.collection);
    }
    for at in 0..scanned.len() {
        let rest = scan(&house, &source, &small(), &start, &scanned[at].1).await;
        assert_eq!(keys(&rest), keys(&scanned[at + 1..]), "resumed after {at}");
    }
}

#[tokio::test]
async fn a_filter_passes_of_a_snapshot_what_it_passes_of_a_stream() {
    let house = House::new("filtered").await;
    index(&house.events()).await;
    let filter: Vec<Document> = vec![
        doc! { "$match": { "operationType": "insert", "fullDocument.version": { "$mod": [2, 0] }, "ns.coll": "events" } },
        doc! { "$unset": "fullDocument.secret" },
    ];
    let config = Config { filter, ..small() };
    let source = house.source();
    let mut live = Reading::of(house.capture_with(source.clone(), config.clone()), PipelineStart::Now).await;
    // A value that looks like an expression is a value.
    let written = (0..20).map(|version| {
        let mut event = event("a", version);
        event.extend(doc! { "secret": "$version", "note": "$version", "price": { "$numberOf": 5 } });
        event
    });
    insert_all(&house.events(), written).await;
    let streamed: Vec<_> = live.events(10).await.into_iter().map(|event| event.document).collect();
    live.stop().await;

    let (start, progress) = begin(&house, &source, &config).await;
    let phase = CheckpointPhase::Snapshot { start, progress };
    let mut reading = Reading::from(house.capture_with(source, config), phase);
    let scanned = reading.snapshot().await;
    let read: Vec<_> = scanned.iter().map(|(event, _)| event.document.clone()).collect();
    assert_eq!(read, streamed);
    assert!(read.iter().all(|document| document.get("secret").unwrap().is_none()));
    // What was filtered out at a batch's end moves the snapshot all the same.
    let reached = reading.marks.iter().filter_map(|phase| match phase {
        CheckpointPhase::Snapshot { progress, .. } => Some(progress.scanned),
        CheckpointPhase::Stream { .. } | CheckpointPhase::Unstarted => None,
    });
    assert_eq!(reached.max(), Some(20));
    reading.stop().await;
}

/// What a filter makes of a document may be larger than an answer of the server. An event is split between its fields, and this is one of them.
#[tokio::test]
async fn a_document_that_a_filter_makes_too_large_ends_the_reading_and_is_named() {
    const LARGE: usize = 9 << 20;
    let house = House::new("doubled").await;
    let filter = vec![doc! { "$set": { "fullDocument.again": "$fullDocument.text" } }];
    let (source, config) = (house.documents(), Config { filter, ..small() });
    let live = Reading::of(house.capture_with(source.clone(), config.clone()), PipelineStart::Now).await;
    house.events().insert_one(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await.unwrap();
    assert_eq!(too_large(&live.error().await), Some(7_182_500));

    let (start, progress) = begin(&house, &source, &config).await;
    let phase = CheckpointPhase::Snapshot { start, progress };
    let error = Reading::from(house.capture_with(source, config), phase).error().await;
    assert_eq!(too_large(&error), Some(10334));
}

fn too_large(error: &Error) -> Option<i32> {
    match error {
        Error::TooLarge(source) => source.code(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_empty_source_is_a_snapshot_of_nothing() {
    let house = House::new("empty").await;
    let (start, progress) = begin(&house, &house.source(), &small()).await;
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress };
    let mut reading = Reading::from(house.capture(house.source()), phase);
    match reading.next().await {
        Some(CaptureItem::Watermark(CheckpointPhase::Stream { token }, _)) => assert_eq!(token, start),
        other => panic!("{other:?}"),
    }
    reading.stop().await;
}
