//! Crowds: as many connections, AMQP sessions and links as are allowed, and one more.

use std::time::{Duration, Instant};

use amqp::performative::Performative;
use amqp::{Attach, Source, Target};
use bytes::BytesMut;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::house::{Bystander, House};
use crate::peer::{self, Peer, attach, begin};

/// Both ends of a connection may be in need of descriptors; this end is ours.
fn make_room() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to the hard limit is allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_idle_connections_cost_little() {
    // GIVEN a broker that starts with the usual limit of open files
    make_room();
    let house = House::start().await;
    let bystander = Bystander::start(&house).await;
    let (before, _) = house.memory();
    let begun = Instant::now();
    // WHEN five thousand connect and open
    let peers = crowd(&house).await;
    // THEN each is served, and another beside them
    let (after, peak) = house.memory();
    println!("5,000 idle connections in {:?}: {before} MiB before, {after} after, {peak} at most", begun.elapsed());
    assert!(peak < before + 60, "{before} MiB before, {peak} at most");
    house.queue("another", "").await;
    house.client().sender("another").send_message(&servicebus::Message::new("x")).await.expect("a send");
    bystander.was_served(&house, "5,000 idle connections").await;
    // AND when they go, others have their place. The allocator keeps the pages of those who left for those who come, so what shows that
    // nothing of them is kept is that more crowds take no more.
    drop(peers);
    for _ in 0..2 {
        drop(crowd(&house).await);
    }
    let (_, most) = house.memory();
    println!("two more crowds: {most} MiB at most");
    assert!(most < peak + 15, "{peak} MiB with one crowd, {most} after three");
}

/// Each was answered, and the broker had room: there are fewer places than two crowds would take.
async fn crowd(house: &House) -> Vec<Peer> {
    testkit::wait::wait_for("the last crowd has left", Duration::from_secs(30), async || {
        let open = house.open_files();
        if open < 1_000 { Ok(()) } else { Err(open) }
    })
    .await;
    let mut peers = Vec::with_capacity(5_000);
    for _ in 0..5_000 {
        peers.push(Peer::opened(house.address).await);
    }
    for peer in &mut peers {
        peer.until(|frame| matches!(frame, Performative::Open(_))).await;
    }
    peers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_may_have_its_sessions_and_links_and_no_more() {
    let house = House::start().await;
    house.queue("plain", "").await;
    let bystander = Bystander::start(&house).await;
    let (before, _) = house.memory();
    // Five thousand AMQP sessions, and the next is too many.
    let mut crowded = Peer::opened(house.address).await;
    let mut begins = BytesMut::new();
    for channel in 0..5_000 {
        peer::put(&mut begins, channel, &begin(100), b"");
    }
    crowded.write(&begins).await;
    for _ in 0..5_000 {
        crowded.until(|frame| matches!(frame, Performative::Begin(_))).await;
    }
    crowded.frame(5_000, &begin(100)).await;
    assert_eq!(crowded.verdict().await, Some(("close", "amqp:connection:framing-error".into())));
    // Five thousand links over twenty sessions, and the next is too many.
    let mut linked = Peer::opened(house.address).await;
    let mut attaches = BytesMut::new();
    for channel in 0..20 {
        peer::put(&mut attaches, channel, &begin(100), b"");
        for handle in 0..250 {
            let receiver = Attach::receiver(format!("r{handle}"), Source::at("plain"), Target::at("me"));
            peer::put(&mut attaches, channel, &attach(Attach { handle, ..receiver }), b"");
        }
    }
    linked.write(&attaches).await;
    for _ in 0..5_000 {
        linked.until(|frame| matches!(frame, Performative::Attach(_))).await;
    }
    let (after, peak) = house.memory();
    println!("5,000 AMQP sessions, then 5,000 links: {before} MiB before, {after} after, {peak} at most");
    assert!(peak < before + 80, "{before} MiB before, {peak} at most");
    let one_more = Attach { handle: 250, ..Attach::receiver("more", Source::at("plain"), Target::at("me")) };
    linked.frame(0, &attach(one_more)).await;
    assert_eq!(linked.verdict().await, Some(("end", "amqp:resource-limit-exceeded".into())));
    bystander.was_served(&house, "5,000 sessions and links").await;
}
