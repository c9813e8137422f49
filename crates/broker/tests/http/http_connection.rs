//! HTTP connections: keep-alive, limits, slow peers, shutdown. Time is paused, so timeouts take no time.

use std::time::Duration;

use broker::http::{Config, HttpService, serve_connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::fake_backend::FakeBackend;

/// Longer than any timeout; takes no time while time is paused.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

struct ServedConnection {
    peer: DuplexStream,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

/// `buffer` bounds what the peer may leave unread before writes to it wait.
fn connect(buffer: usize) -> ServedConnection {
    let (peer, ours) = duplex(buffer);
    let (stop, stopped) = oneshot::channel::<()>();
    let service = HttpService::new(FakeBackend::new(), Config::default());
    let served = tokio::spawn(serve_connection(ours, service, async { drop(stopped.await) }));
    ServedConnection { peer, stop, served }
}

impl ServedConnection {
    async fn write(&mut self, text: &str) {
        self.peer.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the other side closes.
    async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        timeout(LONG_TIMEOUT, self.peer.read_to_end(&mut text)).await.expect("it closes").unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Reads one reply, whose body ends with `end`.
    async fn handle(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut buffer = [0; 1024];
            let read = self.peer.read(&mut buffer).await.unwrap();
            assert!(read > 0, "closed after {text:?}");
            text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        text
    }
}

const HEALTHY: &str = r#""Service is healthy."}"#;
const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn one_connection_carries_many_requests() {
    let mut connection = connect(4096);
    for _ in 0..3 {
        connection.write(HEALTH).await;
        assert!(connection.handle(HEALTHY).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    let body = "<entry><content><QueueDescription/></content></entry>";
    connection.write(&format!("PUT /q HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    assert!(connection.handle("</entry>").await.starts_with("HTTP/1.1 201 Created\r\n"));
    drop(connection.peer);
    connection.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_responses_in_flight() {
    let idle = connect(4096);
    let mut busy = connect(4096);
    busy.write("PUT /q HTTP/1.1\r\nhost: x\r\ncontent-length: 53\r\n\r\n<entry>").await;
    tokio::task::yield_now().await;
    drop((idle.stop, busy.stop));
    idle.served.await.unwrap();
    busy.peer.write_all(b"<content><QueueDescription/></content></entry>").await.unwrap();
    let mut text = Vec::new();
    busy.peer.read_to_end(&mut text).await.unwrap();
    assert!(String::from_utf8(text).unwrap().starts_with("HTTP/1.1 201 Created\r\n"));
    busy.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_headers_and_idle_peers_time_out() {
    for begun in ["", "GET /heal", "GET /health HTTP/1.1\r\nhost: x\r\n"] {
        let mut connection = connect(4096);
        let since = Instant::now();
        connection.write(begun).await;
        connection.rest().await;
        assert_eq!(since.elapsed().as_secs(), 30, "{begun:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_times_out() {
    let mut connection = connect(4096);
    let since = Instant::now();
    connection.write("PUT /q HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n<entry>").await;
    let reply = connection.rest().await;
    assert!(reply.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{reply}");
    assert_eq!(since.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_closed() {
    let mut connection = connect(64);
    let since = Instant::now();
    connection.write(HEALTH).await;
    timeout(LONG_TIMEOUT, connection.served).await.expect("it ends").unwrap();
    assert_eq!(since.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn oversized_bodies_and_headers_are_refused() {
    let mut body = connect(1 << 20);
    body.write("PUT /q HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n").await;
    body.write(&"x".repeat(300_000)).await;
    assert!(body.rest().await.starts_with("HTTP/1.1 413 Payload Too Large\r\n"));

    let mut endless = connect(1 << 20);
    endless.write("PUT /q HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for _ in 0..20 {
        endless.write(&format!("4000\r\n{}\r\n", "x".repeat(0x4000))).await;
    }
    assert!(endless.rest().await.starts_with("HTTP/1.1 413 Payload Too Large\r\n"));

    let mut head = connect(1 << 20);
    head.write(&format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000))).await;
    let reply = head.rest().await;
    assert!(reply.starts_with("HTTP/1.1 431 "), "{reply}");

    let mut headers = connect(1 << 20);
    headers.write(&format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65))).await;
    assert!(headers.rest().await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test(start_paused = true)]
async fn invalid_http_is_refused() {
    let mut connection = connect(4096);
    connection.write("GET nonsense\r\n\r\n").await;
    assert!(connection.rest().await.starts_with("HTTP/1.1 400 Bad Request\r\n"));
    connection.served.await.unwrap();
}
