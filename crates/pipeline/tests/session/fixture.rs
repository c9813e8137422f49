//! A broker with a subscription, a read-model database, and the consumers under test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use broker::StorageLocation;
use broker::core::{EntityDefinition, ReceiveProperties, SubscriptionDescription, TopicDescription};
use broker::http::{FaultSpec, TestCommand};
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use pipeline::consumer::{Config, Consumer, ConsumerCounts, ConsumerDependencies, ConsumerState, Handle};
use pipeline::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, ResumeToken, Term};
use pipeline::publish::message::{BodyLocation, Encoder, EventMessageId};
use pipeline::publish::{BodyFormat, SessionMapping};
use pipeline::session::PodRun;
use pipeline::source::SourceConfig;
use pipeline::stored::ClaimCheckStore;
use pipeline::view::{Error, PipelineStart, ReadModel, application_name};
use serde_json::{Value, json};
use servicebus::{Client, EncodedMessage};
use testkit::bus::TestBroker;
use testkit::mongo::{ScratchDatabase, connect_as, shared};
use testkit::wait::wait_for;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Upper bound for a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The maximum of Service Bus, which `topology apply` sets.
const MAX_DELIVERY_COUNT: u16 = 2_000;

pub(crate) const TOPIC: &str = "events";
pub(crate) const SUBSCRIPTION: &str = "read-models";
pub(crate) const SUBSCRIPTION_PATH: &str = "events/Subscriptions/read-models";

pub(crate) struct SessionFixture {
    /// Unique, so that no test takes the transactions of another one's pods for those of its own.
    pub(crate) pipeline: String,
    pub(crate) broker: TestBroker,
    pub(crate) bus: Client,
    pub(crate) views: ScratchDatabase,
    /// The client of the pods' read models: what a dead pod leaves open, another finds by the name.
    pub(crate) pods: mongodb::Client,
    pub(crate) coordination: ScratchDatabase,
    pub(crate) source: SourceConfig,
    pub(crate) source_database: ScratchDatabase,
    pub(crate) models: Value,
}

impl SessionFixture {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(set: impl FnOnce(&mut ReceiveProperties)) -> Self {
        let mut config = broker::Config::new("127.0.0.1:0".parse().unwrap(), StorageLocation::Ephemeral);
        let mut subscription = SubscriptionDescription::default();
        subscription.egress.requires_session = true;
        subscription.egress.max_delivery_count = MAX_DELIVERY_COUNT;
        set(&mut subscription.egress);
        config.entities = vec![
            (TOPIC.to_owned(), EntityDefinition::Topic(TopicDescription::default())),
            (SUBSCRIPTION_PATH.to_owned(), EntityDefinition::Subscription(subscription)),
        ];
        let broker = TestBroker::start(config).await;
        let shared = shared().await.unwrap();
        let pipeline = format!("shop-{:08x}", rand::random::<u32>());
        Self {
            bus: client(&broker),
            broker,
            views: shared.database("session_views"),
            pods: pod_client(shared.uri(), &pipeline).await,
            pipeline,
            coordination: shared.database("session_house"),
            source: SourceConfig::events("shop", "events"),
            source_database: shared.database("session_source"),
            models: json!({ "orders": { "when": { "Added": { "$push": { "seen": "$$event.n" } } } } }),
        }
    }

    pub(crate) fn oversize(&self) -> ClaimCheckStore {
        ClaimCheckStore::new(&self.coordination, Duration::from_secs(3_600))
    }

    pub(crate) fn dependencies(&self, bus: Client) -> ConsumerDependencies {
        let declared = self.models.as_object().unwrap().iter();
        let compile = |(name, declared): (&String, &Value)| {
            Arc::new(ReadModel::compile(name, &serde_json::from_value(declared.clone()).unwrap()).unwrap())
        };
        ConsumerDependencies {
            pipeline: self.pipeline.clone(),
            source: self.source.clone(),
            source_database: (*self.source_database).clone(),
            start: PipelineStart::Beginning,
            filtered: false,
            views: self.pods.database(self.views.name()),
            coordination: (*self.coordination).clone(),
            bus,
            topic: TOPIC.into(),
            subscription: SUBSCRIPTION.into(),
            pod_run: PodRun::new(format!("pod-{:x}", rand::random::<u64>())),
            message_keys: None,
            models: declared.map(compile).collect(),
            projections: vec![],
        }
    }

    pub(crate) fn consume(&self, config: Config) -> RunningConsumer {
        RunningConsumer::start(config, self.dependencies(client(&self.broker)))
    }

