//! Injected faults, over HTTP and through the library, as a client sees them.

use std::time::{Duration, Instant};

use amqp::performative::Performative;
use broker::http::{FaultKind, FaultSpec, TestCommand};
use broker::{Broker, StorageLocation};
use bytes::BytesMut;
use servicebus::{BusErrorKind, Client, Message, ReceivedMessage};

use crate::fixture::{BrokerFixture, SOON, TOKEN};
use crate::raw_peer::{RawPeer, credit, message, transfer, write_performative};

const SESSIONS: &str = "<RequiresSession>true</RequiresSession>";

async fn fixture() -> BrokerFixture {
    let fixture = BrokerFixture::with(&["--test-token", TOKEN]).await;
    fixture.queue("plain", "").await;
    fixture.queue("orders", SESSIONS).await;
    fixture
}

async fn send(client: &Client, body: &'static str) -> Result<(), BusErrorKind> {
    client.sender("plain").send_message(&Message::new(body)).await.map_err(|error| error.kind())
}

/// Receives and completes everything in the queue.
async fn receive_all(client: &Client) -> Vec<String> {
    let mut receiver = client.receiver("plain");
    let mut bodies = Vec::new();
    loop {
        let messages = receiver.receive(100, Duration::from_millis(300)).await.expect("a receive");
        if messages.is_empty() {
            return bodies;
        }
        bodies.extend(messages.iter().map(|message| String::from_utf8_lossy(&message.body()).into_owned()));
        receiver.settler().expect("it received").complete(&messages).await.expect("a settlement");
    }
}

