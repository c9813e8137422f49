//! A broker with a few entities, and clients of it.

use std::net::SocketAddr;
use std::time::Duration;

use broker::core::{EntityDefinition, QueueDescription, SubscriptionDescription, TopicDescription};
use broker::{Broker, StorageLocation};
use servicebus::{Client, Config, Message, ReceivedMessage, SessionReceiver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough for a machine under load; no passing test waits this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How long a call may take in tests of peers that do not answer.
pub(crate) const BRIEF: Duration = Duration::from_secs(1);
/// To see that something does not come.
pub(crate) const MOMENT: Duration = Duration::from_millis(50);

/// A queue with sessions.
pub(crate) const ORDERS: &str = "orders";
/// A queue without.
pub(crate) const PLAIN: &str = "plain";
/// A queue that drops duplicates.
pub(crate) const ONCE: &str = "once";
/// A partitioned topic, and its subscription with sessions.
pub(crate) const EVENTS: &str = "events";
pub(crate) const READ_MODELS: &str = "events/Subscriptions/read-models";

const TOKEN: &str = "open sesame";

pub(crate) struct ClientFixture {
    pub(crate) broker: Broker,
    pub(crate) client: Client,
}

impl ClientFixture {
    pub(crate) async fn start() -> Self {
        let broker = start_broker(None).await;
        let client = Client::new(&broker.connection_string(), long_timeouts()).unwrap();
        Self { broker, client }
    }

    /// A client that connects to another address, such as a proxy.
    pub(crate) fn client_by(address: SocketAddr, config: Config) -> Client {
        Client::new(&emulator(address), config).unwrap()
    }

    pub(crate) async fn send(&self, to: &str, messages: impl IntoIterator<Item = Message>) {
        let sender = self.client.sender(to);
        for message in messages {
            sender.send_message(&message).await.unwrap();
        }
    }

    /// Arms a fault in the broker.
    pub(crate) async fn arm(&self, fault: &str) {
        let mut stream = TcpStream::connect(self.broker.address()).await.unwrap();
        let length = fault.len();
        let request = format!(
            "POST /$test/faults HTTP/1.1\r\nhost: localhost\r\nx-headwater-test-token: {TOKEN}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{fault}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

pub(crate) async fn start_broker(tls: Option<broker::TlsFiles>) -> Broker {
    start_broker_with(|config| config.tls = tls).await
}

pub(crate) async fn start_broker_with(set: impl FnOnce(&mut broker::Config)) -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().unwrap(), StorageLocation::Ephemeral);
    let mut events = TopicDescription::default();
    events.ingress.enable_partitioning = true;
    let mut subscription = SubscriptionDescription::default();
    subscription.egress.requires_session = true;
    config.entities = vec![
        (ORDERS.to_owned(), queue(|queue| queue.egress.requires_session = true)),
        (PLAIN.to_owned(), queue(|_| {})),
        (ONCE.to_owned(), queue(|queue| queue.ingress.requires_duplicate_detection = true)),
        (EVENTS.to_owned(), EntityDefinition::Topic(events)),
        (READ_MODELS.to_owned(), EntityDefinition::Subscription(subscription)),
    ];
    config.test_token = Some(TOKEN.to_owned());
    set(&mut config);
    Broker::start(config).await.unwrap()
}

fn queue(set: impl FnOnce(&mut QueueDescription)) -> EntityDefinition {
    let mut queue = QueueDescription::default();
    set(&mut queue);
    EntityDefinition::Queue(queue)
}

pub(crate) fn emulator(address: SocketAddr) -> String {
    format!("Endpoint=sb://{address};SharedAccessKeyName=Root;SharedAccessKey=key;UseDevelopmentEmulator=true")
}

pub(crate) fn long_timeouts() -> Config {
    Config { connect_timeout: SOON, operation_timeout: SOON, ..Config::default() }
}

pub(crate) fn short_timeouts() -> Config {
    Config {
        connect_timeout: BRIEF,
        operation_timeout: BRIEF,
        idle_timeout: SOON,
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(20),
        ..Config::default()
    }
}

pub(crate) fn in_session(session: &str, body: impl Into<String>) -> Message {
    Message::new(body.into()).with_session(session)
}

pub(crate) fn bodies(messages: &[ReceivedMessage]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8(message.body().to_vec()).unwrap()).collect()
}

/// Receives until there are `count`.
pub(crate) async fn receive_all(session: &mut SessionReceiver, count: usize) -> Vec<ReceivedMessage> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let more = session.receive(count - messages.len(), SOON).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} came", messages.len());
        messages.extend(more);
    }
    messages
}
