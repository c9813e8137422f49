//! A source, a broker and a consumer; the test publishes what it wants to be delivered, and sets the checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker::StorageLocation;
use broker::core::{EntityDefinition, SubscriptionDescription, TopicDescription};
use futures_util::TryStreamExt;
use lease::CandidateId;
use mongodb::IndexModel;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use pipeline::audit::{self, AuditDependencies, AuditRecord, AuditStore, AuditTotals, Auditor, RoundOptions};
use pipeline::capture;
use pipeline::checkpoint::{CheckpointClaim, CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use pipeline::consumer::{Config, Consumer, ConsumerDependencies, Handle};
use pipeline::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, ResumeToken, Term, sha256_hex};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId};
use pipeline::publish::{BodyFormat, SessionMapping};
use pipeline::session::PodRun;
use pipeline::source::SourceConfig;
use pipeline::view::{Error, PipelineStart, ReadModel};
use serde_json::json;
use servicebus::{Client, EncodedMessage};
use testkit::bus::TestBroker;
use testkit::mongo::{ScratchDatabase, shared};
use testkit::wait::wait_for;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Upper bound for a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "events";
const SUBSCRIPTION: &str = "read-models";
const SUBSCRIPTION_PATH: &str = "events/Subscriptions/read-models";

/// Beyond everything that will ever be written.
const PASSED: u32 = 0x7FFF_FFFF;

pub(crate) struct AuditFixture {
    pub(crate) broker: TestBroker,
    pub(crate) source: ScratchDatabase,
    pub(crate) views: ScratchDatabase,
    pub(crate) coordination: ScratchDatabase,
    pub(crate) config: SourceConfig,
    pub(crate) start: PipelineStart,
    pub(crate) capture: capture::Config,
}

/// A running consumer, whose applier heals.
pub(crate) struct TestConsumer {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl AuditFixture {
    pub(crate) async fn start(purpose: &str) -> Self {
        Self::with_checkpoint(purpose, PASSED).await
    }

    /// The checkpoint is at this second.
    pub(crate) async fn with_checkpoint(purpose: &str, seconds: u32) -> Self {
        let mut config = broker::Config::new("127.0.0.1:0".parse().unwrap(), StorageLocation::Ephemeral);
        let mut subscription = SubscriptionDescription::default();
        subscription.egress.requires_session = true;
        config.entities = vec![
            (TOPIC.to_owned(), EntityDefinition::Topic(TopicDescription::default())),
            (SUBSCRIPTION_PATH.to_owned(), EntityDefinition::Subscription(subscription)),
        ];
        let broker = TestBroker::start(config).await;
        let shared = shared().await.unwrap();
        let [source, views, coordination] =
            ["source", "views", "pods"].map(|part| shared.database(&format!("{purpose}_{part}")));
        let config = SourceConfig {
            sequence: Some("version".into()),
            ..SourceConfig::events(source.name().to_owned(), "events")
        };
        let fixture = Self {
            broker,
            source,
            views,
            coordination,
            config,
            start: PipelineStart::Beginning,
            capture: capture::Config::default(),
        };
        fixture.create_index("events").await;
        fixture.save_checkpoint(seconds).await;
        fixture
    }

    pub(crate) async fn create_index(&self, collection: &str) {
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
        self.source.collection::<Document>(collection).create_index(index).await.unwrap();
    }

    /// The checkpoint passes everything that will ever be written.
    pub(crate) async fn pass_checkpoint(&self) {
        self.save_checkpoint(PASSED).await;
    }

    pub(crate) async fn save_checkpoint(&self, seconds: u32) {
        let store = MongoCheckpointStore::new(&self.coordination, "shop", self.config.fingerprint());
        let claim = CheckpointClaim { term: Term::new(1), claimant: CandidateId::new(1), pod_id: "leader".into() };
        let epoch = store.claim(&claim).await.unwrap().epoch;
        let phase = CheckpointPhase::Stream { token: token_at(seconds, 1) };
        store.save(&claim, epoch, &phase, None).await.unwrap();
    }

    /// Writes the events to the source.
    pub(crate) async fn write(&self, events: &[TestEvent]) {
        let documents = events.iter().map(TestEvent::document);
        self.source.collection::<Document>("events").insert_many(documents).await.unwrap();
    }

