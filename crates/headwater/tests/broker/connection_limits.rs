//! Limits of connections, AMQP sessions and links.

use std::time::{Duration, Instant};

use amqp::performative::Performative;
use amqp::{Attach, Source, Target};
use bytes::BytesMut;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::fixture::{BrokerFixture, Bystander};
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
