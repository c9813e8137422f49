//! Transactions of a raw client: declare, discharge, via-entity, and a broker that is killed while clients commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use amqp::message::MessageWriter;
use amqp::performative::{Coordinator, Disposition, Flow, Performative, TransactionalState, Transfer};
use amqp::{Attach, DeliveryState, Described, Map, Message, Role, Source, Symbol, Target, Value};
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, StorageLocation};
use bytes::{Bytes, BytesMut};
use std::net::SocketAddr;
use testkit::process::Program;
use testkit::wait::wait_for;

use crate::fixture::{BINARY, SOON};
use crate::raw_peer::{RawPeer, attach, credit, transfer};

const COORDINATOR: u32 = 0;
const SENDER: u32 = 1;
const RECEIVER: u32 = 2;

/// A client with a coordinator link, and links of its choice, in one AMQP session.
struct TransactionClient {
    peer: RawPeer,
    next_delivery: u32,
    /// Deliveries that arrived while something else was awaited.
    received: Vec<(u32, String)>,
    /// Dispositions that arrived while something else was awaited.
    settlements: Vec<Disposition>,
}

impl TransactionClient {
    async fn connect(address: SocketAddr) -> Self {
        Self::of(RawPeer::begun(address).await).await
    }

    async fn of(mut peer: RawPeer) -> Self {
        let coordinator = Target::from(Coordinator::default());
        peer.frame(0, &with_handle(COORDINATOR, Attach::sender("c", Source::at("me"), coordinator))).await;
        peer.until(|frame| matches!(frame, Performative::Flow(flow) if flow.handle == Some(COORDINATOR))).await;
        Self { peer, next_delivery: 0, received: Vec::new(), settlements: Vec::new() }
    }

    async fn sender(mut self, queue: &str, via: Option<&str>) -> Self {
        let mut request = Attach::sender("s", Source::at("me"), Target::at(via.unwrap_or(queue)));
        if via.is_some() {
            let key = Symbol::from_static("com.microsoft:transfer-destination-address");
            request.properties = Some(Map::new().with(key, queue));
        }
        self.peer.frame(0, &with_handle(SENDER, request)).await;
        self.peer.until(|frame| matches!(frame, Performative::Flow(flow) if flow.handle == Some(SENDER))).await;
        self
    }

    async fn receiver(mut self, queue: &str, messages: u32) -> Self {
        self.peer.frame(0, &with_handle(RECEIVER, Attach::receiver("r", Source::at(queue), Target::at("me")))).await;
        self.peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        let Performative::Flow(flow) = credit(RECEIVER, messages, 1 << 20) else { unreachable!("credit is a flow") };
        self.peer.frame(0, &Performative::Flow(Flow { next_incoming_id: Some(1), ..flow })).await;
        self
    }

    /// Sends a delivery; returns its outcome. `None` if the connection ends.
    async fn send(&mut self, handle: u32, state: Option<DeliveryState>, payload: &[u8]) -> Option<DeliveryState> {
        let id = self.next_delivery;
        self.next_delivery += 1;
        let Performative::Transfer(frame) = transfer(handle, id, false) else { unreachable!("transfer is one") };
        self.peer.frame_with(0, &Performative::Transfer(Transfer { state, ..frame }), payload).await;
        self.outcome(Role::Receiver, id).await
    }

    async fn outcome(&mut self, role: Role, id: u32) -> Option<DeliveryState> {
        self.answer(role, id).await?.state
    }

    async fn answer(&mut self, role: Role, id: u32) -> Option<Disposition> {
        loop {
            let (frame, payload) = self.peer.poll_frame(SOON).await?;
            match frame {
                Performative::Disposition(found) if found.role == role && found.first == id => return Some(found),
                Performative::Disposition(found) => self.settlements.push(found),
                Performative::Transfer(transfer) => self.record(&transfer, payload),
                Performative::Detach(detach) => panic!("{detach:?}"),
                _ => {}
            }
        }
    }

    fn record(&mut self, transfer: &Transfer, payload: Bytes) {
        let message = Message::parse(payload).expect("the broker writes good messages");
        let body = message.data().next().expect("a body");
        self.received.push((transfer.delivery_id.expect("an id"), String::from_utf8(body.to_vec()).expect("text")));
    }

    /// The next message of the receiver.
    async fn receive(&mut self) -> Option<(u32, String)> {
        while self.received.is_empty() {
            if let (Performative::Transfer(transfer), payload) = self.peer.poll_frame(SOON).await? {
                self.record(&transfer, payload);
            }
        }
        Some(self.received.remove(0))
    }

