//! A source, a read-model database, and the appliers under test.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::{Client, Database};
use pipeline::event::{AggregateId, Epoch, Namespace, Operation, Term};
use pipeline::source::SourceConfig;
use pipeline::view::{
    AppliedBatch, Applier, ApplierSetup, ApplyOutcome, BatchEnd, Config, DeliveredEvent, EventBody, Handle, ModelSet,
    OrderingMode, ParkedStore, PipelineStart, PositionKey, Projection, ReadModel, SessionApplier, SourceDocuments,
    SourceEventReader, prepare,
};
use serde_json::{Value, json};
use testkit::mongo::{ScratchDatabase, shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const STRICT: OrderingMode =
    OrderingMode::Sequence { start: PipelineStart::Beginning, first: 1, filtered: false };

pub(crate) struct ViewFixture {
    pub(crate) views: ScratchDatabase,
    pub(crate) source: ScratchDatabase,
    pub(crate) models: Vec<Arc<dyn Projection>>,
    pub(crate) mode: OrderingMode,
    pub(crate) config: Config,
    pub(crate) by_collection: bool,
}

/// A running applier.
pub(crate) struct TestApplier {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ViewFixture {
    pub(crate) async fn new(purpose: &str, models: Value) -> Self {
        let shared = shared().await.unwrap();
        let views = shared.database(&format!("{purpose}_views"));
        let models = compiled(&models);
        prepare(&views, &models).await.unwrap();
        let config = Config { gap_timeout: Duration::from_millis(300), ..Config::default() };
        Self {
            views,
            source: shared.database(&format!("{purpose}_source")),
            models,
            mode: STRICT,
            config,
            by_collection: false,
        }
    }

    /// Orders, and customers by a foreign key.
    pub(crate) async fn shop(purpose: &str) -> Self {
        Self::new(purpose, shop_models()).await
    }

    pub(crate) fn by_position(mut self) -> Self {
        self.mode = OrderingMode::Position;
        self
    }

    pub(crate) fn history(&self) -> SourceEventReader {
        SourceEventReader::new(&self.source, &source_config()).unwrap()
    }

    pub(crate) fn pod(&self) -> TestApplier {
        TestApplier::start(self.setup(&self.views))
    }

    /// With its own connections, like another process.
    pub(crate) async fn other_pod(&self) -> TestApplier {
        let shared = shared().await.unwrap();
        let client = Client::with_uri_str(shared.uri()).await.unwrap();
        TestApplier::start(self.setup(&client.database(self.views.name())))
    }

    pub(crate) fn setup(&self, database: &Database) -> ApplierSetup {
        ApplierSetup {
            config: self.config.clone(),
            database: database.clone(),
            pipeline: "shop".into(),
            mode: self.mode,
            by_collection: self.by_collection,
            models: ModelSet::fixed(self.models.clone()),
            history: Some(self.history()),
        }
    }

    pub(crate) fn parked_store(&self) -> ParkedStore {
        ParkedStore::new(
            (*self.views).clone(),
            "shop",
            false,
            ModelSet::fixed(self.models.clone()),
            Some(SourceDocuments::new(&self.source, &source_config())),
        )
    }

    pub(crate) async fn write_source(&self, events: &[Document]) {
        self.source.collection::<Document>("events").insert_many(events).await.unwrap();
    }

    /// All documents of a read model, by `_id`.
    pub(crate) async fn view(&self, name: &str) -> Vec<Document> {
        contents(&self.views, name).await
    }

    pub(crate) async fn cursor(&self, aggregate: impl Into<Bson>) -> Option<Document> {
        let id = doc! { "pipeline": "shop", "aggregate": aggregate.into() };
        self.views.collection("_headwater_cursors").find_one(doc! { "_id": id }).await.unwrap()
    }
}

pub(crate) async fn contents(database: &Database, name: &str) -> Vec<Document> {
    let found = database.collection::<Document>(name).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

impl TestApplier {
    pub(crate) fn start(setup: ApplierSetup) -> Self {
        Self::of(Applier::new(setup).unwrap())
    }

    pub(crate) fn of(applier: Applier) -> Self {
        let (handle, stop) = (applier.handle(), CancellationToken::new());
        let task = tokio::spawn(applier.run(stop.clone()));
        Self { handle, stop, task }
    }

    pub(crate) fn session_applier(&self) -> SessionApplier {
        self.handle.session_applier()
    }

    /// Applies as one session and expects that every event is resolved.
    pub(crate) async fn apply(&self, events: Vec<DeliveredEvent>) -> Vec<ApplyOutcome> {
        complete(self.session_applier().apply(events).await)
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

pub(crate) fn complete(applied: AppliedBatch) -> Vec<ApplyOutcome> {
    assert!(matches!(applied.end, BatchEnd::Complete), "{:?}", applied.end);
    applied.outcomes
}

pub(crate) fn compiled(models: &Value) -> Vec<Arc<dyn Projection>> {
    let declared = models.as_object().unwrap().iter();
    declared.map(|(name, declared)| Arc::new(model(name, declared)) as Arc<dyn Projection>).collect()
}

pub(crate) fn model(name: &str, declared: &Value) -> ReadModel {
    ReadModel::compile(name, &serde_json::from_value(declared.clone()).unwrap()).unwrap()
}

pub(crate) fn shop_models() -> Value {
    json!({
        "orders": { "when": {
            "Placed": { "$set": { "customer": "$$event.payload.customer", "status": "placed" }, "$push": { "seen": "$$event.version" } },
            "Added": { "$inc": { "total": "$$event.payload.price" }, "$push": { "seen": "$$event.version" } },
            "Paid": [
                { "$set": { "status": { "$cond": [{ "$gte": ["$$event.payload.amount", "$total"] }, "paid", "part_paid"] } } },
                { "$set": { "seen": { "$concatArrays": ["$seen", ["$$event.version"]] } } }
            ],
            "Cancelled": "delete"
        } },
        "customers": {
            "key": "$$event.payload.customer",
            "when": {
                "Placed": { "$inc": { "orders": 1 } },
                "Added": { "$inc": { "spent": "$$event.payload.price" } }
            }
        }
    })
}

fn source_config() -> SourceConfig {
    SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") }
}

/// An event as stored in the source.
pub(crate) fn event(aggregate: &str, version: i64, event_type: &str, payload: Document) -> Document {
    doc! { "_id": format!("{aggregate}-{version}"), "aggregateId": aggregate, "version": version, "type": event_type, "payload": payload }
}

/// The same event as delivered by the bus; `token` is its position in the oplog.
pub(crate) fn delivered(event: &Document, token: u32) -> DeliveredEvent {
    DeliveredEvent {
        message_id: format!("message-{token}"),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        aggregate: AggregateId::new(event.get("aggregateId").unwrap().clone()).unwrap(),
        key: event.get("_id").unwrap().clone(),
        event_type: event.get_str("type").ok().map(str::to_owned),
        sequence: event.get_i64("version").ok(),
        position: Some(position(1, token)),
        term: Term::new(1),
        body: EventBody::Document(RawDocumentBuf::try_from(event).unwrap()),
        committed: None,
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    }
}

pub(crate) fn position(epoch: u64, token: u32) -> PositionKey {
    PositionKey::new(Epoch::new(epoch), format!("82{token:010}"))
}

/// With tokens in the order of the list.
pub(crate) fn all_delivered(events: &[Document]) -> Vec<DeliveredEvent> {
    events.iter().zip(1..).map(|(event, token)| delivered(event, token)).collect()
}

pub(crate) fn aggregate(id: &str) -> AggregateId {
    AggregateId::new(id.into()).unwrap()
}

pub(crate) fn events_namespace() -> Namespace {
    Namespace::new("shop", "events")
}
