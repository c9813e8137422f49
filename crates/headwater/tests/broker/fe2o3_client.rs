//! `fe2o3-amqp` as a client: an AMQP 1.0 implementation that is neither ours nor an SDK's.
//!
//! Shows what a plain AMQP client can do with the broker. Its limits: it cannot use the mechanism
//! `MSSBCBS`, needs TLS for `EXTERNAL`, and does not report the broker's reply to a settlement, so outcomes are checked on the queue.

use std::time::Duration;

use amqp::message::{BATCH_FORMAT, MessageWriter, Properties as Ours};
use bytes::BytesMut;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{self, Fields, ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{ApplicationProperties, Body, Data, Message, Modified, Outcome, Properties, Source};
use fe2o3_amqp::types::primitives::{Binary, OrderedMap, SimpleValue, Symbol, Value};
use fe2o3_amqp::{Connection, Delivery, Receiver, Sendable, Sender, Session};
use serde_amqp::described::Described;
use serde_amqp::descriptor::Descriptor;
use tokio::time::timeout;

use crate::fixture::{BrokerFixture, SOON};

const SESSION_FILTER: &str = "com.microsoft:session-filter";

struct Bus {
    fixture: BrokerFixture,
    _connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
}

impl Bus {
    async fn start() -> Self {
        let fixture = BrokerFixture::start().await;
        fixture.queue("plain", "").await;
        fixture.queue("orders", "<RequiresSession>true</RequiresSession>").await;
        let mut connection = connect(&fixture, SaslProfile::Anonymous).await;
        let session = Session::begin(&mut connection).await.expect("an AMQP session");
        Self { fixture, _connection: connection, session }
    }

    async fn sender(&mut self, entity: &str) -> Sender {
        Sender::attach(&mut self.session, format!("to-{entity}"), entity).await.expect("a sender")
    }

    async fn receiver(&mut self, entity: &str, mode: (SenderSettleMode, ReceiverSettleMode)) -> Receiver {
        self.receiver_of(Source::builder().address(entity).build(), mode).await.expect("a receiver")
    }

    async fn receiver_of(
        &mut self,
        source: Source,
        (send, receive): (SenderSettleMode, ReceiverSettleMode),
    ) -> Result<Receiver, String> {
        let timeout = Fields::from_iter([(Symbol::from("com.microsoft:timeout"), Value::Uint(500))]);
        let attached = Receiver::builder()
            .name(format!("from-{:?}-{}", source.address, rand_name()))
            .source(source)
            .sender_settle_mode(send)
            .receiver_settle_mode(receive)
            .properties(timeout)
            .credit_mode(CreditMode::Auto(10))
            .attach(&mut self.session)
            .await;
        attached.map_err(|error| format!("{error:?}"))
    }

    async fn locking(&mut self, entity: &str) -> Receiver {
        self.receiver(entity, PEEK_LOCK).await
    }
}

const PEEK_LOCK: (SenderSettleMode, ReceiverSettleMode) = (SenderSettleMode::Unsettled, ReceiverSettleMode::Second);
const DELETE: (SenderSettleMode, ReceiverSettleMode) = (SenderSettleMode::Settled, ReceiverSettleMode::First);

/// Link names must be unique.
fn rand_name() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

async fn connect(fixture: &BrokerFixture, profile: SaslProfile) -> ConnectionHandle<()> {
    let url = format!("amqp://{}", fixture.address);
    let opened = Connection::builder().container_id("fe2o3").sasl_profile(profile).open(&url[..]);
    timeout(SOON, opened).await.expect("an answer").expect("a connection")
}

fn text(body: &str, session: Option<&str>) -> Message<Data> {
    let properties = Properties::builder().message_id(body.to_owned()).group_id(session.map(str::to_owned)).build();
    Message::builder().properties(properties).data(Binary::from(body.as_bytes().to_vec())).build()
}

async fn send(sender: &mut Sender, message: Message<Data>) {
    let outcome = timeout(SOON, sender.send(message)).await.expect("an answer").expect("a send");
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
}

async fn receive(receiver: &mut Receiver) -> Delivery<Data> {
    timeout(SOON, receiver.recv::<Data>()).await.expect("a delivery").expect("a good one")
}

fn body(delivery: &Delivery<Data>) -> String {
    String::from_utf8_lossy(&delivery.body().0).into_owned()
}

fn delivery_count(delivery: &Delivery<Data>) -> u32 {
    delivery.message().header.as_ref().map_or(0, |header| header.delivery_count)
}

#[tokio::test]
async fn it_connects_by_every_mechanism_it_knows() {
    let fixture = BrokerFixture::start().await;
    let plain = SaslProfile::Plain { username: "any".into(), password: "any".into() };
    for profile in [SaslProfile::Anonymous, plain] {
        let mut connection = connect(&fixture, profile).await;
        let mut session = Session::begin(&mut connection).await.expect("an AMQP session");
        session.end().await.expect("an end");
        connection.close().await.expect("a close");
    }
}

#[tokio::test]
async fn it_sends_singles_and_batches_and_receives_in_both_modes() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("plain").await;
    send(&mut sender, text("one", None)).await;
    let inner = |id: &str| {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .properties(&Ours { message_id: Some(id.into()), ..Ours::default() })
            .data(id.as_bytes());
        Data(Binary::from(buffer.to_vec()))
    };
    let envelope = Message::builder().data_batch(vec![inner("two"), inner("three")]).build();
    let batch = Sendable::builder().message(envelope).message_format(BATCH_FORMAT).build();
    let outcome = sender.send(batch).await.expect("a batch");
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
    // Receive and delete: removed on delivery.
    let mut deleting = bus.receiver("plain", DELETE).await;
    let bodies = [receive(&mut deleting).await, receive(&mut deleting).await, receive(&mut deleting).await];
    assert_eq!(bodies.each_ref().map(body), ["one", "two", "three"]);
    deleting.close().await.expect("a close");
    // Peek-lock: removed when accepted, not before.
    send(&mut sender, text("four", None)).await;
    let mut locking = bus.locking("plain").await;
    let four = receive(&mut locking).await;
    assert_eq!((body(&four).as_str(), four.delivery_tag().len()), ("four", 16));
    locking.accept(&four).await.expect("a settlement");
    locking.close().await.expect("a close");
    let mut locking = bus.locking("plain").await;
    assert!(timeout(Duration::from_millis(300), locking.recv::<Data>()).await.is_err(), "nothing is left");
}

