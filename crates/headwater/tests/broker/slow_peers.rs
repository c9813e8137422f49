//! Slow peers: closed after a timeout.

use std::time::{Duration, Instant};

use amqp::codec::RawValue;
use amqp::message::{MessageWriter, Properties};
use amqp::performative::{Performative, SenderSettleMode};
use amqp::{Attach, Map, Source, Target, Value};
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, ServiceTier, StorageLocation, Timeouts};
use bytes::BytesMut;
use servicebus::{Client, Message};
use testkit::wait::wait_for;

use crate::fixture::{BYSTANDERS_QUEUE, BrokerFixture, Bystander, SOON};
use crate::raw_peer::{self, RawPeer, attach, begin, credit, message, transfer};

/// Half a megabyte: a hundred of them would show in the memory use.
const LARGE: usize = 512 << 10;

async fn fill(fixture: &BrokerFixture, queue: &str, messages: usize) {
    fixture.queue(queue, "").await;
    let sender = fixture.client().sender(queue);
    for _ in 0..messages {
        sender.send_message(&Message::new(vec![7; LARGE])).await.expect("a send");
    }
}

async fn broker_with(timeouts: Timeouts, name: &str, queue: QueueDescription) -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    config.timeouts = timeouts;
    config.set_tier(ServiceTier::Premium);
    config.entities = vec![(name.into(), EntityDefinition::Queue(queue))];
    Broker::start(config).await.expect("a broker")
}

/// A broker with short timeouts.
async fn broker_with_short_timeouts(queue: &str) -> Broker {
    let timeouts = Timeouts {
        first_bytes: Duration::from_secs(1),
        handshake: Duration::from_secs(2),
        idle: Duration::from_secs(3),
        write: Duration::from_secs(1),
    };
    broker_with(timeouts, queue, QueueDescription::default()).await
}