    /// Sends the events, as the leader would.
    pub(crate) async fn publish(&self, events: &[TestEvent]) {
        let mut encoder = Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1));
        let sender = self.bus().sender(TOPIC);
        for event in events {
            let change = event.change(&self.config.database);
            let aggregate = change.aggregate.clone().unwrap();
            let (session, id) = (encoder.session_id(&aggregate), EventMessageId::for_event(&change, None));
            let message = encoder.encode(&change, &aggregate, &id, &session, BodyLocation::Inline);
            sender.enqueue(&EncodedMessage::message(message)).await.unwrap().await.unwrap();
        }
    }

    fn bus(&self) -> Client {
        let config = servicebus::Config {
            initial_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(50),
            ..servicebus::Config::default()
        };
        self.broker.client(config)
    }

    fn consumer_dependencies(&self) -> ConsumerDependencies {
        let orders = json!({ "when": {
            "Added": { "$push": { "seen": "$$event.version" } }, "Poison": { "$inc": { "seen": 1 } },
        } });
        let orders = ReadModel::compile("orders", &serde_json::from_value(orders).unwrap()).unwrap();
        ConsumerDependencies {
            pipeline: "shop".into(),
            source: self.config.clone(),
            source_database: (*self.source).clone(),
            start: self.start,
            filtered: !self.capture.filter.is_empty(),
            views: (*self.views).clone(),
            coordination: (*self.coordination).clone(),
            bus: self.bus(),
            topic: TOPIC.into(),
            subscription: SUBSCRIPTION.into(),
            pod_run: PodRun::new(format!("pod-{:x}", rand::random::<u64>())),
            message_keys: None,
            models: vec![Arc::new(orders)],
            projections: vec![],
        }
    }

    pub(crate) fn consume(&self) -> TestConsumer {
        self.consume_from(SUBSCRIPTION)
    }

    /// Runs an applier and accepts no session: the subscription does not exist.
    pub(crate) fn consume_nothing(&self) -> TestConsumer {
        self.consume_from("absent")
    }

    fn consume_from(&self, subscription: &str) -> TestConsumer {
        let mut config = Config::default();
        config.session.session_idle_timeout = Duration::from_millis(50);
        let dependencies =
            ConsumerDependencies { subscription: subscription.to_owned(), ..self.consumer_dependencies() };
        let consumer = Consumer::new(config, dependencies).unwrap();
        let (handle, stop) = (consumer.handle(), CancellationToken::new());
        let task = tokio::spawn(consumer.run(stop.clone()));
        TestConsumer { handle, stop, task }
    }

    pub(crate) fn auditor(&self, consumer: &TestConsumer, pod_id: &str) -> Auditor {
        let config = audit::Config {
            period: Duration::from_secs(3_600),
            budget_percent: 100,
            takeover: Duration::from_millis(600),
            ..audit::Config::default()
        };
        Auditor::new(config, self.audit_dependencies(consumer, pod_id))
    }

    fn audit_dependencies(&self, consumer: &TestConsumer, pod_id: &str) -> AuditDependencies {
        AuditDependencies {
            pipeline: "shop".into(),
            pod_id: pod_id.into(),
            source: self.config.clone(),
            server: self.source.client().clone(),
            capture: self.capture.clone(),
            start: self.start,
            views: (*self.views).clone(),
            coordination: (*self.coordination).clone(),
            bus: self.bus(),
            topic: TOPIC.into(),
            subscription: SUBSCRIPTION.into(),
            sessions: SessionMapping::Aggregate,
            applier: consumer.handle.applier(),
        }
    }

    /// One round from the first aggregate to the last.
    pub(crate) async fn audit(&self, consumer: &TestConsumer, dry_run: bool) -> Result<AuditTotals, audit::Error> {
        let options = RoundOptions { from_start: true, dry_run };
        let auditor = self.auditor(consumer, "pod-0");
        tokio::time::timeout(SOON, auditor.run_round(options, &mut |_, _| {})).await.expect("the round ends")
    }

    /// As pods do that end while they heal this order.
    pub(crate) async fn note_healing(&self, order: &str, times: i64) {
        let field = format!("healing.{}", sha256_hex(&[order.as_bytes()]));
        let update = doc! { "$set": { "format": 1_i64, field: times } };
        let audits = self.coordination.collection::<Document>("audits");
        audits.update_one(doc! { "_id": "shop" }, update).upsert(true).await.unwrap();
    }

    pub(crate) async fn record(&self) -> Option<AuditRecord> {
        AuditStore::new(&self.coordination, "shop").load().await.unwrap()
    }

    /// The versions applied to each order, in order.
    pub(crate) async fn applied(&self) -> BTreeMap<String, Vec<i64>> {
        let orders = self.views.collection::<Document>("orders").find(doc! {}).await.unwrap();
        let orders: Vec<Document> = orders.try_collect().await.unwrap();
        let versions = |order: &Document| {
            order.get_array("seen").unwrap().iter().map(|version| version.as_i64().unwrap()).collect()
        };
        orders.iter().map(|order| (order.get_str("_id").unwrap().to_owned(), versions(order))).collect()
    }

    pub(crate) async fn wait_until_applied(&self, expected: &[TestEvent]) {
        let expected = fold(expected);
        wait_for("the events to be applied", SOON, async || {
            let applied = self.applied().await;
            if applied == expected { Ok(()) } else { Err(applied) }
        })
        .await;
    }

    /// Everything that is stored, except in the source.
    pub(crate) async fn everything_stored(&self) -> Vec<Document> {
        let mut stored = vec![];
        for (database, collections) in [
            (&self.views, &["orders", "_headwater_cursors", "parked_events"][..]),
            (&self.coordination, &["audits", "checkpoints"][..]),
        ] {
            for name in collections {
                let collection = database.collection::<Document>(name);
                let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
                stored.extend(found.try_collect::<Vec<_>>().await.unwrap());
            }
        }
        stored
    }
}

