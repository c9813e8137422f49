//! Limits of connections, AMQP sessions and links.

use std::time::{Duration, Instant};

use amqp::performative::Performative;
use amqp::{Attach, Source, Target};
use bytes::BytesMut;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::broker_process::{certificates, request_over_tls};
use crate::fixture::{BrokerFixture, Bystander, request};
use crate::raw_peer::{self, RawPeer, attach, begin};

/// The test's end of each connection needs a file descriptor too.
fn raise_open_file_limit() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to the hard limit is allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_idle_connections_cost_little() {
    // GIVEN a broker that starts with the usual limit of open files
    raise_open_file_limit();
    let fixture = BrokerFixture::start().await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    let begun = Instant::now();
    // WHEN five thousand connect and open
    let peers = crowd(&fixture).await;
    // THEN each is served, and another beside them
    let (after, peak) = fixture.memory();
    println!("5,000 idle connections in {:?}: {before} MiB before, {after} after, {peak} at most", begun.elapsed());
    assert!(peak < before + 60, "{before} MiB before, {peak} at most");
    fixture.queue("another", "").await;
    fixture.client().sender("another").send_message(&servicebus::Message::new("x")).await.expect("a send");
    bystander.assert_served(&fixture, "5,000 idle connections").await;
    // AND when they close, others can connect. The allocator keeps freed pages, so the proof that
    // nothing leaks is that further rounds use no more memory.
    drop(peers);
    for _ in 0..2 {
        drop(crowd(&fixture).await);
    }
    let (_, most) = fixture.memory();
    println!("two more crowds: {most} MiB at most");
    assert!(most < peak + 15, "{peak} MiB with one crowd, {most} after three");
}

/// Every connection was served: the limit is below two rounds of connections.
async fn crowd(fixture: &BrokerFixture) -> Vec<RawPeer> {
    testkit::wait::wait_for("the last crowd has left", Duration::from_secs(30), async || {
        let open = fixture.open_files();
        if open < 1_000 { Ok(()) } else { Err(open) }
    })
    .await;
    let mut peers = Vec::with_capacity(5_000);
    for _ in 0..5_000 {
        peers.push(RawPeer::opened(fixture.address).await);
    }
    for peer in &mut peers {
        peer.until(|frame| matches!(frame, Performative::Open(_))).await;
    }
    peers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_links_per_connection_are_limited() {
    let fixture = BrokerFixture::start().await;
    fixture.queue("plain", "").await;
    let bystander = Bystander::start(&fixture).await;
    let (before, _) = fixture.memory();
    // Five thousand AMQP sessions, and the next is too many.
    let mut crowded = RawPeer::opened(fixture.address).await;
    let mut begins = BytesMut::new();
    for channel in 0..5_000 {
        raw_peer::write_performative(&mut begins, channel, &begin(100), b"");
    }
    crowded.write(&begins).await;
    for _ in 0..5_000 {
        crowded.until(|frame| matches!(frame, Performative::Begin(_))).await;
    }
    crowded.frame(5_000, &begin(100)).await;
    assert_eq!(crowded.close_error().await, Some(("close", "amqp:connection:framing-error".into())));
    // Five thousand links over twenty sessions, and the next is too many.
    let mut linked = RawPeer::opened(fixture.address).await;
    let mut attaches = BytesMut::new();
    for channel in 0..20 {
        raw_peer::write_performative(&mut attaches, channel, &begin(100), b"");
        for handle in 0..250 {
            let receiver = Attach::receiver(format!("r{handle}"), Source::at("plain"), Target::at("me"));
            raw_peer::write_performative(&mut attaches, channel, &attach(Attach { handle, ..receiver }), b"");
        }
    }
    linked.write(&attaches).await;
    for _ in 0..5_000 {
        linked.until(|frame| matches!(frame, Performative::Attach(_))).await;
    }
    let (after, peak) = fixture.memory();
    println!("5,000 AMQP sessions, then 5,000 links: {before} MiB before, {after} after, {peak} at most");
    assert!(peak < before + 80, "{before} MiB before, {peak} at most");
    let one_more = Attach { handle: 250, ..Attach::receiver("more", Source::at("plain"), Target::at("me")) };
    linked.frame(0, &attach(one_more)).await;
    assert_eq!(linked.close_error().await, Some(("end", "amqp:resource-limit-exceeded".into())));
    bystander.assert_served(&fixture, "5,000 sessions and links").await;
}

/// The condition and the text of the close.
async fn refusal_of(mut peer: RawPeer) -> (String, String) {
    peer.until(|frame| matches!(frame, Performative::Open(_))).await;
    loop {
        if let Performative::Close(close) = peer.next().await.expect("a close before the end") {
            let error = close.error.expect("the close has a reason");
            return (error.condition.as_str().to_owned(), error.description.unwrap_or_default().to_string());
        }
    }
}

const LIMIT_TEXT: &str = "the connection limit of 2 is reached: close connections that are not used, or raise the limit with `--max-connections`";

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_with_a_reason() {
    // GIVEN a broker with as many connections as it may have
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let arguments = ["--max-connections", "2", "--tls-cert", &certificate, "--tls-key", &key];
    let fixture = BrokerFixture::with(&arguments).await;
    let mut served = vec![];
    for _ in 0..2 {
        let mut peer = RawPeer::opened(fixture.address).await;
        peer.until(|frame| matches!(frame, Performative::Open(_))).await;
        served.push(peer);
    }
    // WHEN others connect, THEN each learns why it is refused: AMQP, an SDK-like client with SASL, HTTP, with TLS too
    let refused = refusal_of(RawPeer::opened(fixture.address).await).await;
    assert_eq!(refused, ("amqp:resource-limit-exceeded".to_owned(), LIMIT_TEXT.to_owned()));
    let error = fixture.client().sender("q").send_message(&servicebus::Message::new("x")).await.expect_err("refused");
    assert!(format!("{error:?}").contains("connection limit of 2"), "{error:?}");
    let head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let plain = request(fixture.address, "GET", "/health", "", b"").await;
    let secured = request_over_tls(&fixture, &folder.path().join("ca.pem"), head).await;
    for response in [plain, secured] {
        assert!(response.starts_with("HTTP/1.1 503 ") && response.contains(LIMIT_TEXT), "{response}");
    }
    // AND silent peers hold nothing: those that say nothing are closed
    let mut silent = vec![];
    for _ in 0..200 {
        silent.push(RawPeer::connect(fixture.address).await);
    }
    for mut peer in silent {
        assert!(peer.next().await.is_none(), "a silent peer is closed");
    }
    // AND when a connection closes, the next one is served
    drop(served.pop());
    testkit::wait::wait_for("a free place", Duration::from_secs(30), async || {
        let response = request(fixture.address, "GET", "/health", "", b"").await;
        if response.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(response) }
    })
    .await;
}