    /// Ends the transactions that dead pods left open. Until the server's time limit, nobody could drop the database.
    pub(crate) async fn end_orphaned_transactions(&self) {
        let admin = self.pods.database("admin");
        let of_pods = [
            doc! { "$currentOp": { "allUsers": false, "idleSessions": true } },
            doc! { "$match": { "type": "idleSession", "appName": application_name(&self.pipeline) } },
        ];
        let idle: Vec<Document> = admin.aggregate(of_pods).await.unwrap().try_collect().await.unwrap();
        let id = |session: &Document| doc! { "id": session.get_document("lsid").unwrap().get("id").unwrap() };
        let sessions: Vec<Document> = idle.iter().map(id).collect();
        admin.run_command(doc! { "killSessions": sessions }).await.unwrap();
    }

    /// Sends the events and waits for the acknowledgements.
    pub(crate) async fn publish(&self, events: &[ChangeEvent]) {
        self.publish_as(events, encoder()).await;
    }

    pub(crate) async fn publish_as(&self, events: &[ChangeEvent], mut encoder: Encoder) {
        let messages: Vec<_> = events.iter().map(|event| encode(&mut encoder, event, BodyLocation::Inline)).collect();
        self.send(messages).await;
    }

    pub(crate) async fn send(&self, messages: Vec<EncodedMessage>) {
        let sender = self.bus.sender(TOPIC);
        let mut sends = vec![];
        for message in &messages {
            sends.push(sender.enqueue(message).await.unwrap());
        }
        for sent in sends {
            sent.await.unwrap();
        }
    }

    pub(crate) async fn inject_fault(&self, fault: Value) {
        let fault: FaultSpec = serde_json::from_value(fault).unwrap();
        self.broker.test(TestCommand::Arm(fault)).await.unwrap();
    }

    pub(crate) async fn view(&self, name: &str) -> Vec<Document> {
        let found = self.views.collection::<Document>(name).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        found.try_collect().await.unwrap()
    }

    /// The event numbers applied to each aggregate, in order.
    pub(crate) async fn applied_numbers(&self) -> BTreeMap<String, Vec<i64>> {
        let numbers =
            |order: &Document| order.get_array("seen").unwrap().iter().map(|number| number.as_i64().unwrap()).collect();
        self.view("orders")
            .await
            .iter()
            .map(|order| (order.get_str("_id").unwrap().to_owned(), numbers(order)))
            .collect()
    }

    /// Every event took effect once and in order, and no other event did.
    pub(crate) async fn assert_applied(&self, events: &[ChangeEvent]) {
        self.assert_applied_within(events, SOON).await;
    }

    pub(crate) async fn assert_applied_within(&self, events: &[ChangeEvent], within: Duration) {
        let expected = expected(events);
        let count =
            |applied_numbers: &BTreeMap<String, Vec<i64>>| applied_numbers.values().map(Vec::len).sum::<usize>();
        wait_for("all events to be applied", within, async || {
            let applied_numbers = self.applied_numbers().await;
            if count(&applied_numbers) >= events.len() { Ok(()) } else { Err(count(&applied_numbers)) }
        })
        .await;
        assert_eq!(self.applied_numbers().await, expected);
    }

    /// Why an aggregate is parked, and how many events are queued.
    pub(crate) async fn parked(&self, aggregate: &str) -> Option<(String, i64)> {
        let id = doc! { "pipeline": &self.pipeline, "aggregate": aggregate };
        let cursors = self.views.collection::<Document>("_headwater_cursors");
        let cursor = cursors.find_one(doc! { "_id": id }).await.unwrap()?;
        let entry = cursor.get_document("parked").ok()?.get_document("orders").ok()?;
        let reason = entry.get_str("reason").unwrap().to_owned();
        Some((reason, entry.get_i64("next").unwrap() - entry.get_i64("head").unwrap()))
    }

    /// Waits until the broker counts no active message.
    pub(crate) async fn wait_until_settled(&self) {
        let administration = self.broker.administration();
        wait_for("all messages to be settled", SOON, async || {
            let subscription = administration.get(SUBSCRIPTION_PATH).await.unwrap().expect("the subscription exists");
            match subscription.count("ActiveMessageCount") {
                Some(0) => Ok(()),
                left => Err(left),
            }
        })
        .await;
    }

    /// The subscription has no messages.
    pub(crate) async fn assert_drained(&self) {
        let next = self.bus.accept_next_session(SUBSCRIPTION_PATH, Duration::from_millis(100)).await.unwrap();
        if let Some(mut session) = next {
            let left = session.receive(10, Duration::from_millis(100)).await.unwrap();
            assert!(left.is_empty(), "{} messages are left", left.len());
        }
    }
}

