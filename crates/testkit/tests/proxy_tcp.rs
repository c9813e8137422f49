//! Each fault as bare sockets see it.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use testkit::{
    proxy::{
        Direction::{ToClient, ToTarget},
        NetworkFault, Proxy, ProxyCloseReason, ProxyCounters,
    },
    wait::wait_for,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const LIMIT: Duration = Duration::from_secs(20);

const FIN: Result<(), ErrorKind> = Ok(());
const RESET: Result<(), ErrorKind> = Err(ErrorKind::ConnectionReset);

/// A proxy in front of a server socket that the test controls.
struct Wire {
    proxy: Proxy,
    server: TcpListener,
}

impl Wire {
    async fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap()).await.unwrap();
        Self { proxy, server }
    }

    /// The two ends of a connection through the proxy: the client's, the server's.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.address()).await.unwrap();
        let (server, _) = timeout(LIMIT, self.server.accept()).await.expect("the proxy dials").unwrap();
        (client, server)
    }

    async fn counters_reach(&self, what: &str, there: impl Fn(&ProxyCounters) -> bool) -> ProxyCounters {
        wait_for(what, LIMIT, async || {
            let counters = self.proxy.counters();
            if there(&counters) { Ok(counters) } else { Err(counters) }
        })
        .await
    }
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

async fn receive(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    timeout(LIMIT, stream.read_exact(&mut bytes)).await.expect("bytes arrive").unwrap();
    bytes
}

/// All bytes until the end, and how the stream ended.
async fn receive_all(stream: &mut TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut bytes = Vec::new();
    let ended = timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("the stream ends");
    (bytes, ended.map(drop).map_err(|error| error.kind()))
}

async fn assert_passes(client: &mut TcpStream, server: &mut TcpStream) {
    send(client, b"question").await;
    assert_eq!(receive(server, 8).await, b"question");
    send(server, b"answer").await;
    assert_eq!(receive(client, 6).await, b"answer");
}

async fn assert_refused(address: SocketAddr) {
    let refused = TcpStream::connect(address).await.expect_err("no one listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn without_a_fault_bytes_pass_both_ways_and_are_counted() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    let counters = wire.proxy.counters();
    assert_eq!((counters.accepted, counters.open), (1, 1));
    assert_eq!((counters.to_target.delivered, counters.to_client.delivered), (8, 6));
}

#[tokio::test]
async fn a_side_that_has_said_all_can_still_listen() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    send(&mut client, b"last words").await;
    client.shutdown().await.unwrap();
    assert_eq!(receive_all(&mut server).await.0, b"last words");
    send(&mut server, b"understood").await;
    drop(server);
    assert_eq!(receive_all(&mut client).await.0, b"understood");
    wire.counters_reach("the connection to be closed", |seen| seen.open == 0).await;
    assert_eq!(wire.proxy.connections()[0].close_reason(), Some(ProxyCloseReason::Closed));
}

#[tokio::test]
async fn a_reset_by_one_peer_reaches_the_other_as_a_reset() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    server.set_zero_linger().unwrap();
    drop(server);
    assert_eq!(receive_all(&mut client).await.1, RESET);
    wire.counters_reach("the connection to be over", |seen| seen.open == 0).await;
    assert_eq!(wire.proxy.connections()[0].close_reason(), Some(ProxyCloseReason::Broken));
}

#[tokio::test]
async fn a_cut_sends_fin_to_both_sides_and_refuses_until_healed() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;

    wire.proxy.inject(NetworkFault::Cut).await;
    assert_eq!(wire.proxy.counters().cut, 1, "in force when the call returns");
    assert_eq!(receive_all(&mut client).await.1, FIN);
    assert_eq!(receive_all(&mut server).await.1, FIN);
    assert_refused(wire.proxy.address()).await;

    wire.proxy.heal().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_has_closed_every_connection_when_it_returns() {
    let wire = Wire::new().await;
    let mut ends = Vec::new();
    for _ in 0..200 {
        ends.push(wire.connect().await);
    }
    wire.proxy.inject(NetworkFault::Cut).await;
    let seen = wire.proxy.counters();
    assert_eq!((seen.open, seen.cut), (0, 200));
}

#[tokio::test]
async fn a_cut_is_a_fin_even_with_bytes_that_were_never_read() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    wire.proxy.inject(NetworkFault::Freeze).await;
    send(&mut client, b"unread").await;
    wire.counters_reach("bytes to meet the freeze", |seen| seen.to_target.withheld == 1).await;
    wire.proxy.inject(NetworkFault::Cut).await;
    assert_eq!(receive_all(&mut client).await.1, FIN);
    // After a RST this write would fail; after a FIN the client may still send.
    assert!(client.write(b"x").await.is_ok());
}