    async fn declare(&mut self) -> Option<Bytes> {
        match self.send(COORDINATOR, None, &described(0x31, vec![Value::Null])).await? {
            DeliveryState::Declared { transaction } => Some(transaction),
            other => panic!("{other:?}"),
        }
    }

    async fn discharge(&mut self, transaction: &Bytes, fail: bool) -> Option<DeliveryState> {
        let fields = vec![Value::Binary(transaction.clone()), Value::Boolean(fail)];
        self.send(COORDINATOR, None, &described(0x32, fields)).await
    }

    async fn send_in(&mut self, transaction: &Bytes, body: &str) -> Option<DeliveryState> {
        self.send(SENDER, Some(within(transaction, None)), &text(body)).await
    }

    async fn settle_in(&mut self, transaction: &Bytes, id: u32, outcome: DeliveryState) -> Option<DeliveryState> {
        self.settle(id, within(transaction, Some(outcome))).await?.state
    }

    /// Disposes of a delivery, unsettled; returns the answer.
    async fn settle(&mut self, id: u32, state: DeliveryState) -> Option<Disposition> {
        let (role, last) = (Role::Receiver, None);
        let disposition = Disposition { role, first: id, last, settled: false, state: Some(state), batchable: false };
        self.peer.frame(0, &Performative::Disposition(disposition)).await;
        self.answer(Role::Sender, id).await
    }
}

fn with_handle(handle: u32, request: Attach) -> Performative {
    attach(Attach { handle, ..request })
}

fn within(transaction: &Bytes, outcome: Option<DeliveryState>) -> DeliveryState {
    DeliveryState::Transactional(Box::new(TransactionalState { transaction: transaction.clone(), outcome }))
}

fn described(descriptor: u64, fields: Vec<Value>) -> Bytes {
    let mut buffer = BytesMut::new();
    let value = Described { descriptor: Value::Ulong(descriptor), value: Value::List(fields) };
    MessageWriter::new(&mut buffer).value(&Value::Described(Box::new(value)));
    buffer.freeze()
}

fn text(body: &str) -> Bytes {
    let mut buffer = BytesMut::new();
    MessageWriter::new(&mut buffer).data(body.as_bytes());
    buffer.freeze()
}

async fn broker_with(queues: &[&str]) -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    let queue = || EntityDefinition::Queue(QueueDescription::default());
    config.entities = queues.iter().map(|name| ((*name).to_owned(), queue())).collect();
    Broker::start(config).await.expect("a broker")
}

/// All messages of a queue, without settling them.
async fn peek_all(address: SocketAddr, queue: &str, count: u32) -> Vec<String> {
    let mut client = TransactionClient::connect(address).await.receiver(queue, count).await;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(client.receive().await.expect("the broker goes on").1);
    }
    all
}

#[tokio::test]
async fn a_commit_moves_a_message_and_a_rollback_does_not() {
    let broker = broker_with(&["from", "to"]).await;
    let mut filler = TransactionClient::connect(broker.address()).await.sender("from", None).await;
    for body in ["a", "b"] {
        assert_eq!(filler.send(SENDER, None, &text(body)).await, Some(DeliveryState::Accepted));
    }
    // The sender goes via the queue that the receiver settles in, as the service requires.
    let client = TransactionClient::connect(broker.address()).await.sender("to", Some("from")).await;
    let mut client = client.receiver("from", 2).await;
    for fail in [false, true] {
        let (id, body) = client.receive().await.expect("a message");
        let transaction = client.declare().await.expect("an answer");
        let sent = client.send_in(&transaction, &body).await;
        assert_eq!(sent, Some(within(&transaction, Some(DeliveryState::Accepted))));
        let settled = client.settle_in(&transaction, id, DeliveryState::Accepted).await;
        assert_eq!(settled, Some(within(&transaction, Some(DeliveryState::Accepted))));
        assert_eq!(client.discharge(&transaction, fail).await, Some(DeliveryState::Accepted));
        let again = client.discharge(&transaction, false).await;
        let Some(DeliveryState::Rejected(Some(error))) = again else { panic!("{again:?}") };
        assert_eq!(error.condition.as_str(), "amqp:transaction:unknown-id");
    }
    assert_eq!(peek_all(broker.address(), "to", 1).await, ["a"]);
    broker.stop().await;
}

