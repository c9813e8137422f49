//! A source, and a running capture on it.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Client, Collection, Database};
use pipeline::capture::{Capture, CaptureItem, CaptureReceiver, Config, Error, Handle, StartPosition};
use pipeline::checkpoint::{CheckpointPhase, SnapshotProgress};
use pipeline::event::{ChangeEvent, ResumeToken};
use pipeline::source::SourceConfig;
use testkit::mongo::{ScratchDatabase, shared};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Far longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A scratch database on the shared replica set.
pub(crate) struct CaptureFixture {
    pub(crate) database: ScratchDatabase,
}

impl CaptureFixture {
    pub(crate) async fn new(purpose: &str) -> Self {
        Self { database: shared().await.unwrap().database(purpose) }
    }

    pub(crate) fn events(&self) -> Collection<Document> {
        majority(&self.database, "events")
    }

    pub(crate) fn source(&self) -> SourceConfig {
        SourceConfig { sequence: Some("version".into()), ..SourceConfig::events(self.database.name(), "events") }
    }

    pub(crate) fn documents(&self) -> SourceConfig {
        SourceConfig::documents(self.database.name(), "events")
    }

    pub(crate) fn capture(&self, source: SourceConfig) -> Capture {
        self.capture_with(source, Config::default())
    }

    pub(crate) fn capture_with(&self, source: SourceConfig, config: Config) -> Capture {
        Capture::new(self.database.client(), source, short_await(config))
    }

    /// Reads the source from now on.
    pub(crate) async fn read(&self, source: SourceConfig) -> CaptureRun {
        CaptureRun::start(self.capture(source), StartPosition::Now).await
    }
}

/// A collection with majority write concern: acknowledged writes are visible in the stream.
pub(crate) fn majority(database: &Database, name: &str) -> Collection<Document> {
    let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
    database.collection_with_options(name, CollectionOptions::builder().write_concern(concern).build())
}

/// Shortens the wait for a quiet stream.
pub(crate) fn short_await(config: Config) -> Config {
    Config { max_await: Duration::from_millis(100), ..config }
}

/// An event of an aggregate.
pub(crate) fn event(aggregate: impl Into<Bson>, version: i32) -> Document {
    doc! { "aggregateId": aggregate.into(), "type": "Happened", "version": version }
}

/// A running capture and its items.
pub(crate) struct CaptureRun {
    pub(crate) intake: CaptureReceiver,
    pub(crate) handle: Handle,
    pub(crate) stop: CancellationToken,
    pub(crate) running: JoinHandle<Result<(), Error>>,
    waiting: std::collections::VecDeque<CaptureItem>,
    /// The phases of all watermarks received.
    pub(crate) watermarks: Vec<CheckpointPhase>,
}

impl CaptureRun {
    pub(crate) async fn start(capture: Capture, start: StartPosition) -> Self {
        let phase = capture.initial_phase(&start).await.unwrap();
        Self::resume(capture, phase)
    }

    pub(crate) fn resume(capture: Capture, phase: CheckpointPhase) -> Self {
        let (stop, handle) = (CancellationToken::new(), capture.handle());
        let (intake, reading) = capture.read(phase, stop.clone());
        let running = tokio::spawn(reading);
        Self { intake, handle, stop, running, waiting: Default::default(), watermarks: vec![] }
    }

    pub(crate) async fn next(&mut self) -> Option<CaptureItem> {
        while self.waiting.is_empty() {
            let batch = timeout(TIMEOUT, self.intake.next()).await;
            let batch = batch.unwrap_or_else(|_| panic!("nothing was handed on: {:?}", self.handle.status()))?;
            assert!(!batch.is_empty(), "a batch is never empty");
            self.waiting.extend(batch);
        }
        let captured = self.waiting.pop_front();
        if let Some(CaptureItem::Watermark(phase, _)) = &captured {
            self.watermarks.push(phase.clone());
        }
        captured
    }

    /// The next `count` events of the stream or of a snapshot.
    pub(crate) async fn events(&mut self, count: usize) -> Vec<ChangeEvent> {
        let mut events = Vec::new();
        while events.len() < count {
            match self.next().await {
                Some(CaptureItem::Change(event) | CaptureItem::Snapshot(event, _)) => events.push(event),
                Some(CaptureItem::Watermark(..)) => {}
                None => panic!("capture ended after {} of {count} events: {:?}", events.len(), self.handle.status()),
            }
        }
        events
    }

    pub(crate) async fn event(&mut self) -> ChangeEvent {
        self.events(1).await.remove(0)
    }

    /// A whole snapshot, up to the watermark that starts the stream.
    pub(crate) async fn snapshot(&mut self) -> Vec<(ChangeEvent, SnapshotProgress)> {
        let mut scanned = Vec::new();
        loop {
            let Some(captured) = self.next().await else {
                panic!("the snapshot ended: {:?}", (&mut self.running).await)
            };
            match captured {
                CaptureItem::Snapshot(event, progress) => scanned.push((event, progress)),
                CaptureItem::Watermark(CheckpointPhase::Stream { .. }, _) => return scanned,
                CaptureItem::Watermark(..) => {}
                CaptureItem::Change(_) => panic!("the stream began before the snapshot's end"),
            }
        }
    }

    pub(crate) async fn next_watermark(&mut self) -> ResumeToken {
        loop {
            match self.next().await.expect("capture goes on") {
                CaptureItem::Watermark(CheckpointPhase::Stream { token }, _) => return token,
                CaptureItem::Watermark(..) => {}
                CaptureItem::Change(_) | CaptureItem::Snapshot(..) => panic!("an event where none was written"),
            }
        }
    }

    /// The error that ends capture.
    pub(crate) async fn wait_for_error(mut self) -> Error {
        while self.next().await.is_some() {}
        timeout(TIMEOUT, self.running).await.expect("it ends with its intake").unwrap().unwrap_err()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(TIMEOUT, self.running).await.expect("it ends when it is stopped").unwrap().unwrap();
    }
}

pub(crate) fn versions(events: &[ChangeEvent]) -> Vec<i64> {
    events.iter().map(|event| event.sequence.expect("every event has a version")).collect()
}

pub(crate) fn aggregate(event: &ChangeEvent) -> Bson {
    event.aggregate.as_ref().expect("every event has an aggregate").value().clone()
}

pub(crate) async fn insert_all(collection: &Collection<Document>, documents: impl IntoIterator<Item = Document>) {
    collection.insert_many(documents).await.unwrap();
}

pub(crate) async fn index(collection: &Collection<Document>) {
    let keys = doc! { "aggregateId": 1, "version": 1 };
    collection.create_index(mongodb::IndexModel::builder().keys(keys).build()).await.unwrap();
}

pub(crate) async fn direct(uri: &str) -> Client {
    Client::with_uri_str(uri).await.unwrap()
}
