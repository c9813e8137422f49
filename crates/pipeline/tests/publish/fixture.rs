//! A broker, a coordination database, and publishers between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use broker::StorageLocation;
use broker::core::{EntityDefinition, TopicDescription};
use lease::CandidateId;
use mongodb::bson::{Bson, Document, RawDocumentBuf, Timestamp, doc, oid::ObjectId};
use pipeline::capture::CaptureItem;
use pipeline::checkpoint::{Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use pipeline::envelope::property;
use pipeline::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, ResumeToken, Term};
use pipeline::publish::{
    Config, Error, Handle, PublishClaim, PublishCounts, PublishEnd, PublishState, PublishTopic, Publisher,
    PublisherStores, RejectedStore, ServiceBusTopic,
};
use pipeline::stored::ClaimCheckStore;
use servicebus::{Client, ReceivedMessage};
use testkit::bus::TestBroker;
use testkit::mongo::{ScratchDatabase, shared};
use testkit::wait::wait_for;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Long enough for a machine under load; a passing test never waits this long.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// To check that nothing arrives.
pub(crate) const SHORT_WAIT: Duration = Duration::from_millis(100);

const TOPIC: &str = "events";
const SUBSCRIPTION: &str = "read-models";
pub(crate) const SUBSCRIPTION_PATH: &str = "events/Subscriptions/read-models";
const TOKEN: &str = "open sesame";

pub(crate) struct PublishFixture {
    pub(crate) broker: TestBroker,
    pub(crate) bus: Client,
    pub(crate) database: ScratchDatabase,
}

impl PublishFixture {
    pub(crate) async fn start(set: impl FnOnce(&mut TopicDescription)) -> Self {
        let mut fixture = Self::without_subscription(set).await;
        fixture.subscribe().await;
        fixture.bus = fixture.client(fixture.broker.address());
        fixture
    }

    pub(crate) async fn without_subscription(set: impl FnOnce(&mut TopicDescription)) -> Self {
        let mut config = broker::Config::new("127.0.0.1:0".parse().unwrap(), StorageLocation::Ephemeral);
        let mut topic = TopicDescription::default();
        set(&mut topic);
        config.entities = vec![(TOPIC.to_owned(), EntityDefinition::Topic(topic))];
        config.test_token = Some(TOKEN.to_owned());
        let broker = TestBroker::start(config).await;
        let bus = broker.client(servicebus::Config::default());
        let database = shared().await.unwrap().database("publish");
        Self { broker, bus, database }
    }

    /// A partitioned topic with duplicate detection.
    pub(crate) async fn with_default_topic() -> Self {
        Self::start(|topic| {
            topic.ingress.enable_partitioning = true;
            topic.ingress.requires_duplicate_detection = true;
        })
        .await
    }

    pub(crate) fn client(&self, address: SocketAddr) -> Client {
        let config = servicebus::Config {
            initial_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(50),
            ..servicebus::Config::default()
        };
        self.broker.client_at(address, config)
    }

    pub(crate) async fn subscribe(&self) {
        let content = r#"<SubscriptionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><RequiresSession>true</RequiresSession></SubscriptionDescription>"#;
        let entry = format!(
            r#"<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content></entry>"#
        );
        self.http("PUT", &format!("/{SUBSCRIPTION_PATH}?api-version=2021-05"), &entry).await;
    }

    pub(crate) async fn unsubscribe(&self) {
        self.http("DELETE", &format!("/{SUBSCRIPTION_PATH}?api-version=2021-05"), "").await;
    }

    /// Injects a fault into the broker.
    pub(crate) async fn inject(&self, fault: &str) {
        self.http("POST", "/$test/faults", fault).await;
    }

    async fn http(&self, method: &str, path: &str, body: &str) {
        self.broker.administer(method, path, &format!("x-headwater-test-token: {TOKEN}\r\n"), body).await;
    }

    pub(crate) fn checkpoints(&self) -> MongoCheckpointStore {
        MongoCheckpointStore::new(&self.database, "shop", "events:shop.events")
    }

    pub(crate) fn claim_checks(&self) -> ClaimCheckStore {
        ClaimCheckStore::new(&self.database, Duration::from_secs(3_600))
    }

