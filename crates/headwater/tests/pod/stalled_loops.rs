//! `/healthz` reports stalled loops and not silent servers; `/readyz` reports both.
//!
//! No fault from outside stalls a loop: each waits for its servers with a timeout, and retries. So a failpoint stalls it, which a release build does
//! not have.

use std::time::Duration;

use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::nemesis::LinkTarget;
use testkit::proxy::NetworkFault;
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};

/// In milliseconds: far longer than an iteration of a healthy loop on a slow machine, far shorter than the usual two minutes.
const STALL_LIMIT: &str = "8000";

/// A silent connection is closed after its idle timeout of one minute.
const NOTICE_LIMIT: Duration = Duration::from_secs(110);

fn with_stalled_loop(name: &str) -> TestClusterConfig {
    let variables = [("HEADWATER_FAILPOINT_STALL", name), ("HEADWATER_FAILPOINT_STALL_LIMIT", STALL_LIMIT)];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    TestClusterConfig { environment, ..cluster_config(MongoTopology::Shared) }
}

/// Names of the stalled loops.
fn stalled(report: &Json) -> Vec<&str> {
    let services = report["services"].as_array().into_iter().flatten();
    let loops = services.flat_map(|service| service["loops"].as_array().into_iter().flatten());
    loops.filter(|one| one["state"] == "stalled").filter_map(|one| one["name"].as_str()).collect()
}

/// The reason why a service is not ready.
fn unready_reason<'a>(report: &'a Json, name: &str) -> Option<&'a str> {
    let mut services = report["services"].as_array().into_iter().flatten();
    services.find(|service| service["name"] == name)?["reason"].as_str()
}

/// Reads the status with another process, because a stalled status collector does not see the problem.
async fn wait_for_problem(fixture: &PodFixture, words: &str) {
    wait_for("the problem in the status", SOON, async || {
        let said = fixture.run_command(&["status", "--json"]).await;
        let status: Json = serde_json::from_str(&said).unwrap_or(Json::Null);
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let matches = |problem: &Json| problem["text"].as_str().is_some_and(|text| text.contains(words));
        if problems.iter().any(matches) { Ok(()) } else { Err(problems) }
    })
    .await;
}

/// A live pod gets work, and the loop of that service is reported as stalled.
async fn expect_stalled(planted: &str, service: &str, name: &str) {
    let mut fixture = PodFixture::start(with_stalled_loop(planted)).await;
    if !["elector", "announcer", "status-collector", "step-down", "acceptor", "dead-letters"].contains(&name) {
        wait_for("the pod to be ready", SOON, async || match fixture.get("/readyz").await {
            reply if reply.status == 200 => Ok(()),
            reply => Err(reply.body),
        })
        .await;
        assert_eq!(fixture.get("/healthz").await.status, 200);
        fixture.insert("order-1", 1).await;
    }
    let report = wait_for("the stalled loop", SOON, async || {
        let reply = fixture.get("/healthz").await;
        let report: Json = serde_json::from_str(&reply.body).unwrap();
        if reply.status == 503 && stalled(&report).contains(&name) { Ok(report) } else { Err(report) }
    })
    .await;
    let reason = unready_reason(&report, service).map(str::to_owned);
    assert!(reason.is_some(), "{report}");
    let sample = format!("headwater_loop_stalled{{service=\"{service}\",loop=\"{name}\"}}");
    assert_eq!(fixture.metric(&sample).await, Some(1.0));
    assert_eq!(fixture.get("/readyz").await.status, 503);
    // The status of the pipeline reports it, too; a pod with a stalled announcer is silent.
    let words = if name == "announcer" { "no heartbeat from".to_owned() } else { format!("{name} has been stalled") };
    wait_for_problem(&fixture, &words).await;
    fixture.0.pod_mut(0).kill().await;
}

#[tokio::test]
async fn a_stalled_elector_is_reported() {
    expect_stalled("Elector", "lease", "elector").await;
}

#[tokio::test]
async fn a_stalled_standby_elector_is_reported() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..with_stalled_loop("Standby") }).await;
    let leader = fixture.0.leader().await.expect("there is a leader");
    let standby = 1 - leader;
    let report = wait_for("the stalled loop", SOON, async || {
        let reply = fixture.get_of(standby, "/healthz").await;
        let report: Json = serde_json::from_str(&reply.body).unwrap();
        if reply.status == 503 { Ok(report) } else { Err(report) }
    })
    .await;
    assert_eq!(stalled(&report), ["elector"], "{report}");
    assert_eq!(unready_reason(&report, "lease"), Some("elector is stalled"));
    assert_eq!(fixture.get_of(standby, "/readyz").await.status, 503);
    assert_eq!(fixture.get_of(leader, "/healthz").await.status, 200);
    wait_for_problem(&fixture, "elector has been stalled").await;
    fixture.0.pod_mut(standby).kill().await;
}

#[tokio::test]
async fn a_stalled_announcer_is_reported() {
    expect_stalled("Announcer", "status", "announcer").await;
}

#[tokio::test]
async fn a_stalled_status_collector_is_reported() {
    expect_stalled("StatusCollector", "status", "status-collector").await;
}

#[tokio::test]
async fn a_stalled_step_down_watcher_is_reported() {
    expect_stalled("StepDown", "lease", "step-down").await;
}

#[tokio::test]
async fn a_stalled_capture_is_reported() {
    expect_stalled("Capture", "producer", "capture").await;
}

#[tokio::test]
async fn a_stalled_publisher_is_reported() {
    expect_stalled("Publish", "producer", "publish").await;
}

#[tokio::test]
async fn a_stalled_session_is_reported() {
    expect_stalled("Sessions", "consumer", "sessions").await;
}

#[tokio::test]
async fn a_stalled_acceptor_is_reported() {
    expect_stalled("Acceptor", "consumer", "acceptor").await;
}

#[tokio::test]
async fn a_stalled_dead_letter_reader_is_reported() {
    expect_stalled("DeadLetters", "consumer", "dead-letters").await;
}

#[tokio::test]
async fn a_stalled_applier_is_reported() {
    expect_stalled("Applier", "consumer", "applier").await;
}

/// A server stops responding while there is work, and later responds again.
async fn expect_unready_but_live(of: LinkTarget, services: &[&str]) {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    let link = fixture.0.pod(0).link(of).expect("the pod has a proxied link");
    link.inject(NetworkFault::BlackHole).await;
    fixture.insert("order-2", 1).await;
    for service in services {
        wait_for("an unready service", NOTICE_LIMIT, async || {
            assert_eq!(fixture.get("/healthz").await.status, 200, "a silent server does not require a restart");
            let reply = fixture.get("/readyz").await;
            let report: Json = serde_json::from_str(&reply.body).unwrap();
            if reply.status == 503 && unready_reason(&report, service).is_some() { Ok(()) } else { Err(reply.body) }
        })
        .await;
    }
    link.heal().await;
    fixture.wait_for_applied("order-2").await;
    wait_for("the pod to be ready again", SOON, async || {
        let reply = fixture.get("/readyz").await;
        assert_eq!(fixture.get("/healthz").await.status, 200);
        if reply.status == 200 { Ok(()) } else { Err(reply.body) }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_silent_bus_makes_a_pod_unready_but_live() {
    expect_unready_but_live(LinkTarget::Broker, &["producer", "consumer"]).await;
}

#[tokio::test]
async fn a_silent_mongodb_makes_a_pod_unready_but_live() {
    expect_unready_but_live(LinkTarget::Mongo, &["lease"]).await;
}