impl TestConsumer {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.task).await.expect("the consumer ends in time").unwrap().unwrap();
    }
}

/// An event of an order.
#[derive(Clone, Debug)]
pub(crate) struct TestEvent {
    pub(crate) order: Bson,
    pub(crate) version: i64,
    pub(crate) event_type: &'static str,
}

pub(crate) fn event(order: impl Into<Bson>, version: i64) -> TestEvent {
    TestEvent { order: order.into(), version, event_type: "Added" }
}

/// Versions 1 to `last` of so many orders, in turn.
pub(crate) fn events(orders: usize, last: i64) -> Vec<TestEvent> {
    (1..=last).flat_map(|version| (0..orders).map(move |order| event(format!("order-{order:03}"), version))).collect()
}

pub(crate) fn fold(events: &[TestEvent]) -> BTreeMap<String, Vec<i64>> {
    let mut orders: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for event in events {
        orders.entry(event.order.as_str().unwrap().to_owned()).or_default().push(event.version);
    }
    orders
}

impl TestEvent {
    pub(crate) fn document(&self) -> Document {
        let Self { order, version, event_type } = self;
        doc! { "_id": format!("{order}-{version}"), "aggregateId": order.clone(), "version": *version, "type": *event_type }
    }

    fn change(&self, database: &str) -> ChangeEvent {
        let document = RawDocumentBuf::try_from(&self.document()).unwrap();
        let position = u32::try_from(self.version).unwrap();
        ChangeEvent {
            token: token_at(
                position,
                self.order.to_string().bytes().fold(1, |sum: u32, byte| sum.wrapping_mul(31) ^ u32::from(byte)),
            ),
            operation: Operation::Insert,
            namespace: Arc::new(Namespace::new(database, "events")),
            key: self.document().get("_id").unwrap().clone(),
            aggregate: AggregateId::new(self.order.clone()),
            event_type: Some(self.event_type.to_owned()),
            sequence: Some(self.version),
            cluster_time: Some(Timestamp { time: position, increment: 1 }),
            wall_time: None,
            document,
        }
    }
}

/// A token at this second.
fn token_at(seconds: u32, increment: u32) -> ResumeToken {
    ResumeToken::try_from(doc! { "_data": format!("82{seconds:08X}{increment:08X}2B0229296E04") }).unwrap()
}