    /// Starts a publisher in its own term.
    pub(crate) async fn publish(&self, term: u64, config: Config) -> PublisherRun {
        let gate = Arc::new(AtomicBool::new(true));
        let topic = self.topic(self.bus.clone(), &gate);
        self.publish_to(topic, gate, term, config).await
    }

    pub(crate) fn topic(&self, bus: Client, gate: &Arc<AtomicBool>) -> ServiceBusTopic {
        let gate = Arc::clone(gate);
        ServiceBusTopic::new(bus, TOPIC, SUBSCRIPTION, Arc::new(move || gate.load(SeqCst)))
    }

    pub(crate) async fn publish_to<T: PublishTopic>(
        &self,
        topic: T,
        gate: Arc<AtomicBool>,
        term: u64,
        config: Config,
    ) -> PublisherRun {
        let claim = CheckpointClaim {
            term: Term::new(term),
            claimant: CandidateId::new(term.into()),
            pod_id: format!("pod-{term}"),
        };
        let checkpoints = Arc::new(self.checkpoints());
        let Checkpoint { epoch, replay, .. } = checkpoints.claim(&claim).await.unwrap();
        let handle = Handle::default();
        let stores = PublisherStores {
            checkpoints,
            claim_checks: self.claim_checks(),
            rejected: RejectedStore::new(&self.database, "shop"),
        };
        let publisher = Publisher::new(config, PublishClaim { claim, epoch, replay }, topic, stores, handle.clone());
        let (intake, captured) = mpsc::channel(4);
        let [(stop, stopped), (lose, lost)] = [(); 2].map(|()| oneshot::channel::<()>());
        let ended = tokio::spawn(publisher.run(captured, signal(stopped), signal(lost)));
        PublisherRun { intake: Some(intake), stop: Some(stop), lose: Some(lose), ended, handle, gate }
    }

    /// Receives all messages by session, in order; there must be `count`.
    pub(crate) async fn receive_all(&self, count: usize) -> BTreeMap<String, Vec<ReceivedMessage>> {
        let mut sessions: BTreeMap<String, Vec<ReceivedMessage>> = BTreeMap::new();
        let mut all = 0;
        loop {
            let wait = if all < count { SOON } else { SHORT_WAIT };
            let Some(mut session) = self.bus.accept_next_session(SUBSCRIPTION_PATH, wait).await.unwrap() else { break };
            loop {
                // Acknowledged messages are visible: an empty session is empty, or is accepted again.
                let messages = session.receive(200, SHORT_WAIT / 10).await.unwrap();
                if messages.is_empty() {
                    break;
                }
                all += messages.len();
                session.settler().complete(&messages).await.unwrap();
                sessions.entry(session.session_id().to_owned()).or_default().extend(messages);
            }
            session.close().await.unwrap();
        }
        assert_eq!(all, count, "messages in the subscription");
        sessions
    }

    /// Every event of `events` arrived once and in order.
    pub(crate) async fn assert_received_in_order(&self, events: &[CaptureItem]) {
        let mut expected: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for event in events {
            let CaptureItem::Change(event) = event else { continue };
            let session = event.aggregate.as_ref().unwrap().session_id();
            expected.entry(session).or_default().push(event.document.get_i64("n").unwrap());
        }
        let received = self.receive_all(events.len()).await;
        let received: BTreeMap<String, Vec<i64>> =
            received.into_iter().map(|(session, messages)| (session, messages.iter().map(number).collect())).collect();
        assert_eq!(received, expected);
    }

    pub(crate) async fn phase(&self) -> CheckpointPhase {
        self.checkpoints().load().await.unwrap().unwrap().phase
    }

    pub(crate) async fn documents(&self, collection: &str) -> Vec<Document> {
        let mut cursor = self.database.collection::<Document>(collection).find(doc! {}).await.unwrap();
        let mut all = Vec::new();
        while cursor.advance().await.unwrap() {
            all.push(cursor.deserialize_current().unwrap());
        }
        all
    }
}