fn client(broker: &Broker) -> Client {
    Client::new(&broker.connection_string(), servicebus::Config::default()).expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_never_finish_the_handshake_are_closed() {
    let broker = broker_with_short_timeouts(BYSTANDERS_QUEUE).await;
    let bystander = Bystander::of(client(&broker));
    let begun = Instant::now();
    // In the first bytes, in AMQP's header, in the open frame, after the header of SASL, and in a request's head.
    let beginnings: [&[u8]; 6] =
        [b"", b"AMQ", b"AMQP\0\x01", b"AMQP\0\x01\0\0\0\0\0\x40\x02", b"AMQP\x03\x01\0\0", b"GET /hea"];
    let mut peers = Vec::new();
    for beginning in beginnings {
        for _ in 0..30 {
            let mut peer = RawPeer::connect(broker.address()).await;
            peer.write(beginning).await;
            peers.push(peer);
        }
    }
    for peer in &mut peers {
        peer.wait_closed().await;
    }
    println!("180 dawdlers gone after {:?}", begun.elapsed());
    bystander.assert_unaffected("180 dawdlers").await;
    broker.stop().await;
}

#[tokio::test]
async fn an_idle_peer_is_closed() {
    let broker = broker_with_short_timeouts("plain").await;
    // Silent, or silent inside a frame: single bytes do not count as a frame.
    let mut silent = RawPeer::begun(broker.address()).await;
    let mut halting = RawPeer::sending(broker.address(), "plain").await;
    let mut frame = BytesMut::new();
    raw_peer::write_performative(&mut frame, 0, &transfer(0, 0, false), &message(1_000));
    let begun = Instant::now();
    for byte in frame.iter() {
        halting.write(&[*byte]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        if begun.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    assert_eq!(halting.close_error().await, Some(("close", "amqp:resource-limit-exceeded".into())));
    assert_eq!(silent.close_error().await, Some(("close", "amqp:resource-limit-exceeded".into())));
    broker.stop().await;
}

#[tokio::test]
async fn the_session_of_a_peer_that_stops_reading_is_released() {
    // GIVEN a session with more messages than socket buffers hold
    let timeouts = Timeouts { write: Duration::from_secs(1), ..Timeouts::default() };
    let mut sessions = QueueDescription::default();
    sessions.egress.requires_session = true;
    let broker = broker_with(timeouts, "orders", sessions).await;
    let client = client(&broker);
    let sender = client.sender("orders");
    for _ in 0..40 {
        sender.send_message(&Message::new(vec![7; LARGE]).with_session("s")).await.expect("a send");
    }
    // WHEN a peer accepts it, grants much credit, and does not read
    let mut source = Source::at("orders");
    source.filter.get_or_insert_default().set("com.microsoft:session-filter", RawValue::string("s"));
    let mut deaf = RawPeer::begun(broker.address()).await;
    deaf.frame(0, &attach(Attach::receiver("r", source, Target::at("me")))).await;
    deaf.until(|frame| matches!(frame, Performative::Attach(_))).await;
    deaf.frame(0, &credit(0, 1_000, u32::MAX / 4)).await;
    // THEN it is closed, and another receiver gets everything, long before the lock expires. (Without sessions, locks belong to the
    // messages: they outlive the link, as in the service.)
    let mut receiver = wait_for("the session", Duration::from_secs(20), async || {
        client.accept_session("orders", "s").await.map_err(|error| error.kind())
    })
    .await;
    let mut count = 0;
    while count < 40 {
        let messages = receiver.receive(10, SOON).await.expect("a receive");
        assert!(!messages.is_empty(), "only {count} came");
        count += messages.len();
        receiver.settler().complete(&messages).await.expect("a settlement");
    }
    drop(deaf);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_uses_little_memory() {
    // GIVEN a hundred and fifty megabytes of messages on disk
    let fixture = BrokerFixture::start().await;
    fill(&fixture, "large", 300).await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // WHEN peers grant maximum credit and read nothing; one of them uses receive-and-delete
    let mut deaf = Vec::new();
    for mode in [SenderSettleMode::Settled, SenderSettleMode::Unsettled, SenderSettleMode::Unsettled] {
        let mut peer = RawPeer::begun(fixture.address).await;
        let receiver = Attach { snd_settle_mode: mode, ..Attach::receiver("r", Source::at("large"), Target::at("me")) };
        peer.frame(0, &attach(receiver)).await;
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        peer.frame(0, &credit(0, i32::MAX as u32, u32::MAX / 4)).await;
        deaf.push(peer);
    }
    // AND one reads, but never opens its session window
    let mut shut = RawPeer::opened(fixture.address).await;
    shut.frame(0, &begin(0)).await;
    shut.frame(0, &attach(Attach::receiver("r", Source::at("large"), Target::at("me")))).await;
    for _ in 0..200 {
        shut.frame(0, &credit(0, i32::MAX as u32, 0)).await;
    }
    // THEN a client that reads still gets nearly all messages
    let mut receiver = fixture.client().receiver("large");
    let mut count = 0;
    loop {
        let messages = receiver.receive(20, Duration::from_secs(2)).await.expect("a receive");
        if messages.is_empty() {
            break;
        }
        count += messages.len();
        receiver.settler().expect("it received").complete(&messages).await.expect("a settlement");
    }
    let (_, peak) = fixture.memory();
    println!("deaf readers: {count} of 300 left for others; {before} MiB before, {peak} at most");
    assert!(count >= 150, "only {count} left for others");
    assert!(peak < before + 80, "{before} MiB before, {peak} at most");
    bystander.assert_served(&fixture, "deaf readers").await;
    drop((deaf, shut));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_links_use_bounded_memory() {
    // GIVEN two hundred megabytes of messages on disk
    let fixture = BrokerFixture::start().await;
    fill(&fixture, "large", 400).await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // WHEN peers with two hundred links each grant maximum credit on every link, and stop reading
    let mut peers = Vec::new();
    for _ in 0..10 {
        let mut peer = RawPeer::begun(fixture.address).await;
        for handle in 0..200 {
            let receiver = Attach::receiver(format!("r{handle}"), Source::at("large"), Target::at("me"));
            peer.frame(0, &attach(Attach { handle, ..receiver })).await;
        }
        for _ in 0..200 {
            peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        }
        let mut credits = BytesMut::new();
        (0..200).for_each(|handle| {
            raw_peer::write_performative(&mut credits, 0, &credit(handle, i32::MAX as u32, u32::MAX / 4), b"")
        });
        peer.write(&credits).await;
        peers.push(peer);
    }
    // THEN they get only a part of it, and one bound holds for all of them
    let mut others = fixture.client().receiver("large");
    let left = others.receive(1, SOON).await.expect("a receive");
    assert_eq!(left.len(), 1, "nothing was left for others");
    let (_, peak) = fixture.memory();
    println!("2,000 deaf links: {before} MiB before, {peak} at most");
    assert!(peak < before + 120, "{before} MiB before, {peak} at most");
    bystander.assert_served(&fixture, "2,000 deaf links").await;
    drop(peers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfetched_responses_do_not_pile_up() {
    // GIVEN a queue whose every peek is half a megabyte
    let fixture = BrokerFixture::start().await;
    fill(&fixture, "large", 4).await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // WHEN peers send many requests and give no credit for the responses
    let node = "large/$management";
    let mut request = BytesMut::new();
    let body = Map::new().with("from-sequence-number", 0i64).with("message-count", 100i32);
    MessageWriter::new(&mut request)
        .properties(&Properties { message_id: Some("1".into()), reply_to: Some("me"), ..Properties::default() })
        .application_properties(|map| {
            amqp::codec::encode::string(map.string("operation"), "com.microsoft:peek-message")
        })
        .value(&Value::Map(body));
    let mut requests = BytesMut::new();
    for id in 0..90 {
        raw_peer::write_performative(&mut requests, 0, &transfer(0, id, false), &request);
    }
    for _ in 0..10 {
        let mut peer = RawPeer::sending(fixture.address, node).await;
        peer.frame(0, &attach(Attach { handle: 1, ..Attach::receiver("hear", Source::at(node), Target::at("me")) }))
            .await;
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        peer.write(&requests).await;
        // THEN the response link is detached
        assert_eq!(peer.close_error().await, Some(("detach", "amqp:resource-limit-exceeded".into())));
    }
    let (_, peak) = fixture.memory();
    println!("unfetched answers: {before} MiB before, {peak} at most");
    assert!(peak < before + 80, "{before} MiB before, {peak} at most");
    bystander.assert_served(&fixture, "unfetched answers").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_messages_share_one_bound() {
    let fixture = BrokerFixture::start().await;
    fixture.queue("plain", "").await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // WHEN two hundred peers each send most of a megabyte, and then wait
    let part = vec![0; 60_000];
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut peer = RawPeer::sending(fixture.address, "plain").await;
        let mut bytes = BytesMut::new();
        for _ in 0..16 {
            raw_peer::write_performative(&mut bytes, 0, &transfer(0, 0, true), &part);
        }
        peer.write(&bytes).await;
        peers.push(peer);
    }
    let client = fixture.client();
    let sender = client.sender("plain");
    sender.send_message(&Message::new(vec![7; 40_000])).await.expect("a message of one frame is not concerned");
    let (_, peak) = fixture.memory();
    println!("unfinished messages: 183 MiB sent, {before} MiB before, {peak} at most");
    assert!(peak < before + 140, "{before} MiB before, {peak} at most");
    bystander.assert_served(&fixture, "unfinished messages").await;
}
