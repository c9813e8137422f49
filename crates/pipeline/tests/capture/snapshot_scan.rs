//! Snapshots: order, resuming, types, filters, and the stream that follows.

use std::num::NonZeroU32;

use mongodb::bson::{Bson, Document, doc, oid::ObjectId, uuid::Uuid};
use pipeline::capture::{CaptureItem, Config, Error, StartPosition};
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::event::{ChangeEvent, Operation, ResumeToken};
use pipeline::source::SourceConfig;

use crate::fixture::{CaptureFixture, CaptureRun, aggregate, event, index, insert_all, majority};

/// Ids of several types, in index order.
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

/// Five versions of each aggregate, inserted in reverse, and one document without an aggregate.
async fn fill(fixture: &CaptureFixture) -> usize {
    index(&fixture.events()).await;
    let all = ids().into_iter().flat_map(|id| (0..5).rev().map(move |version| event(id.clone(), version)));
    insert_all(&fixture.events(), all).await;
    fixture.events().insert_one(doc! { "type": "Homeless" }).await.unwrap();
    ids().len() * 5 + 1
}

/// Forces several batches.
pub(crate) fn small_batches() -> Config {
    Config { batch_size: NonZeroU32::new(4).unwrap(), ..Config::default() }
}

async fn begin(fixture: &CaptureFixture, source: &SourceConfig, config: &Config) -> (ResumeToken, SnapshotProgress) {
    let capture = fixture.capture_with(source.clone(), config.clone());
    match capture.initial_phase(&StartPosition::Beginning).await.unwrap() {
        CheckpointPhase::Snapshot { start, progress } => (start, progress),
        other => panic!("{other:?}"),
    }
}

async fn scan(
    fixture: &CaptureFixture,
    source: &SourceConfig,
    config: &Config,
    start: &ResumeToken,
    progress: &SnapshotProgress,
) -> Vec<(ChangeEvent, SnapshotProgress)> {
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress: progress.clone() };
    let mut reading = CaptureRun::resume(fixture.capture_with(source.clone(), config.clone()), phase);
    let scanned = reading.snapshot().await;
    reading.stop().await;
    scanned
}

fn keys(scanned: &[(ChangeEvent, SnapshotProgress)]) -> Vec<Bson> {
    scanned.iter().map(|(event, _)| event.key.clone()).collect()
}

#[tokio::test]
async fn an_event_snapshot_is_ordered_and_resumes_anywhere() {
    let fixture = CaptureFixture::new("scan").await;
    let count = fill(&fixture).await;
    let (source, config) = (fixture.source(), small_batches());
    let (start, progress) = begin(&fixture, &source, &config).await;
    let scanned = scan(&fixture, &source, &config, &start, &progress).await;
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
        let rest = scan(&fixture, &source, &config, &start, &scanned[at].1).await;
        assert_eq!(keys(&rest), keys(&scanned[at + 1..]), "resumed after {at}");
        assert!(rest.iter().all(|(_, reached)| reached.run == progress.run));
    }
}

#[tokio::test]
async fn a_resumed_scan_skips_no_document_with_an_equal_key() {
    let fixture = CaptureFixture::new("same").await;
    index(&fixture.events()).await;
    insert_all(&fixture.events(), (0..9).map(|n| event("a", n / 3))).await;
    let (source, config) = (fixture.source(), small_batches());
    let (start, progress) = begin(&fixture, &source, &config).await;
    let scanned = scan(&fixture, &source, &config, &start, &progress).await;
    assert_eq!(scanned.len(), 9);
    for at in 0..9 {
        let rest = keys(&scan(&fixture, &source, &config, &start, &scanned[at].1).await);
        assert!(keys(&scanned[at + 1..]).iter().all(|key| rest.contains(key)), "resumed after {at}");
        assert!(!rest.contains(&scanned[at].0.key));
    }
}

#[tokio::test]
async fn the_stream_starts_where_the_snapshot_began() {
    let fixture = CaptureFixture::new("follow").await;
    fill(&fixture).await;
    let source = fixture.source();
    let (start, progress) = begin(&fixture, &source, &small_batches()).await;
    fixture.events().insert_one(event("late", 1)).await.unwrap();
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress };
    let mut reading = CaptureRun::resume(fixture.capture_with(source, small_batches()), phase);
    reading.snapshot().await;
    assert_eq!(reading.watermarks.last(), Some(&CheckpointPhase::Stream { token: start }));
    fixture.events().insert_one(event("late", 2)).await.unwrap();
    let followed = reading.events(2).await;
    assert_eq!(followed.iter().map(|event| event.sequence).collect::<Vec<_>>(), [Some(1), Some(2)]);
    reading.stop().await;
}