#[tokio::test]
async fn the_port_of_a_cut_proxy_is_not_given_to_anyone_else() {
    let wire = Wire::new().await;
    wire.proxy.inject(NetworkFault::Cut).await;
    let taken = TcpListener::bind(wire.proxy.address()).await.expect_err("it is reserved");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}

#[tokio::test]
async fn a_reset_sends_rst_to_both_sides_and_later_connections() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;

    wire.proxy.inject(NetworkFault::Reset).await;
    assert_eq!(wire.proxy.counters().reset, 1);
    assert_eq!(receive_all(&mut client).await.1, RESET);
    assert_eq!(receive_all(&mut server).await.1, RESET);
    let mut late = TcpStream::connect(wire.proxy.address()).await.unwrap();
    assert_eq!(receive_all(&mut late).await.1, RESET);

    wire.proxy.heal().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_black_hole_takes_everything_and_delivers_nothing() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::BlackHole).await;
    // More than socket buffers hold: it is taken, not merely kept waiting.
    let much = vec![7; 32 * 1024 * 1024];
    timeout(LIMIT, send(&mut client, &much)).await.expect("a black hole knows no back-pressure");
    send(&mut server, b"answer").await;
    let counters = wire
        .counters_reach("all to be swallowed", |seen| {
            seen.to_target.dropped == much.len() as u64 && seen.to_client.dropped == 6
        })
        .await;
    assert_eq!((counters.to_target.delivered, counters.to_client.delivered, counters.open), (0, 0, 1));
    assert_eq!(server.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);

    wire.proxy.heal().await;
    // A stream with a gap must not continue as if nothing had been lost.
    assert_eq!(receive_all(&mut client).await.1, RESET);
    assert_eq!(receive_all(&mut server).await, (Vec::new(), RESET));
}

#[tokio::test]
async fn a_half_open_connection_loses_only_the_response() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::HalfOpen { dead: ToClient }).await;
    send(&mut client, b"question").await;
    assert_eq!(receive(&mut server, 8).await, b"question");
    send(&mut server, b"answer").await;
    let counters = wire.counters_reach("the answer to be lost", |seen| seen.to_client.dropped == 6).await;
    assert_eq!((counters.to_client.delivered, counters.open), (0, 1));
}

#[tokio::test]
async fn a_connection_can_be_half_open_the_other_way_round() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::HalfOpen { dead: ToTarget }).await;
    send(&mut server, b"news").await;
    assert_eq!(receive(&mut client, 4).await, b"news");
    send(&mut client, b"thanks").await;
    let counters = wire.counters_reach("the request to be lost", |seen| seen.to_target.dropped == 6).await;
    assert_eq!((counters.to_target.delivered, counters.open), (0, 1));
}

#[tokio::test]
async fn a_freeze_loses_nothing() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::Freeze).await;
    send(&mut client, b"question").await;
    send(&mut server, b"answer").await;
    let counters = wire
        .counters_reach("both to be held", |seen| seen.to_target.withheld == 1 && seen.to_client.withheld == 1)
        .await;
    assert_eq!((counters.to_target.delivered, counters.to_client.delivered), (0, 0));
    wire.proxy.heal().await;
    assert_eq!(receive(&mut server, 8).await, b"question");
    assert_eq!(receive(&mut client, 6).await, b"answer");
}

#[tokio::test]
async fn a_withheld_response_comes_late() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::Withhold(ToClient)).await;
    send(&mut client, b"question").await;
    assert_eq!(receive(&mut server, 8).await, b"question");
    send(&mut server, b"answer").await;
    wire.counters_reach("the answer to be held", |seen| seen.to_client.withheld == 1).await;
    assert_eq!(client.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    wire.proxy.heal().await;
    assert_eq!(receive(&mut client, 6).await, b"answer");
}

#[tokio::test]
async fn a_delay_is_added_once_to_many_bytes_in_flight() {
    const LATE: Duration = Duration::from_millis(300);
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    wire.proxy.inject(NetworkFault::Delay(ToTarget, LATE)).await;

    let started = Instant::now();
    for n in 0..20 {
        send(&mut client, &[n]).await;
        // Its own read for each byte, so that they are twenty chunks on the line and not one.
        wire.counters_reach("the byte to be on its way", |seen| seen.to_target.received == 9 + u64::from(n)).await;
    }
    assert_eq!(receive(&mut server, 20).await, (0..20).collect::<Vec<u8>>());
    let took = started.elapsed();
    assert!(took >= LATE, "{took:?}");
    assert!(took < LATE * 10, "twenty chunks share the delay, they do not queue for it: {took:?}");
    assert_eq!(wire.proxy.counters().to_target.delayed, 20);

    let started = Instant::now();
    send(&mut server, b"at once").await;
    receive(&mut client, 7).await;
    assert!(started.elapsed() < LATE, "the other direction is not late");
}

