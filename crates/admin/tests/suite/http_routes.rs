//! The HTTP routes and their responses.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::{AdminFixture, status};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_status_is_the_last_stored_one_with_its_age() {
    let fixture = AdminFixture::start();
    let before = fixture.get("/api/status").await;
    assert_eq!((before.status, before.body.as_str()), (503, "no status has been collected yet\n"));

    fixture.status_cache.store(status().evaluated(), std::time::Instant::now());
    let reply = fixture.get("/api/status").await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: application/json"));
    let document: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(document["leader"]["pod"], "pod-0");
    assert_eq!(document["leader"]["since"], "2026-11-15T15:00:00.000Z");
    assert_eq!(document["healthy"], true);
    assert!(document["collected"]["seconds_ago"].as_f64().unwrap() >= 0.0);
    fixture.stop().await;
}

#[tokio::test]
async fn an_unknown_value_is_null_and_never_zero() {
    let fixture = AdminFixture::start();
    fixture.status_cache.store(status(), std::time::Instant::now());
    let document: serde_json::Value = serde_json::from_str(&fixture.get("/api/status").await.body).unwrap();
    for path in [
        "/lag/seconds",
        "/lag/events",
        "/oplog/headroom_seconds",
        "/latency",
        "/parked",
        "/rejected",
        "/subscription/dead_letters",
    ] {
        assert!(document.pointer(path).is_some_and(serde_json::Value::is_null), "{path}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_status_request_wakes_the_collector() {
    let fixture = AdminFixture::start();
    let refresh = tokio::spawn({
        let status_cache = fixture.status_cache.clone();
        async move { timeout(SOON, status_cache.refresh_requested()).await }
    });
    fixture.get("/api/status").await;
    refresh.await.unwrap().expect("a refresh was requested");
    assert!(fixture.status_cache.is_watched(std::time::Instant::now()));
    fixture.stop().await;
}

#[tokio::test]
async fn a_status_request_waits_for_a_fresh_status() {
    let fixture = AdminFixture::start();
    let mut old = status();
    old.leader = None;
    let four_seconds_ago = std::time::Instant::now() - Duration::from_secs(4);
    fixture.status_cache.store(old.evaluated(), four_seconds_ago);
    let collector = tokio::spawn({
        let status_cache = fixture.status_cache.clone();
        async move {
            let collected_at = std::time::Instant::now();
            status_cache.refresh_requested().await;
            status_cache.store(status().evaluated(), collected_at);
        }
    });
    let document: serde_json::Value = serde_json::from_str(&fixture.get("/api/status").await.body).unwrap();
    assert_eq!((&document["leader"]["pod"], &document["healthy"]), (&"pod-0".into(), &true.into()));
    collector.await.unwrap();
    fixture.stop().await;
}

#[tokio::test]
async fn an_old_status_is_served_with_its_age() {
    let fixture = AdminFixture::start();
    let four_seconds_ago = std::time::Instant::now() - Duration::from_secs(4);
    fixture.status_cache.store(status().evaluated(), four_seconds_ago);
    // no collector: MongoDB does not respond
    let reply = timeout(SOON, fixture.get("/api/status")).await.unwrap();
    let document: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert!(document["collected"]["seconds_ago"].as_f64().unwrap() >= 4.0);
    fixture.stop().await;
}

#[tokio::test]
async fn the_history_holds_a_point_for_each_status() {
    let fixture = AdminFixture::start();
    for _ in 0..3 {
        fixture.status_cache.store(status(), std::time::Instant::now());
    }
    let points: serde_json::Value = serde_json::from_str(&fixture.get("/api/history").await.body).unwrap();
    assert_eq!(points.as_array().unwrap().len(), 3);
    assert_eq!(points[0]["term"], 3);
    fixture.stop().await;
}

#[tokio::test]
async fn the_dashboard_loads_nothing_from_other_hosts() {
    let fixture = AdminFixture::start();
    let page = fixture.get("/").await;
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html"));
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    for attribute in ["src=\"", "href=\""] {
        for link in page.body.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap()) {
            if !link.starts_with('#') {
                assert!(link.starts_with('/') && !link.starts_with("//"), "{link} leaves the pod");
                assert!([200, 503].contains(&fixture.get(link).await.status), "{link} is missing");
            }
        }
    }
    assert!(!page.body.contains("style=\""), "the content security policy forbids inline styles");
    fixture.stop().await;
}

#[tokio::test]
async fn everything_is_read_only() {
    let fixture = AdminFixture::start();
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let reply = fixture.request(method, "/api/status").await;
        assert_eq!(reply.status, 405, "{method}");
        assert!(reply.head.contains("allow: get, head"));
    }
    let head = fixture.request("HEAD", "/").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(fixture.get("/etc/passwd").await.status, 404);
    fixture.stop().await;
}

#[tokio::test]
async fn a_silent_peer_does_not_delay_a_stop() {
    let fixture = AdminFixture::start();
    let mut silent = TcpStream::connect(fixture.address()).await.unwrap();
    let mut half = TcpStream::connect(fixture.address()).await.unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    assert_eq!(fixture.get("/").await.status, 200);
    timeout(SOON, fixture.stop()).await.expect("it stops");
    let mut rest = Vec::new();
    timeout(SOON, silent.read_to_end(&mut rest)).await.expect("the connection is closed").ok();
}
