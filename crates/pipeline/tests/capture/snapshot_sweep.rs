//! The sweep at the end of a document snapshot deletes exactly the keys that the source no longer has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::WriteConcern;
use pipeline::capture::{CaptureItem, Config, StartPosition};
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::event::{ChangeEvent, Epoch, Operation, ResumeToken, Term};
use pipeline::publish::message::EventMessageId;
use pipeline::source::SourceConfig;
use pipeline::view::{
    Applier, ApplierSetup, ApplyOutcome, BatchEnd, CURSORS, DeliveredEvent, EventBody, Handle, ModelSet, OrderingMode,
    PositionKey, Projection, ReadModel, application_name, prepare,
};
use serde_json::json;
use testkit::mongo::{ScratchDatabase, connect_as, shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::{CaptureFixture, CaptureRun, insert_all, majority};
use crate::snapshot_scan::{ids, small_batches};

async fn contents(database: &Database, name: &str) -> Vec<Document> {
    let found = database.collection(name).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

const PIPELINE: &str = "shop";

/// Two collections, each with a mirror read model.
struct SweepFixture {
    fixture: CaptureFixture,
    views: ScratchDatabase,
}

impl SweepFixture {
    async fn new(purpose: &str) -> Self {
        let fixture = CaptureFixture::new(purpose).await;
        Self { fixture, views: shared().await.unwrap().database(&format!("{purpose}_views")) }
    }

    fn source(&self) -> SourceConfig {
        SourceConfig {
            collection: None,
            collections: vec!["orders".into(), "customers".into()],
            ..self.fixture.documents()
        }
    }

    fn orders(&self) -> mongodb::Collection<Document> {
        majority(&self.fixture.database, "orders")
    }

    async fn fill(&self) {
        for name in ["orders", "customers"] {
            let all = ids().into_iter().map(|id| doc! { "_id": id, "in": name });
            insert_all(&majority(&self.fixture.database, name), all).await;
        }
    }

    async fn begin(&self) -> (ResumeToken, SnapshotProgress) {
        match self.fixture.capture(self.source()).initial_phase(&StartPosition::Beginning).await.unwrap() {
            CheckpointPhase::Snapshot { start, progress } => (start, progress),
            other => panic!("{other:?}"),
        }
    }

    fn reading(&self, epoch: u64, config: Config, start: &ResumeToken, progress: &SnapshotProgress) -> CaptureRun {
        let capture = self.fixture.capture_with(self.source(), config);
        let capture = capture.with_read_models(&self.views, PIPELINE, Epoch::new(epoch));
        CaptureRun::resume(capture, CheckpointPhase::Snapshot { start: start.clone(), progress: progress.clone() })
    }

    /// Runs the rest of a snapshot and its sweep.
    async fn snapshot(
        &self,
        epoch: u64,
        start: &ResumeToken,
        progress: &SnapshotProgress,
    ) -> Vec<(ChangeEvent, SnapshotProgress)> {
        let mut reading = self.reading(epoch, small_batches(), start, progress);
        let scanned = reading.snapshot().await;
        reading.stop().await;
        scanned
    }

    async fn assert_views_match_source(&self) {
        for name in ["orders", "customers"] {
            assert_eq!(contents(&self.views, name).await, contents(&self.fixture.database, name).await, "{name}");
        }
    }
}

/// A running applier.
struct TestApplier {
    handle: Handle,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl TestApplier {
    async fn start(views: &Database, pipeline: &str) -> Self {
        let mirror = |name: &str| {
            let declared = serde_json::from_value(json!({ "mirror": true, "from": name })).unwrap();
            Arc::new(ReadModel::compile(name, &declared).unwrap()) as Arc<dyn Projection>
        };
        let models = vec![mirror("orders"), mirror("customers")];
        prepare(views, &models).await.unwrap();
        let applier = Applier::new(ApplierSetup {
            config: Default::default(),
            database: views.clone(),
            pipeline: pipeline.into(),
            mode: OrderingMode::Position,
            by_collection: true,
            models: ModelSet::fixed(models),
            history: None,
        });
        let applier = applier.unwrap();
        let (handle, stop) = (applier.handle(), CancellationToken::new());
        let running = tokio::spawn(applier.run(stop.clone()));
        Self { handle, stop, running }
    }

    async fn apply<'a>(&self, epoch: u64, events: impl IntoIterator<Item = &'a ChangeEvent>) -> Vec<ApplyOutcome> {
        let events = events.into_iter().map(|event| delivered(epoch, event)).collect();
        let applied = self.handle.session_applier().apply(events).await;
        assert!(matches!(applied.end, BatchEnd::Complete), "{:?}", applied.end);
        applied.outcomes
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

fn delivered(epoch: u64, event: &ChangeEvent) -> DeliveredEvent {
    DeliveredEvent {
        message_id: String::new(),
        operation: event.operation,
        namespace: Arc::clone(&event.namespace),
        aggregate: event.aggregate.clone().expect("a document is its own aggregate"),
        key: event.key.clone(),
        event_type: event.event_type.clone(),
        sequence: None,
        position: Some(PositionKey::new(Epoch::new(epoch), event.token.key())),
        term: Term::new(1),
        body: EventBody::Document(event.document.clone()),
        committed: None,
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    }
}

fn events(scanned: &[(ChangeEvent, SnapshotProgress)]) -> impl Iterator<Item = &ChangeEvent> + Clone {
    scanned.iter().map(|(event, _)| event)
}

/// The swept keys, by collection.
fn swept(scanned: &[(ChangeEvent, SnapshotProgress)]) -> Vec<(&str, Bson)> {
    let deleted = events(scanned).filter(|event| event.operation == Operation::Delete);
    deleted.map(|event| (event.namespace.collection.as_str(), event.key.clone())).collect()
}

fn message_ids(scanned: &[(ChangeEvent, SnapshotProgress)]) -> Vec<EventMessageId> {
    scanned.iter().map(|(event, progress)| EventMessageId::for_event(event, Some(&progress.run))).collect()
}

/// Reads the source in a first epoch; then deletes some orders and inserts one without capture.
async fn fixture_with_lost_history(purpose: &str) -> (SweepFixture, TestApplier, Vec<Bson>) {
    let shop = SweepFixture::new(purpose).await;
    shop.fill().await;
    let pod = TestApplier::start(&shop.views, PIPELINE).await;
    let (start, progress) = shop.begin().await;
    let first = shop.snapshot(1, &start, &progress).await;
    assert_eq!(swept(&first), [], "nobody knows anything yet");
    pod.apply(1, events(&first)).await;
    shop.assert_views_match_source().await;
    let gone = vec![ids()[0].clone(), ids()[3].clone(), ids()[4].clone(), ids()[6].clone()];
    shop.orders().delete_many(doc! { "_id": { "$in": &gone } }).await.unwrap();
    shop.orders().insert_one(doc! { "_id": "new" }).await.unwrap();
    (shop, pod, gone)
}

#[tokio::test]
async fn a_sweep_deletes_only_keys_the_source_no_longer_has() {
    let (shop, pod, gone) = fixture_with_lost_history("sweep").await;
    // A key of another pipeline must not be swept.
    let stranger = TestApplier::start(&shop.views, "another").await;
    let (start, progress) = shop.begin().await;
    let mut foreign = shop.snapshot(1, &start, &progress).await.remove(0).0;
    foreign.key = "foreign".into();
    foreign.aggregate = pipeline::event::AggregateId::new("foreign".into());
    foreign.document = (&doc! { "_id": "foreign" }).try_into().unwrap();
    stranger.apply(1, [&foreign]).await;
    stranger.stop().await;
    shop.views
        .collection::<Document>(&foreign.namespace.collection)
        .delete_one(doc! { "_id": "foreign" })
        .await
        .unwrap();

    let (start, progress) = shop.begin().await;
    let second = shop.snapshot(2, &start, &progress).await;
    let expected: Vec<_> = gone.iter().map(|key| ("orders", key.clone())).collect();
    assert_eq!(swept(&second), expected);
    let deleted = events(&second).filter(|event| event.operation == Operation::Delete);
    assert!(deleted.clone().all(|event| event.token == start && event.document.iter().count() == 1));
    assert!(deleted.clone().all(|event| event.event_type.as_deref() == Some("delete")));
    assert!(pod.apply(2, events(&second)).await.iter().all(|outcome| *outcome == ApplyOutcome::Applied));
    shop.assert_views_match_source().await;
    // Redelivered, as after a takeover without duplicate detection.
    assert!(pod.apply(2, events(&second)).await.iter().all(|outcome| *outcome == ApplyOutcome::Duplicate));
    shop.assert_views_match_source().await;
    // Keys already deleted in the read models are not swept again.
    let (start, progress) = shop.begin().await;
    assert_eq!(swept(&shop.snapshot(3, &start, &progress).await), []);
    pod.stop().await;
}

#[tokio::test]
async fn a_sweep_resumes_at_any_position_with_the_same_messages() {
    let (shop, pod, gone) = fixture_with_lost_history("sweep_resumed").await;
    let (start, progress) = shop.begin().await;
    let all = shop.snapshot(2, &start, &progress).await;
    assert_eq!(swept(&all).len(), gone.len());
    let ids = message_ids(&all);
    assert!((1..ids.len()).all(|at| !ids[..at].contains(&ids[at])), "two messages of one id");
    for at in 0..all.len() {
        let rest = shop.snapshot(2, &start, &all[at].1).await;
        assert_eq!(message_ids(&rest), ids[at + 1..], "resumed after {at}");
        assert!(rest.iter().all(|(_, progress)| progress.scanned > all[at].1.scanned), "resumed after {at}");
    }
    // Pages without a missing key move the progress too: a sweep also resumes at their watermarks.
    let mut reading = shop.reading(2, small_batches(), &start, &progress);
    reading.snapshot().await;
    let last = reading.watermarks.iter().rev().find_map(|phase| match phase {
        CheckpointPhase::Snapshot { progress, .. } => Some(progress.clone()),
        CheckpointPhase::Stream { .. } | CheckpointPhase::Unstarted => None,
    });
    reading.stop().await;
    let last = last.expect("a mark at the end of each page");
    let cursors = 2 * crate::snapshot_scan::ids().len() as u64;
    assert_eq!(last.scanned, documents_of(&shop).await + cursors);
    let mut rest = shop.reading(2, small_batches(), &start, &last);
    assert!(
        matches!(rest.next().await, Some(CaptureItem::Watermark(CheckpointPhase::Stream { .. }, _))),
        "nothing is left to sweep"
    );
    rest.stop().await;
    pod.stop().await;
}

async fn documents_of(shop: &SweepFixture) -> u64 {
    let mut count = 0;
    for name in ["orders", "customers"] {
        count += shop.fixture.database.collection::<Document>(name).count_documents(doc! {}).await.unwrap();
    }
    count
}

#[tokio::test]
async fn a_delete_during_the_snapshot_survives_the_sweep() {
    let (shop, pod, _) = fixture_with_lost_history("sweep_live").await;
    let (start, progress) = shop.begin().await;
    let scanned = shop.snapshot(2, &start, &progress).await;
    // Deleted after the scan: the snapshot contains it.
    let (late, again) = (ids()[1].clone(), ids()[0].clone());
    shop.orders().delete_one(doc! { "_id": &late }).await.unwrap();
    // Inserted again before the sweep delete is applied.
    shop.orders().insert_one(doc! { "_id": &again, "back": true }).await.unwrap();
    let scan_ends = scanned.iter().position(|(event, _)| event.operation == Operation::Delete).unwrap();
    let mut reading = shop.reading(2, small_batches(), &start, &scanned[scan_ends - 1].1);
    let sweep = reading.snapshot().await;
    assert!(swept(&sweep).contains(&("orders", late)) && !swept(&sweep).contains(&("orders", again)));
    let streamed = reading.events(2).await;
    reading.stop().await;
    // The sweep of the first leader, of the second, and the stream.
    pod.apply(2, events(&scanned).chain(events(&sweep)).chain(&streamed)).await;
    shop.assert_views_match_source().await;
    pod.apply(2, events(&sweep)).await;
    shop.assert_views_match_source().await;
    pod.stop().await;
}

impl SweepFixture {
    /// An order that is inserted and deleted in this epoch. Its event is published and not applied; its delete is in no history.
    async fn insert_and_delete(&self, epoch: u64, key: &Bson) -> ChangeEvent {
        self.orders().insert_one(doc! { "_id": key }).await.unwrap();
        let (start, progress) = self.begin().await;
        let published = self.snapshot(epoch, &start, &progress).await;
        self.orders().delete_one(doc! { "_id": key }).await.unwrap();
        let it = |event: &&ChangeEvent| event.namespace.collection == "orders" && event.key == *key;
        events(&published).find(it).unwrap().clone()
    }
}

#[tokio::test]
async fn messages_below_the_epoch_floor_are_skipped_after_a_sweep() {
    let (shop, pod, gone) = fixture_with_lost_history("sweep_unapplied").await;
    let unknown = Bson::from("unknown");
    let waiting = shop.insert_and_delete(1, &unknown).await;
    let (start, progress) = shop.begin().await;
    let second = shop.snapshot(2, &start, &progress).await;
    assert!(!swept(&second).contains(&("orders", unknown.clone())), "no cursor names it");
    assert_eq!(pod.apply(1, [&waiting]).await, [ApplyOutcome::Duplicate]);
    assert!(pod.apply(2, events(&second)).await.iter().all(|outcome| *outcome == ApplyOutcome::Applied));
    shop.assert_views_match_source().await;

    // The same for a key known as deleted. Events of the new epoch are applied for both.
    let waiting = [shop.insert_and_delete(2, &gone[0]).await, shop.insert_and_delete(2, &unknown).await];
    for key in [&gone[1], &"another".into()] {
        shop.orders().insert_one(doc! { "_id": key }).await.unwrap();
    }
    let (start, progress) = shop.begin().await;
    let third = shop.snapshot(3, &start, &progress).await;
    assert_eq!(pod.apply(2, &waiting).await, [ApplyOutcome::Duplicate; 2]);
    assert!(pod.apply(3, events(&third)).await.iter().all(|outcome| *outcome == ApplyOutcome::Applied));
    shop.assert_views_match_source().await;
    pod.stop().await;
}

#[tokio::test]
async fn messages_applied_before_a_sweep_are_swept() {
    let (shop, pod, _) = fixture_with_lost_history("sweep_in_time").await;
    let unknown = Bson::from("unknown");
    let waiting = shop.insert_and_delete(1, &unknown).await;
    assert_eq!(pod.apply(1, [&waiting]).await, [ApplyOutcome::Applied]);
    let (start, progress) = shop.begin().await;
    let second = shop.snapshot(2, &start, &progress).await;
    assert!(swept(&second).contains(&("orders", unknown)));
    pod.apply(2, events(&second)).await;
    shop.assert_views_match_source().await;
    pod.stop().await;
}

/// The transaction started before the epoch floor was raised, and writes a cursor that the sweep must not miss.
#[tokio::test]
async fn a_sweep_waits_for_transactions_older_than_the_floor() {
    let (shop, pod, _) = fixture_with_lost_history("sweep_waits").await;
    let client = connect_as(shared().await.unwrap().uri(), application_name(PIPELINE)).await.unwrap();
    let cursors = client.database(shop.views.name()).collection::<Document>(CURSORS);
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().write_concern(WriteConcern::majority()).await.unwrap();
    let late = doc! { "_id": { "pipeline": PIPELINE, "collection": "orders", "aggregate": "late" }, "epoch": 1_i64, "position": "82", "format": 1_i64 };
    cursors.insert_one(late).session(&mut session).await.unwrap();

    let (start, progress) = shop.begin().await;
    let mut reading = shop.reading(2, small_batches(), &start, &progress);
    let swept_behind = {
        let mut snapshot = std::pin::pin!(reading.snapshot());
        let ended = tokio::select! {
            _ = &mut snapshot => true,
            () = tokio::time::sleep(Duration::from_secs(1)) => false,
        };
        assert!(!ended, "it did not wait");
        session.commit_transaction().await.unwrap();
        snapshot.await
    };
    assert!(swept(&swept_behind).contains(&("orders", "late".into())));
    reading.stop().await;
    pod.stop().await;
}

#[tokio::test]
async fn a_filter_without_deletes_removes_sweep_deletes() {
    let (shop, pod, gone) = fixture_with_lost_history("sweep_filtered").await;
    let (start, progress) = shop.begin().await;
    let without = |operation: &str| {
        let filter = vec![doc! { "$match": { "operationType": { "$ne": operation } } }];
        Config { filter, ..small_batches() }
    };
    let mut reading = shop.reading(2, without("delete"), &start, &progress);
    assert_eq!(swept(&reading.snapshot().await), []);
    reading.stop().await;
    let mut reading = shop.reading(2, without("insert"), &start, &progress);
    assert_eq!(swept(&reading.snapshot().await).len(), gone.len());
    reading.stop().await;
    pod.stop().await;
}