/// As the .NET SDK's own suite demands: after a rollback the message can be completed on the same link.
#[tokio::test]
async fn after_a_rollback_the_delivery_is_settled_on_its_link() {
    let broker = broker_with(&["q"]).await;
    let mut filler = TransactionClient::connect(broker.address()).await.sender("q", None).await;
    for body in ["a", "b"] {
        filler.send(SENDER, None, &text(body)).await.expect("an answer");
    }
    let mut client = TransactionClient::connect(broker.address()).await.receiver("q", 2).await;
    let rejected = DeliveryState::Rejected(None);
    for fail in [true, false] {
        let (id, _) = client.receive().await.expect("a message");
        let transaction = client.declare().await.expect("an answer");
        let provisional = client.settle(id, within(&transaction, Some(rejected.clone()))).await.expect("an answer");
        assert!(!provisional.settled, "{provisional:?}");
        assert_eq!(provisional.state, Some(within(&transaction, Some(rejected.clone()))));
        assert_eq!(client.discharge(&transaction, fail).await, Some(DeliveryState::Accepted));
        if fail {
            let again = client.settle(id, DeliveryState::Accepted).await.expect("an answer");
            assert_eq!((again.settled, again.state), (true, Some(DeliveryState::Accepted)), "its lock is still held");
        } else {
            let settled = client.settlements.pop().expect("the commit settles it");
            assert_eq!((settled.first, settled.settled, settled.state), (id, true, Some(rejected.clone())));
        }
    }
    assert_eq!(peek_all(broker.address(), "q/$DeadLetterQueue", 1).await, ["b"], "the first is completed");
    broker.stop().await;
}

#[tokio::test]
async fn a_transaction_ends_with_its_connection() {
    let broker = broker_with(&["q"]).await;
    let mut client = TransactionClient::connect(broker.address()).await.sender("q", None).await;
    let transaction = client.declare().await.expect("an answer");
    client.send_in(&transaction, "a").await.expect("an answer");
    drop(client);
    let mut other = TransactionClient::connect(broker.address()).await.sender("q", None).await;
    let refused = other.send_in(&transaction, "b").await;
    let Some(DeliveryState::Rejected(Some(error))) = refused else { panic!("{refused:?}") };
    assert_eq!(error.condition.as_str(), "amqp:transaction:unknown-id");
    assert_eq!(other.send(SENDER, None, &text("c")).await, Some(DeliveryState::Accepted));
    assert_eq!(peek_all(broker.address(), "q", 1).await, ["c"]);
    broker.stop().await;
}