/// A foreign transaction that locks the document of `order-0`: other writers get a write conflict.
pub(crate) struct DocumentLock(mongodb::ClientSession);

impl DocumentLock {
    pub(crate) async fn new(fixture: &SessionFixture) -> Self {
        let orders = fixture.views.collection::<Document>("orders");
        orders.insert_one(doc! { "_id": "order-0", "seen": [] }).await.unwrap();
        let mut session = fixture.views.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let held = doc! { "$set": { "held": 1 } };
        orders.update_one(doc! { "_id": "order-0" }, held).session(&mut session).await.unwrap();
        Self(session)
    }

    pub(crate) async fn release(mut self) {
        self.0.abort_transaction().await.unwrap();
    }
}

/// The read model after these events.
pub(crate) fn expected(events: &[ChangeEvent]) -> BTreeMap<String, Vec<i64>> {
    let mut expected: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for event in events {
        let aggregate = event.aggregate.as_ref().unwrap().value().as_str().unwrap().to_owned();
        expected.entry(aggregate).or_default().push(event.document.get_i64("n").unwrap());
    }
    expected
}

pub(crate) async fn pod_client(uri: &str, pipeline: &str) -> mongodb::Client {
    connect_as(uri, application_name(pipeline)).await.unwrap()
}

pub(crate) fn client(broker: &TestBroker) -> Client {
    client_at(broker, broker.address())
}

/// By an address such as that of a proxy.
pub(crate) fn client_at(broker: &TestBroker, address: SocketAddr) -> Client {
    let config = servicebus::Config {
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        ..servicebus::Config::default()
    };
    broker.client_at(address, config)
}

/// A running consumer.
pub(crate) struct RunningConsumer {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl RunningConsumer {
    pub(crate) fn start(config: Config, dependencies: ConsumerDependencies) -> Self {
        let consumer = Consumer::new(config, dependencies).unwrap();
        let (handle, stop) = (consumer.handle(), CancellationToken::new());
        let task = tokio::spawn(consumer.run(stop.clone()));
        Self { handle, stop, task }
    }

    pub(crate) fn counts(&self) -> ConsumerCounts {
        self.handle.counts()
    }

    pub(crate) async fn wait_until(&self, what: &str, is_so: impl Fn(ConsumerCounts, ConsumerState) -> bool) {
        wait_for(what, SOON, async || {
            let (counts, state) = (self.counts(), self.handle.state());
            if is_so(counts, state.clone()) { Ok(()) } else { Err((counts, state)) }
        })
        .await;
    }

    pub(crate) async fn stop(self) -> Result<(), Error> {
        self.stop.cancel();
        self.join().await
    }

    pub(crate) async fn join(self) -> Result<(), Error> {
        tokio::time::timeout(SOON, self.task).await.expect("the consumer ends in time").unwrap()
    }
}

pub(crate) fn sessions(count: usize) -> Config {
    let mut config = Config::default();
    config.session.max_concurrent_sessions = NonZeroUsize::new(count).unwrap();
    config.session.connections = NonZeroUsize::new(count.min(2)).unwrap();
    config.with_max_delivery_count(MAX_DELIVERY_COUNT.into())
}

pub(crate) fn encoder() -> Encoder {
    Encoder::new(BodyFormat::Bson, SessionMapping::Aggregate, Epoch::FIRST, Term::new(1))
}

pub(crate) fn encode(encoder: &mut Encoder, event: &ChangeEvent, content: BodyLocation) -> EncodedMessage {
    let aggregate = event.aggregate.as_ref().unwrap();
    let session = encoder.session_id(aggregate);
    EncodedMessage::message(encoder.encode(
        event,
        aggregate,
        &EventMessageId::for_event(event, None),
        &session,
        content,
    ))
}

/// `number` orders the event in the oplog and in the read model.
pub(crate) fn event(aggregate: impl Into<Bson>, number: i64) -> ChangeEvent {
    let aggregate = aggregate.into();
    ChangeEvent {
        token: ResumeToken::try_from(doc! { "_data": format!("82{number:010}") }).unwrap(),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        key: Bson::Int64(number),
        aggregate: AggregateId::new(aggregate.clone()),
        event_type: Some("Added".into()),
        sequence: None,
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: u32::try_from(number).unwrap() }),
        wall_time: None,
        document: RawDocumentBuf::try_from(&doc! { "aggregateId": aggregate, "type": "Added", "n": number }).unwrap(),
    }
}

/// So many events, spread over the aggregates in turn.
pub(crate) fn events(count: i64, aggregates: i64) -> Vec<ChangeEvent> {
    (1..=count).map(|number| event(format!("order-{}", number % aggregates), number)).collect()
}
