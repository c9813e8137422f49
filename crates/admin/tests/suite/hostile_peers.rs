//! Peers that hold connections, send slowly, or come from another site's page.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::fixture::AdminFixture;

/// Kubernetes waits one second for a probe by default.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

async fn half_head(fixture: &AdminFixture) -> TcpStream {
    let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").await.unwrap();
    stream
}

async fn probe(fixture: &AdminFixture) {
    let reply = timeout(PROBE_LIMIT, fixture.get("/healthz")).await.expect("the probe is answered in time");
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn half_sent_heads_do_not_delay_a_probe() {
    let fixture = AdminFixture::start();
    let mut peers = vec![];
    for _ in 0..600 {
        peers.push(half_head(&fixture).await);
    }
    for _ in 0..5 {
        probe(&fixture).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_does_not_starve_a_probe() {
    let fixture = AdminFixture::start();
    let (address, stop) = (fixture.address(), CancellationToken::new());
    let flood = |stop: CancellationToken| async move {
        let mut peers = std::collections::VecDeque::new();
        while !stop.is_cancelled() {
            if let Ok(mut stream) = TcpStream::connect(address).await {
                stream.write_all(b"GET /").await.ok();
                peers.push_back(stream);
            }
            if peers.len() > 400 {
                peers.pop_front();
            }
            // About a thousand per second and peer: without a pause the test would measure the speed of the machine.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let floods: Vec<_> = (0..2).map(|_| tokio::spawn(flood(stop.clone()))).collect();
    for _ in 0..20 {
        probe(&fixture).await;
    }
    stop.cancel();
    for flood in floods {
        flood.await.unwrap();
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_slow_head_is_cut_early() {
    let fixture = AdminFixture::start();
    let started = Instant::now();
    let mut slow = half_head(&fixture).await;
    let mut rest = vec![];
    timeout(Duration::from_secs(8), slow.read_to_end(&mut rest)).await.expect("the connection is closed").ok();
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    fixture.stop().await;
}

#[tokio::test]
async fn a_peer_that_reads_nothing_does_not_delay_a_probe() {
    let fixture = AdminFixture::start();
    let mut peers = vec![];
    for _ in 0..300 {
        let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
        // Pipelined requests whose responses nobody reads.
        let requests = "GET /dashboard.js HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(40);
        stream.write_all(requests.as_bytes()).await.ok();
        peers.push(stream);
    }
    probe(&fixture).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_foreign_host_name_is_refused_on_loopback() {
    let fixture = AdminFixture::start();
    for path in ["/", "/api/status", "/metrics", "/api/step-down"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
        let mut stream = TcpStream::connect(fixture.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 421 "), "{path}: {text}");
    }
    assert_eq!(fixture.get("/").await.status, 200);
    fixture.stop().await;
}

#[tokio::test]
async fn every_response_has_security_headers() {
    let fixture = AdminFixture::start();
    for path in ["/", "/dashboard.js", "/metrics", "/nothing"] {
        let head = fixture.get(path).await.head;
        for header in [
            "content-security-policy: default-src 'none'",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "permissions-policy:",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{path}: {header} in {head}");
        }
        assert!(!head.contains("access-control-"), "{path}: {head}");
    }
    fixture.stop().await;
}