#[tokio::test]
async fn a_document_snapshot_reads_all_collections_by_key() {
    let fixture = CaptureFixture::new("keys").await;
    for name in ["orders", "customers"] {
        insert_all(&majority(&fixture.database, name), ids().into_iter().map(|id| doc! { "_id": id, "in": name }))
            .await;
    }
    let collections = vec!["orders".into(), "missing".into(), "customers".into()];
    let source = SourceConfig { collection: None, collections, ..fixture.documents() };
    fixture.capture(source.clone()).check(&StartPosition::Beginning).await.unwrap();
    let (start, progress) = begin(&fixture, &source, &small_batches()).await;
    let scanned = scan(&fixture, &source, &small_batches(), &start, &progress).await;
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
        let rest = scan(&fixture, &source, &small_batches(), &start, &scanned[at].1).await;
        assert_eq!(keys(&rest), keys(&scanned[at + 1..]), "resumed after {at}");
    }
}

#[tokio::test]
async fn a_filter_passes_the_same_in_snapshot_and_stream() {
    let fixture = CaptureFixture::new("filtered").await;
    index(&fixture.events()).await;
    let filter: Vec<Document> = vec![
        doc! { "$match": { "operationType": "insert", "fullDocument.version": { "$mod": [2, 0] }, "ns.coll": "events" } },
        doc! { "$unset": "fullDocument.secret" },
    ];
    let config = Config { filter, ..small_batches() };
    let source = fixture.source();
    let mut live = CaptureRun::start(fixture.capture_with(source.clone(), config.clone()), StartPosition::Now).await;
    // A value that looks like an expression stays a literal.
    let written = (0..20).map(|version| {
        let mut event = event("a", version);
        event.extend(doc! { "secret": "$version", "note": "$version", "price": { "$numberOf": 5 } });
        event
    });
    insert_all(&fixture.events(), written).await;
    let streamed: Vec<_> = live.events(10).await.into_iter().map(|event| event.document).collect();
    live.stop().await;

    let (start, progress) = begin(&fixture, &source, &config).await;
    let phase = CheckpointPhase::Snapshot { start, progress };
    let mut reading = CaptureRun::resume(fixture.capture_with(source, config), phase);
    let scanned = reading.snapshot().await;
    let read: Vec<_> = scanned.iter().map(|(event, _)| event.document.clone()).collect();
    assert_eq!(read, streamed);
    assert!(read.iter().all(|document| document.get("secret").unwrap().is_none()));
    // Documents filtered out at the end of a batch still move the progress.
    let reached = reading.watermarks.iter().filter_map(|phase| match phase {
        CheckpointPhase::Snapshot { progress, .. } => Some(progress.scanned),
        CheckpointPhase::Stream { .. } | CheckpointPhase::Unstarted => None,
    });
    assert_eq!(reached.max(), Some(20));
    reading.stop().await;
}

/// A filter may make a document larger than a reply. The server splits events only between fields, and this is one field.
#[tokio::test]
async fn a_document_made_too_large_by_a_filter_is_an_error() {
    const LARGE: usize = 9 << 20;
    let fixture = CaptureFixture::new("doubled").await;
    let filter = vec![doc! { "$set": { "fullDocument.again": "$fullDocument.text" } }];
    let (source, config) = (fixture.documents(), Config { filter, ..small_batches() });
    let live = CaptureRun::start(fixture.capture_with(source.clone(), config.clone()), StartPosition::Now).await;
    fixture.events().insert_one(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await.unwrap();
    assert_eq!(too_large(&live.wait_for_error().await), Some(7_182_500));

    let (start, progress) = begin(&fixture, &source, &config).await;
    let phase = CheckpointPhase::Snapshot { start, progress };
    let error = CaptureRun::resume(fixture.capture_with(source, config), phase).wait_for_error().await;
    assert_eq!(too_large(&error), Some(10334));
}

fn too_large(error: &Error) -> Option<i32> {
    match error {
        Error::TooLarge(source) => source.code(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_snapshot_of_an_empty_source_is_empty() {
    let fixture = CaptureFixture::new("empty").await;
    let (start, progress) = begin(&fixture, &fixture.source(), &small_batches()).await;
    let phase = CheckpointPhase::Snapshot { start: start.clone(), progress };
    let mut reading = CaptureRun::resume(fixture.capture(fixture.source()), phase);
    match reading.next().await {
        Some(CaptureItem::Watermark(CheckpointPhase::Stream { token }, _)) => assert_eq!(token, start),
        other => panic!("{other:?}"),
    }
    reading.stop().await;
}