#[tokio::test]
async fn every_outcome_means_what_service_bus_means_by_it() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("plain").await;
    let mut receiver = bus.locking("plain").await;
    send(&mut sender, text("a", None)).await;
    // Released: redelivered with the same delivery count.
    let delivery = receive(&mut receiver).await;
    receiver.release(&delivery).await.expect("a settlement");
    let delivery = receive(&mut receiver).await;
    assert_eq!(delivery_count(&delivery), 0);
    // Modified: abandoned, with a higher count and changed properties.
    let changed = Fields::from_iter([(Symbol::from("why"), Value::String("not today".into()))]);
    let modified =
        Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: Some(changed) };
    receiver.modify(&delivery, modified).await.expect("a settlement");
    let delivery = receive(&mut receiver).await;
    assert_eq!(delivery_count(&delivery), 1);
    let properties = delivery.message().application_properties.as_ref().expect("properties");
    assert_eq!(properties.0.get("why"), Some(&SimpleValue::String("not today".into())));
    // Rejected: dead-lettered, with the reason.
    let error = definitions::Error::new(
        definitions::ErrorCondition::Custom(Symbol::from("com.microsoft:dead-letter")),
        Some("bad".into()),
        Some(Fields::from_iter([(Symbol::from("DeadLetterReason"), Value::String("poison".into()))])),
    );
    receiver.reject(&delivery, error).await.expect("a settlement");
    let mut dead = bus.locking("plain/$DeadLetterQueue").await;
    let delivery = receive(&mut dead).await;
    let properties = delivery.message().application_properties.as_ref().expect("properties");
    assert_eq!(properties.0.get("DeadLetterReason"), Some(&SimpleValue::String("poison".into())));
    dead.accept(&delivery).await.expect("a settlement");
}

#[tokio::test]
async fn a_send_that_is_refused_says_why() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("orders").await;
    let outcome = sender.send(text("no session", None)).await.expect("an outcome");
    let Outcome::Rejected(rejected) = &outcome else { panic!("{outcome:?}") };
    assert!(format!("{rejected:?}").contains("NotAllowed"), "{rejected:?}");
    let nobody = Sender::attach(&mut bus.session, "to-nobody", "nobody").await;
    assert!(format!("{:?}", nobody.err()).contains("NotFound"), "an entity that is not there");
}