/// Waits for the signal; forever, if its sender is dropped.
async fn signal(word: oneshot::Receiver<()>) {
    if word.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A running publisher.
pub(crate) struct PublisherRun {
    intake: Option<mpsc::Sender<Vec<CaptureItem>>>,
    stop: Option<oneshot::Sender<()>>,
    lose: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<PublishEnd, Error>>,
    pub(crate) handle: Handle,
    pub(crate) gate: Arc<AtomicBool>,
}

impl PublisherRun {
    /// Sends captured events in batches, like capture.
    pub(crate) async fn send(&self, events: &[CaptureItem]) {
        for batch in events.chunks(64) {
            self.intake.as_ref().unwrap().send(batch.to_vec()).await.expect("the publisher takes more");
        }
    }

    /// Like `send`, but the publisher may stop meanwhile.
    pub(crate) async fn try_send(&self, events: &[CaptureItem]) {
        for batch in events.chunks(64) {
            let _ = self.intake.as_ref().unwrap().send(batch.to_vec()).await;
        }
    }

    pub(crate) fn counts(&self) -> PublishCounts {
        self.handle.counts()
    }

    pub(crate) async fn wait_until_published(&self, events: u64) {
        wait_for("events to be published", SOON, async || {
            let counts = self.counts();
            if counts.published >= events { Ok(()) } else { Err((counts, self.handle.state())) }
        })
        .await;
    }

    pub(crate) async fn wait_for_state(&self, state: PublishState) {
        wait_for(format!("{state:?}"), SOON, async || {
            let now = self.handle.state();
            if now == state { Ok(()) } else { Err(now) }
        })
        .await;
    }

    pub(crate) fn lose_term(&mut self) {
        self.lose.take().unwrap().send(()).unwrap();
    }

    /// Stops the publisher and ends its input; returns the result and the duration.
    pub(crate) async fn stop(mut self) -> (Result<PublishEnd, Error>, Duration) {
        let began = Instant::now();
        self.stop.take().unwrap().send(()).expect("it runs");
        self.intake.take();
        (self.end().await, began.elapsed())
    }

    /// Ends the input; returns the result.
    pub(crate) async fn drain(mut self) -> Result<PublishEnd, Error> {
        self.intake.take();
        self.end().await
    }

    pub(crate) async fn end(self) -> Result<PublishEnd, Error> {
        tokio::time::timeout(SOON, self.ended).await.expect("it ends in time").unwrap()
    }
}

pub(crate) fn token(number: i64) -> ResumeToken {
    ResumeToken::try_from(doc! { "_data": format!("82{number:010}") }).unwrap()
}

pub(crate) fn stream(number: i64) -> CheckpointPhase {
    CheckpointPhase::Stream { token: token(number) }
}

pub(crate) fn event(aggregate: impl Into<Bson>, number: i64) -> ChangeEvent {
    let aggregate = aggregate.into();
    ChangeEvent {
        token: token(number),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        key: Bson::ObjectId(ObjectId::new()),
        aggregate: AggregateId::new(aggregate.clone()),
        event_type: Some("OrderPlaced".into()),
        sequence: Some(number),
        cluster_time: Some(Timestamp { time: 1_700_000_000, increment: u32::try_from(number).unwrap() }),
        wall_time: None,
        document: RawDocumentBuf::try_from(&doc! { "aggregateId": aggregate, "n": number }).unwrap(),
    }
}

/// `count` events over `aggregates` aggregates in turn.
pub(crate) fn events(count: i64, aggregates: i64) -> Vec<CaptureItem> {
    (1..=count).map(|number| CaptureItem::Change(event(format!("order-{}", number % aggregates), number))).collect()
}

/// The number in an event's document.
pub(crate) fn number(message: &ReceivedMessage) -> i64 {
    RawDocumentBuf::from_bytes(message.body().to_vec()).unwrap().get_i64("n").unwrap()
}

pub(crate) fn typed(message: &ReceivedMessage, name: &str) -> Bson {
    let bytes = message.application_property(name).unwrap();
    let document = RawDocumentBuf::from_bytes(bytes.as_binary().unwrap().to_vec()).unwrap();
    Document::try_from(&*document).unwrap().get("v").unwrap().clone()
}

pub(crate) fn text(message: &ReceivedMessage, name: &str) -> Option<String> {
    message.application_property(name).and_then(|value| value.as_str()).map(str::to_owned)
}

pub(crate) fn is_marker(message: &ReceivedMessage) -> bool {
    message.application_property(property::MARKER).is_some()
}

pub(crate) const EPOCH: Epoch = Epoch::FIRST;