#[tokio::test]
async fn without_the_token_there_are_no_hooks() {
    let (guarded, plain) = (fixture().await, BrokerFixture::start().await);
    let clock = br#"{"advance_ms": 1000}"#;
    let right = format!("x-headwater-test-token: {TOKEN}\r\n");
    for answer in [
        guarded.http("POST", "/$test/clock", "", clock).await,
        guarded.http("POST", "/$test/clock", "x-headwater-test-token: open sesamE\r\n", clock).await,
        guarded.http("GET", "/$test/state", "x-headwater-test-token: \r\n", b"").await,
        plain.http("POST", "/$test/clock", &right, clock).await,
    ] {
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    assert!(guarded.test("POST", "clock", r#"{"advance_ms": 1000}"#).await.starts_with("HTTP/1.1 200"));
    assert!(guarded.test("POST", "faults", r#"{"kind": "meteor"}"#).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn the_clock_can_be_advanced() {
    let fixture = fixture().await;
    let client = fixture.client();
    send(&client, "a").await.expect("a send");
    let mut receiver = client.receiver("plain");
    let first = receiver.receive(1, SOON).await.expect("a receive");
    fixture.test("POST", "clock", r#"{"advance_ms": 61000}"#).await;
    let again = receiver.receive(1, SOON).await.expect("a receive");
    let counts =
        [first, again].map(|messages| messages.iter().map(ReceivedMessage::delivery_count).collect::<Vec<_>>());
    assert_eq!(counts, [vec![0], vec![1]], "the lock ended a minute early");
}

#[tokio::test]
async fn a_send_can_be_refused_as_busy() {
    let fixture = fixture().await;
    let client = fixture.client();
    fixture.arm(r#"{"kind": "server_busy", "entity": "plain", "times": 2}"#).await;
    let outcomes = [send(&client, "a").await, send(&client, "b").await, send(&client, "c").await];
    assert_eq!(outcomes, [Err(BusErrorKind::Busy), Err(BusErrorKind::Busy), Ok(())]);
    assert_eq!(receive_all(&client).await, ["c"], "nothing that was refused was stored");
}

#[tokio::test]
async fn an_acknowledged_message_can_be_lost() {
    let fixture = fixture().await;
    let client = fixture.client();
    fixture.arm(r#"{"kind": "lose_messages", "entity": "plain", "skip": 1}"#).await;
    for body in ["a", "lost", "b"] {
        send(&client, body).await.expect("an acknowledgement");
    }
    assert_eq!(receive_all(&client).await, ["a", "b"]);
}

#[tokio::test]
async fn a_connection_can_be_dropped_before_a_send_is_stored() {
    let fixture = fixture().await;
    let client = fixture.client();
    send(&client, "a").await.expect("a send");
    fixture.arm(r#"{"kind": "drop_connection", "entity": "plain"}"#).await;
    assert_eq!(send(&client, "lost").await, Err(BusErrorKind::ConnectionLost));
    send(&client, "b").await.expect("a send on a new connection");
    assert_eq!(receive_all(&client).await, ["a", "b"]);
}

#[tokio::test]
async fn a_send_can_be_stored_and_its_acknowledgement_lost() {
    let fixture = fixture().await;
    let client = fixture.client();
    fixture.arm(r#"{"kind": "lose_acknowledgement", "entity": "plain"}"#).await;
    assert_eq!(send(&client, "kept").await, Err(BusErrorKind::ConnectionLost));
    assert_eq!(receive_all(&client).await, ["kept"]);
}

#[tokio::test]
async fn a_link_can_be_detached_by_force() {
    let fixture = fixture().await;
    let client = fixture.client();
    let sender = client.sender("plain");
    sender.send_message(&Message::new("a")).await.expect("a send");
    fixture.arm(r#"{"kind": "detach_link", "entity": "plain"}"#).await;
    let error = sender.send_message(&Message::new("b")).await.expect_err("the link goes");
    assert_eq!((error.kind(), error.condition()), (BusErrorKind::Detached, Some("amqp:link:detach-forced")));
    sender.send_message(&Message::new("c")).await.expect("a send on a new link of the same connection");
    assert_eq!(receive_all(&client).await, ["a", "c"]);
}

#[tokio::test]
async fn a_link_can_be_detached_with_any_condition() {
    let fixture = fixture().await;
    let client = fixture.client();
    let sender = client.sender("plain");
    let fault = r#"{"kind": "detach_link", "entity": "plain", "condition": "amqp:not-allowed", "description": "bad transfer", "skip": 2}"#;
    fixture.arm(fault).await;
    for body in ["a", "b"] {
        sender.send_message(&Message::new(body)).await.expect("a send before the fault");
    }
    let error = sender.send_message(&Message::new("c")).await.expect_err("the link goes");
    assert_eq!(error.condition(), Some("amqp:not-allowed"), "{error}");
    assert!(format!("{error:?}").contains("bad transfer"), "{error:?}");
    assert_eq!(receive_all(&client).await, ["a", "b"]);
}

#[tokio::test]
async fn transfers_behind_an_injected_detach_are_discarded() {
    let fixture = fixture().await;
    fixture.arm(r#"{"kind": "detach_link", "entity": "plain", "at": "send", "skip": 10}"#).await;
    let mut peer = RawPeer::sending(fixture.address, "plain").await;
    let mut sends = BytesMut::new();
    (0..50).for_each(|id| write_performative(&mut sends, 0, &transfer(0, id, false), &message(10)));
    peer.write(&sends).await;
    let mut accepted = 0;
    let error = loop {
        match peer.next().await.expect("the connection stays") {
            Performative::Disposition(accepts) => accepted += accepts.last.unwrap_or(accepts.first) - accepts.first + 1,
            Performative::Detach(detach) => break detach.error.expect("an error"),
            _ => {}
        }
    };
    assert_eq!((accepted, error.condition.as_str()), (10, "amqp:link:detach-forced"));
    assert_eq!(receive_all(&fixture.client()).await.len(), 10, "nothing behind the fault was stored");
}

#[tokio::test]
async fn a_link_can_be_detached_after_a_send_is_stored() {
    let fixture = fixture().await;
    let client = fixture.client();
    fixture.arm(r#"{"kind": "detach_link", "entity": "plain", "when": "after"}"#).await;
    assert_eq!(send(&client, "kept").await, Err(BusErrorKind::Detached));
    assert_eq!(receive_all(&client).await, ["kept"]);
}

#[tokio::test]
async fn a_link_can_be_detached_before_or_after_a_delivery() {
    let fixture = fixture().await;
    let client = fixture.client();
    send(&client, "a").await.expect("a send");
    for (when, deliveries) in [("before", 0), ("after", 1)] {
        let fault =
            format!(r#"{{"kind": "detach_link", "at": "delivery", "when": "{when}", "condition": "x:{when}"}}"#);
        fixture.arm(&fault).await;
        let mut peer = RawPeer::receiving(fixture.address, "plain").await;
        peer.frame(0, &credit(0, 5, 1_000)).await;
        let mut delivered = 0;
        let error = loop {
            match peer.next().await.expect("the connection stays") {
                Performative::Transfer(_) => delivered += 1,
                Performative::Detach(detach) => break detach.error.expect("an error"),
                _ => {}
            }
        };
        assert_eq!((delivered, error.condition.as_str()), (deliveries, format!("x:{when}").as_str()));
        // The lock outlives its link.
        fixture.test("POST", "clock", r#"{"advance_ms": 61000}"#).await;
    }
    assert_eq!(receive_all(&client).await, ["a"]);
}

#[tokio::test]
async fn a_connection_can_be_closed_with_any_condition() {
    let fixture = fixture().await;
    let client = fixture.client();
    let fault = r#"{"kind": "close_connection", "entity": "plain", "condition": "amqp:unauthorized-access", "skip": 1, "when": "after"}"#;
    fixture.arm(fault).await;
    let mut peer = RawPeer::sending(fixture.address, "plain").await;
    let mut sends = BytesMut::new();
    (0..5).for_each(|id| write_performative(&mut sends, 0, &transfer(0, id, false), &message(10)));
    peer.write(&sends).await;
    assert_eq!(peer.close_error().await, Some(("close", "amqp:unauthorized-access".to_owned())));
    assert_eq!(receive_all(&client).await.len(), 2, "one acknowledged, one stored without");
}

#[tokio::test]
async fn a_session_lock_can_be_expired() {
    let fixture = fixture().await;
    let client = fixture.client();
    let sender = client.sender("orders");
    sender.send_message(&Message::new("a").with_session("s")).await.expect("a send");
    let mut session = client.accept_session("orders", "s").await.expect("the session");
    let held = session.receive(1, SOON).await.expect("a receive");
    fixture.arm(r#"{"kind": "expire_session_lock", "entity": "orders", "session": "s"}"#).await;
    let error = session.settler().complete(&held).await.expect_err("the lock is lost");
    assert_eq!(error.kind(), BusErrorKind::SessionLockLost, "{error:?}");
    // Another receiver can accept it at once, and sees a failed delivery.
    let mut next = client.accept_session("orders", "s").await.expect("the session again");
    let again = next.receive(1, SOON).await.expect("a receive");
    assert_eq!(again[0].delivery_count(), 1);
}

#[tokio::test]
async fn a_reply_can_be_delayed() {
    let fixture = fixture().await;
    let client = fixture.client();
    send(&client, "a").await.expect("a send");
    fixture.arm(r#"{"kind": "delay", "ms": 700, "entity": "plain"}"#).await;
    let begun = Instant::now();
    send(&client, "b").await.expect("a send, later");
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    assert_eq!(receive_all(&client).await, ["a", "b"]);
}

#[tokio::test]
async fn faults_are_injected_by_seed() {
    let fixture = fixture().await;
    let client = fixture.client();
    let mut histories = Vec::new();
    for seed in [7, 7, 8] {
        fixture.test("DELETE", "faults", "").await;
        fixture.arm(&format!(r#"{{"kind": "server_busy", "one_in": 3, "times": 1000, "seed": {seed}}}"#)).await;
        let mut history = Vec::new();
        for _ in 0..40 {
            history.push(send(&client, "a").await.is_ok());
        }
        histories.push(history);
    }
    assert_eq!(histories[0], histories[1]);
    assert_ne!(histories[0], histories[2]);
    assert!(histories[0].contains(&true) && histories[0].contains(&false));
}

#[tokio::test]
async fn the_library_arms_the_same_faults() {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    config.entities = vec![("plain".into(), broker::core::EntityDefinition::Queue(Default::default()))];
    let broker = Broker::start(config).await.expect("a broker");
    let client = Client::new(&broker.connection_string(), servicebus::Config::default()).expect("a client");
    let busy = FaultSpec { skip: 1, ..FaultSpec::new(FaultKind::ServerBusy) };
    let armed = broker.test(TestCommand::Arm(busy)).await.expect("it is armed");
    assert_eq!((armed.armed.len(), armed.injected), (1, 0));
    let outcomes = [send(&client, "a").await, send(&client, "b").await, send(&client, "c").await];
    assert_eq!(outcomes, [Ok(()), Err(BusErrorKind::Busy), Ok(())]);
    let before = broker.test(TestCommand::Report).await.expect("a report");
    let moved = broker.test(TestCommand::AdvanceClock { ms: 60_000 }).await.expect("the clock moves");
    assert_eq!((before.injected, before.armed.len()), (1, 0));
    assert!(moved.now_ms >= before.now_ms + 60_000);
    broker.stop().await;
}