fn session_source(filter: Value) -> Source {
    Source::builder().address("orders").filter(OrderedMap::from_iter([(Symbol::from(SESSION_FILTER), filter)])).build()
}

fn granted(receiver: &Receiver) -> Option<&Value> {
    receiver.source().as_ref()?.filter.as_ref()?.get(&Symbol::from(SESSION_FILTER))
}

#[tokio::test]
async fn a_session_is_accepted_by_name_and_has_one_holder() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("orders").await;
    for body in ["a1", "a2", "b1"] {
        send(&mut sender, text(body, Some(&body[..1]))).await;
    }
    // By name, plain.
    let mut a = bus.receiver_of(session_source(Value::String("a".into())), PEEK_LOCK).await.expect("session a");
    assert_eq!(granted(&a), Some(&Value::String("a".into())));
    let until =
        a.properties(Clone::clone).and_then(|map| map.get(&Symbol::from("com.microsoft:locked-until-utc")).cloned());
    assert!(matches!(until, Some(Value::Long(1..))), "{until:?}");
    let first = receive(&mut a).await;
    assert_eq!(body(&first), "a1");
    // The session is locked: nobody else gets it.
    let refused = bus.receiver_of(session_source(Value::String("a".into())), PEEK_LOCK).await.expect_err("it is held");
    assert!(refused.contains("session-cannot-be-locked"), "{refused}");
}

/// The filter as the service's own clients write it: described.
fn described(session: &str) -> Value {
    let descriptor = Descriptor::Name(Symbol::from(SESSION_FILTER));
    Value::Described(Box::new(Described { descriptor, value: Value::String(session.into()) }))
}

#[tokio::test]
async fn the_next_session_is_had_in_order_and_let_go_and_had_again() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("orders").await;
    for body in ["a1", "a2", "a3"] {
        send(&mut sender, text(body, Some("a"))).await;
    }
    let mut next = bus.receiver_of(session_source(Value::Null), PEEK_LOCK).await.expect("the next session");
    assert_eq!(granted(&next), Some(&Value::String("a".into())));
    let first = receive(&mut next).await;
    assert_eq!((body(&first).as_str(), body(&receive(&mut next).await).as_str()), ("a1", "a2"));
    next.accept(&first).await.expect("a settlement");
    next.close().await.expect("a close");
    // Unsettled messages are redelivered first, with the same count.
    let mut again = bus.receiver_of(session_source(described("a")), PEEK_LOCK).await.expect("session a again");
    let second = receive(&mut again).await;
    assert_eq!((body(&second).as_str(), delivery_count(&second)), ("a2", 0));
    again.close().await.expect("a close");
}

#[tokio::test]
async fn a_session_that_does_not_come_is_waited_for_as_long_as_asked() {
    let mut bus = Bus::start().await;
    let none = bus.receiver_of(session_source(Value::Null), PEEK_LOCK).await.expect_err("there is none");
    assert!(none.contains("com.microsoft:timeout"), "{none}");
}

#[tokio::test]
async fn a_duplicate_is_stored_once_with_duplicate_detection() {
    let mut bus = Bus::start().await;
    bus.fixture.queue("once", "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>").await;
    let mut sender = bus.sender("once").await;
    for body in ["x", "x", "y"] {
        send(&mut sender, text(body, None)).await;
    }
    let mut receiver = bus.locking("once").await;
    assert_eq!([body(&receive(&mut receiver).await), body(&receive(&mut receiver).await)], ["x", "y"]);
}

/// Requests to a node, and their responses.
struct Node {
    requests: Sender,
    answers: Receiver,
    asked: u64,
}

impl Node {
    async fn at(bus: &mut Bus, address: &str) -> Self {
        let requests = bus.sender(address).await;
        let answers = bus.receiver(address, DELETE).await;
        Self { requests, answers, asked: 0 }
    }

