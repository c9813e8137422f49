//! What is answered where, and to whom.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::{AdminFixture, status};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_status_is_what_was_last_posted_with_its_age() {
    let fixture = AdminFixture::start();
    let before = fixture.get("/api/status").await;
    assert_eq!((before.status, before.body.as_str()), (503, "nothing has been collected yet\n"));

    fixture.status_cache.post(status().evaluated(), std::time::Instant::now());
    let answer = fixture.get("/api/status").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/json"));
    let document: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(document["leader"]["pod"], "pod-0");
    assert_eq!(document["leader"]["since"], "2026-11-15T15:00:00.000Z");
    assert_eq!(document["healthy"], true);
    assert!(document["collected"]["seconds_ago"].as_f64().unwrap() >= 0.0);
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_unknown_is_null_and_never_zero() {
    let fixture = AdminFixture::start();
    fixture.status_cache.post(status(), std::time::Instant::now());
    let document: serde_json::Value = serde_json::from_str(&fixture.get("/api/status").await.body).unwrap();
    for path in [
        "/lag/seconds",
        "/lag/events",
        "/oplog/headroom_seconds",
        "/latency",
        "/parked",
        "/rejected",
        "/bus/dead_letters",
    ] {
        assert!(document.pointer(path).is_some_and(serde_json::Value::is_null), "{path}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn who_asks_for_the_status_wakes_the_one_who_gathers() {
    let fixture = AdminFixture::start();
    let asked = tokio::spawn({
        let status_cache = fixture.status_cache.clone();
        async move { timeout(SOON, status_cache.asked()).await }
    });
    fixture.get("/api/status").await;
    asked.await.unwrap().expect("somebody asked");
    assert!(fixture.status_cache.is_watched(std::time::Instant::now()));
    fixture.stop().await;
}

#[tokio::test]
async fn the_history_holds_a_point_for_each_post() {
    let fixture = AdminFixture::start();
    for _ in 0..3 {
        fixture.status_cache.post(status(), std::time::Instant::now());
    }
    let points: serde_json::Value = serde_json::from_str(&fixture.get("/api/history").await.body).unwrap();
    assert_eq!(points.as_array().unwrap().len(), 3);
    assert_eq!(points[0]["term"], 3);
    fixture.stop().await;
}

#[tokio::test]
async fn the_dashboard_comes_whole_from_the_pod_and_may_load_nothing_else() {
    let fixture = AdminFixture::start();
    let page = fixture.get("/").await;
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html"));
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    for attribute in ["src=\"", "href=\""] {
        for link in page.body.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap()) {
            if !link.starts_with('#') {
                assert!(link.starts_with('/') && !link.starts_with("//"), "{link} leads away from the pod");
                assert!([200, 503].contains(&fixture.get(link).await.status), "{link} is missing");
            }
        }
    }
    assert!(!page.body.contains("style=\""), "the policy forbids inline styles");
    fixture.stop().await;
}

#[tokio::test]
async fn everything_is_for_reading() {
    let fixture = AdminFixture::start();
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let answer = fixture.ask(method, "/api/status").await;
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("allow: get, head"));
    }
    let head = fixture.ask("HEAD", "/").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(fixture.get("/etc/passwd").await.status, 404);
    fixture.stop().await;
}

#[tokio::test]
async fn a_peer_that_says_nothing_holds_nobody_up_when_the_pod_stops() {
    let fixture = AdminFixture::start();
    let mut silent = TcpStream::connect(fixture.address()).await.unwrap();
    let mut half = TcpStream::connect(fixture.address()).await.unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    assert_eq!(fixture.get("/").await.status, 200);
    timeout(SOON, fixture.stop()).await.expect("it stops");
    let mut rest = Vec::new();
    timeout(SOON, silent.read_to_end(&mut rest)).await.expect("its connection is ended").ok();
}