#[tokio::test]
async fn healing_a_delay_frees_what_is_on_its_way() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    wire.proxy.inject(NetworkFault::Delay(ToTarget, LIMIT * 10)).await;
    send(&mut client, b"question").await;
    wire.counters_reach("the bytes to be on their way", |seen| seen.to_target.received == 8).await;
    assert_eq!(wire.proxy.counters().to_target.delivered, 0);
    wire.proxy.heal().await;
    assert_eq!(receive(&mut server, 8).await, b"question");
}

#[tokio::test]
async fn a_slow_receiver_is_felt_by_the_sender() {
    let wire = Wire::new().await;
    let (client, mut server) = wire.connect().await;
    let much: Vec<u8> = (0..64 * 1024 * 1024u32).map(|n| (n % 251) as u8).collect();
    let sending = {
        let (mut client, much) = (client, much.clone());
        tokio::spawn(async move { client.write_all(&much).await })
    };
    // Full: what is taken from the client and not delivered has reached the bound, and no more is taken.
    let held = |seen: &ProxyCounters| seen.to_target.received - seen.to_target.delivered;
    let full = wire.counters_reach("the proxy to be full", |seen| held(seen) == 256 * 1024).await;
    assert!(full.to_target.received < much.len() as u64 / 2, "{full:?}");
    assert!(!sending.is_finished());

    assert!(receive(&mut server, much.len()).await == much, "every byte, in order");
    sending.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_rule_cuts_after_exactly_so_many_bytes() {
    let wire = Wire::new().await;
    wire.proxy.on_next_connection(NetworkFault::Cut.after(10, ToClient)).await;
    let (mut client, mut server) = wire.connect().await;
    send(&mut client, b"as many as it likes this way").await;
    send(&mut server, b"0123456789abc").await;
    assert_eq!(receive_all(&mut client).await, (b"0123456789".to_vec(), FIN));
    wire.counters_reach("the cut", |seen| seen.cut == 1).await;
    // Only that connection: the next one is not touched, and no one is refused.
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_rule_freezes_after_exactly_so_many_bytes_until_healed() {
    let wire = Wire::new().await;
    wire.proxy.on_each_connection(NetworkFault::Freeze.after(4, ToTarget)).await;
    let (mut client, mut server) = wire.connect().await;
    send(&mut client, b"question").await;
    assert_eq!(receive(&mut server, 4).await, b"ques");
    wire.counters_reach("the rest to be held", |seen| seen.to_target.withheld == 1).await;
    assert_eq!(wire.proxy.counters().to_target.delivered, 4);
    wire.proxy.heal().await;
    assert_eq!(receive(&mut server, 4).await, b"tion");
    assert_passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_rule_for_an_open_connection_counts_from_now() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    wire.proxy.connections()[0].add_rule(NetworkFault::Reset.after(3, ToTarget));
    send(&mut client, b"abcdef").await;
    let (bytes, ended) = receive_all(&mut server).await;
    assert_eq!(ended, RESET);
    assert!(b"abc".starts_with(&bytes), "no more than three: {bytes:?}");
    assert_eq!(wire.proxy.connections()[0].counters().to_target.delivered, 8 + 3);
}

#[tokio::test]
async fn a_fault_can_affect_one_connection_only() {
    let wire = Wire::new().await;
    let (mut hit, _hit_server) = wire.connect().await;
    let (mut spared, mut spared_server) = wire.connect().await;
    let address = hit.local_addr().unwrap();
    let connections = wire.proxy.connections();
    let connection = connections.iter().find(|connection| connection.client() == address).expect("it was accepted");
    connection.inject(NetworkFault::Reset);
    assert_eq!(receive_all(&mut hit).await.1, RESET);
    assert_passes(&mut spared, &mut spared_server).await;
}

#[tokio::test]
async fn a_fault_for_open_connections_spares_future_ones() {
    let wire = Wire::new().await;
    let (mut old, _server) = wire.connect().await;
    wire.proxy.inject_into_open(NetworkFault::Cut).await;
    assert_eq!(receive_all(&mut old).await.1, FIN);
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_target_that_is_not_there_breaks_the_connection() {
    let wire = Wire::new().await;
    let Wire { proxy, server } = wire;
    drop(server);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(receive_all(&mut client).await.1, RESET);
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_port_and_its_connections() {
    let wire = Wire::new().await;
    let (mut client, mut server) = wire.connect().await;
    assert_passes(&mut client, &mut server).await;
    let Wire { proxy, server: _listener } = wire;
    let address = proxy.address();
    drop(proxy);
    assert_eq!(receive_all(&mut client).await.1, FIN);
    assert_eq!(receive_all(&mut server).await.1, FIN);
    assert_refused(address).await;
}

#[tokio::test]
async fn a_stopped_proxy_is_gone_when_the_call_returns() {
    let wire = Wire::new().await;
    let address = wire.proxy.address();
    wire.proxy.stop().await;
    assert_refused(address).await;
}