/// The .NET SDK declares before it opens the link that sends its first token, so that a connection without one may
/// declare a few, for a short time.
#[tokio::test]
async fn a_coordinator_link_needs_a_token() {
    let fixture = crate::protection::start_with_keys().await;
    let mut without = TransactionClient::connect(fixture.address).await;
    let mut with = TransactionClient::of(RawPeer::authenticated(fixture.address, "reader", "reader-key").await).await;
    for _ in 0..10 {
        without.declare().await.expect("an answer");
    }
    let refused = without.send(COORDINATOR, None, &described(0x31, vec![Value::Null])).await;
    let Some(DeliveryState::Rejected(Some(error))) = refused else { panic!("{refused:?}") };
    assert_eq!(error.condition.as_str(), "amqp:resource-limit-exceeded");
    assert!(error.description.as_deref().is_some_and(|text| text.contains("without a token")), "{error:?}");
    for _ in 0..11 {
        with.declare().await.expect("an answer");
    }
    fixture.test("POST", "clock", r#"{"advance_ms": 20001}"#).await;
    let Performative::Transfer(frame) = transfer(COORDINATOR, without.next_delivery, false) else { unreachable!() };
    without.peer.frame_with(0, &Performative::Transfer(frame), &described(0x31, vec![Value::Null])).await;
    let cut = without.peer.close_error().await;
    assert_eq!(cut, Some(("detach", "amqp:unauthorized-access".to_owned())));
    with.declare().await.expect("a key of the namespace is enough");
}

/// What movers saw until the broker was killed.
#[derive(Debug, Default)]
struct MoveReport {
    connected: usize,
    /// Messages whose commit was acknowledged.
    committed: BTreeSet<String>,
    rollbacks: usize,
    /// Transactions with operations that neither were ended nor answered.
    interrupted: usize,
}

/// Moves messages from `from` to `to`, two copies each, until the connection ends. Every second transaction is rolled
/// back and done again.
async fn move_until_killed(address: SocketAddr, report: Arc<Mutex<MoveReport>>) {
    let client = TransactionClient::connect(address).await.sender("to", Some("from")).await;
    let mut client = client.receiver("from", 1_000).await;
    report.lock().expect("no mover panics").connected += 1;
    while let Some((id, body)) = client.receive().await {
        for fail in [true, false] {
            let Some(transaction) = client.declare().await else { return };
            for _ in 0..2 {
                client.send_in(&transaction, &body).await;
            }
            client.settle_in(&transaction, id, DeliveryState::Accepted).await;
            let outcome = client.discharge(&transaction, fail).await;
            let mut report = report.lock().expect("no mover panics");
            match (outcome, fail) {
                (Some(DeliveryState::Accepted), true) => report.rollbacks += 1,
                (Some(DeliveryState::Accepted), false) => drop(report.committed.insert(body.clone())),
                (None, _) => {
                    report.interrupted += 1;
                    return;
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }
}

async fn start(data: &std::path::Path) -> (testkit::process::Process, SocketAddr) {
    let program = Program::new(BINARY).args(["broker", "--data-dir"]).args([data]).args(["--listen", "127.0.0.1:0"]);
    let broker = program.named("broker").start().expect("the binary starts");
    let ready = broker.wait_for_line("broker ready on", SOON).await.to_string();
    let address = ready.split_whitespace().find_map(|word| word.parse().ok()).expect("the line names the address");
    (broker, address)
}

async fn create(address: SocketAddr, queue: &str) {
    let body = "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
        <QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\"/>\
        </content></entry>";
    let path = format!("/{queue}?api-version=2021-05");
    let answer = crate::fixture::request(address, "PUT", &path, "", body.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

#[tokio::test]
async fn a_kill_between_two_commits_leaves_no_half() {
    const MESSAGES: usize = 1_000;
    const ROUNDS: usize = 4;
    const MOVERS: usize = 3;
    let data = tempfile::tempdir().expect("a temporary folder");
    let (mut broker, mut address) = start(data.path()).await;
    for queue in ["from", "to"] {
        create(address, queue).await;
    }
    let mut filler = TransactionClient::connect(address).await.sender("from", None).await;
    for n in 0..MESSAGES {
        filler.send(SENDER, None, &text(&n.to_string())).await.expect("an answer");
    }
    let report = Arc::new(Mutex::new(MoveReport::default()));
    for round in 1..=ROUNDS {
        let progress = || {
            let report = report.lock().expect("no mover panics");
            (report.connected, report.committed.len())
        };
        let (_, before) = progress();
        let movers: Vec<_> =
            (0..MOVERS).map(|_| tokio::spawn(move_until_killed(address, Arc::clone(&report)))).collect();
        wait_for("commits of all movers", SOON, async || {
            let (connected, committed) = progress();
            let enough = connected == MOVERS * round && committed >= before + 20;
            if enough { Ok(()) } else { Err((connected, committed)) }
        })
        .await;
        broker.kill().await;
        for mover in movers {
            mover.await.expect("it ends with its connection");
        }
        (broker, address) = start(data.path()).await;
    }
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for queue in ["from", "to"] {
        let client = crate::fixture::request(address, "GET", &format!("/{queue}?api-version=2021-05"), "", b"").await;
        let count = client.split("MessageCount>").nth(1).and_then(|rest| rest.split('<').next());
        let count: u32 = count.and_then(|count| count.parse().ok()).expect("a count");
        for body in peek_all(address, queue, count).await {
            places.entry(body).or_default().push(queue);
        }
    }
    let report = report.lock().expect("no mover panics");
    assert_eq!(places.len(), MESSAGES, "none is lost");
    let wrong: Vec<_> = places.iter().filter(|(_, found)| **found != ["from"] && **found != ["to", "to"]).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let undone: Vec<_> = report.committed.iter().filter(|body| places[*body] != ["to", "to"]).collect();
    assert!(undone.is_empty(), "acknowledged commits: {undone:?}");
    let moved = places.values().filter(|found| **found == ["to", "to"]).count();
    assert!(report.rollbacks >= 20 * ROUNDS, "{report:?}");
    assert!(report.interrupted >= ROUNDS, "every kill hits transactions in flight: {}", report.interrupted);
    assert!((20 * ROUNDS..MESSAGES).contains(&moved), "{moved} moved");
    assert!(moved <= report.committed.len() + report.interrupted, "{moved} moved, {report:?}");
}