    async fn ask(&mut self, properties: &[(&str, &str)], body: Value) -> (i32, Value) {
        self.asked += 1;
        let properties =
            properties.iter().map(|(name, value)| ((*name).to_owned(), SimpleValue::String((*value).into())));
        let message = Message::builder()
            .properties(Properties::builder().message_id(self.asked).build())
            .application_properties(ApplicationProperties(properties.collect()))
            .value(body)
            .build();
        let outcome = timeout(SOON, self.requests.send(message)).await.expect("an answer").expect("a request");
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
        let answer = timeout(SOON, self.answers.recv::<Body<Value>>()).await.expect("a response").expect("a good one");
        let correlation = answer.message().properties.as_ref().and_then(|properties| properties.correlation_id.clone());
        assert_eq!(correlation, Some(self.asked.into()), "of the same type as the message id");
        let properties = answer.message().application_properties.as_ref().expect("a status");
        let status = ["statusCode", "status-code"].iter().find_map(|name| match properties.0.get(*name) {
            Some(SimpleValue::Int(status)) => Some(*status),
            _ => None,
        });
        let body = answer.body().try_as_value().cloned().unwrap_or(Value::Null);
        (status.expect("a status of type int"), body)
    }

    async fn operation(&mut self, name: &str, fields: &[(&str, Value)]) -> (i32, Value) {
        let map: OrderedMap<Value, Value> =
            fields.iter().map(|(name, value)| (Value::String((*name).to_owned()), value.clone())).collect();
        self.ask(&[("operation", &format!("com.microsoft:{name}"))], Value::Map(map)).await
    }
}

fn field<'a>(body: &'a Value, name: &str) -> &'a Value {
    let Value::Map(map) = body else { panic!("{body:?}") };
    map.get(&Value::String(name.into())).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn tokens_are_put_and_nodes_answer() {
    let mut bus = Bus::start().await;
    let mut tokens = Node::at(&mut bus, "$cbs").await;
    let put = [("operation", "put-token"), ("type", "servicebus.windows.net:sastoken"), ("name", "sb://here/plain")];
    assert_eq!(tokens.ask(&put, Value::String("SharedAccessSignature sr=x".into())).await.0, 202);
    assert_eq!(tokens.ask(&[("operation", "brew-coffee")], Value::Null).await.0, 400);

    let mut plain = bus.sender("plain").await;
    for body in ["a", "b", "c"] {
        send(&mut plain, text(body, None)).await;
    }
    let mut management = Node::at(&mut bus, "plain/$management").await;
    let peek = [("from-sequence-number", Value::Long(0)), ("message-count", Value::Int(10))];
    let (status, body) = management.operation("peek-message", &peek).await;
    let Value::List(messages) = field(&body, "messages") else { panic!("{body:?}") };
    assert_eq!((status, messages.len()), (200, 3));
    assert_eq!(management.operation("make-coffee", &[]).await.0, 501);
    assert_eq!(management.operation("peek-message", &[]).await.0, 400);
}

#[tokio::test]
async fn a_session_is_renewed_and_keeps_its_state() {
    let mut bus = Bus::start().await;
    let mut sender = bus.sender("orders").await;
    send(&mut sender, text("a1", Some("a"))).await;
    let _held = bus.receiver_of(session_source(Value::String("a".into())), PEEK_LOCK).await.expect("session a");
    let mut management = Node::at(&mut bus, "orders/$management").await;
    let session = || ("session-id", Value::String("a".into()));
    let (status, renewed) = management.operation("renew-session-lock", &[session()]).await;
    assert_eq!(status, 200);
    assert!(matches!(field(&renewed, "expiration"), Value::Timestamp(_)), "{renewed:?}");
    let state = Value::Binary(Binary::from(b"half way".to_vec()));
    assert_eq!(management.operation("set-session-state", &[session(), ("session-state", state.clone())]).await.0, 200);
    let (status, found) = management.operation("get-session-state", &[session()]).await;
    assert_eq!((status, field(&found, "session-state")), (200, &state));
    let everything = [
        ("last-updated-time", Value::Timestamp(253_402_300_800_000.into())),
        ("skip", Value::Int(0)),
        ("top", Value::Int(10)),
    ];
    let (status, listed) = management.operation("get-message-sessions", &everything).await;
    assert_eq!(status, 200, "{listed:?}");
    // A lock that is not held cannot be renewed.
    let other = [("session-id", Value::String("b".into()))];
    assert_eq!(management.operation("renew-session-lock", &other).await.0, 410);
    drop(bus.fixture);
}
