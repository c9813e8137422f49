//! Loops of a real pod that do not move, and servers that do not answer: `/healthz` tells one from the other, and `/readyz` tells both.
//!
//! From outside no loop can be wedged: each waits for its servers with a deadline, and goes round again. So a loop is wedged by a planted
//! fault, which a release build does not have; and silent servers must not look like one.

use std::time::Duration;

use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::nemesis::LinkTarget;
use testkit::proxy::NetworkFault;
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, blueprint};

/// Far longer than any loop of a pod that is well needs, also on a slow machine; far shorter than the usual two minutes.
const PATIENCE: &str = "8000";

/// A connection that falls silent is given up after its idle time, a minute.
const NOTICED_WITHIN: Duration = Duration::from_secs(110);

fn wedging(name: &str) -> TestClusterConfig {
    let variables = [("HEADWATER_FAILPOINT_STALL", name), ("HEADWATER_FAILPOINT_STALL_LIMIT", PATIENCE)];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    TestClusterConfig { environment, ..blueprint(MongoTopology::Shared) }
}

/// Names of the loops that are wedged.
fn wedged(report: &Json) -> Vec<&str> {
    let services = report["services"].as_array().into_iter().flatten();
    let loops = services.flat_map(|service| service["loops"].as_array().into_iter().flatten());
    loops.filter(|one| one["state"] == "wedged").filter_map(|one| one["name"].as_str()).collect()
}

/// Why a service is not ready.
fn unready<'a>(report: &'a Json, name: &str) -> Option<&'a str> {
    let mut services = report["services"].as_array().into_iter().flatten();
    services.find(|service| service["name"] == name)?["why"].as_str()
}

/// What all pods share says of what is wrong, asked by another process: a pod whose own eyes are shut does not see it.
async fn is_told(fixture: &PodFixture, words: &str) {
    wait_for("the trouble in the status", SOON, async || {
        let said = fixture.ask(&["status", "--json"]).await;
        let status: Json = serde_json::from_str(&said).unwrap_or(Json::Null);
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let told = |problem: &Json| problem["text"].as_str().is_some_and(|text| text.contains(words));
        if problems.iter().any(told) { Ok(()) } else { Err(problems) }
    })
    .await;
}

/// The pod is live; then it has work, and this loop of that service is found wedged.
async fn is_found(planted: &str, service: &str, name: &str) {
    let mut fixture = PodFixture::start(wedging(planted)).await;
    if !["elector", "announcer", "gather", "step-down", "acceptor", "dead-letters"].contains(&name) {
        wait_for("a pod that is well", SOON, async || match fixture.get("/readyz").await {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        })
        .await;
        assert_eq!(fixture.get("/healthz").await.status, 200);
        fixture.insert("order-1", 1).await;
    }
    let report = wait_for("the wedged loop", SOON, async || {
        let answer = fixture.get("/healthz").await;
        let report: Json = serde_json::from_str(&answer.body).unwrap();
        if answer.status == 503 && wedged(&report).contains(&name) { Ok(report) } else { Err(report) }
    })
    .await;
    let unready = unready(&report, service).map(str::to_owned);
    assert!(unready.is_some(), "{report}");
    let sample = format!("headwater_loop_wedged{{service=\"{service}\",loop=\"{name}\"}}");
    assert_eq!(fixture.metric(&sample).await, Some(1.0));
    assert_eq!(fixture.get("/readyz").await.status, 503);
    // Whoever looks at the whole pipeline is told, too; and that one is not heard of, when it is the announcer.
    let words = if name == "announcer" { "not heard of any more".to_owned() } else { format!("{name} does not move") };
    is_told(&fixture, &words).await;
    fixture.0.pod_mut(0).kill().await;
}

#[tokio::test]
async fn a_wedged_elector_is_found() {
    is_found("Elector", "lease", "elector").await;
}

#[tokio::test]
async fn a_wedged_elector_of_a_standby_is_found_and_the_leader_s_is_not() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..wedging("Standby") }).await;
    let leader = fixture.0.leader().await.expect("one leads");
    let standby = 1 - leader;
    let report = wait_for("the wedged loop", SOON, async || {
        let answer = fixture.get_of(standby, "/healthz").await;
        let report: Json = serde_json::from_str(&answer.body).unwrap();
        if answer.status == 503 { Ok(report) } else { Err(report) }
    })
    .await;
    assert_eq!(wedged(&report), ["elector"], "{report}");
    assert_eq!(unready(&report, "lease"), Some("elector does not move"));
    assert_eq!(fixture.get_of(standby, "/readyz").await.status, 503);
    assert_eq!(fixture.get_of(leader, "/healthz").await.status, 200);
    is_told(&fixture, "elector does not move").await;
    fixture.0.pod_mut(standby).kill().await;
}

#[tokio::test]
async fn a_wedged_announcer_is_found() {
    is_found("Announcer", "status", "announcer").await;
}

#[tokio::test]
async fn a_wedged_gatherer_is_found() {
    is_found("Gather", "status", "gather").await;
}

#[tokio::test]
async fn a_leader_deaf_to_wishes_is_found() {
    is_found("StepDown", "lease", "step-down").await;
}

#[tokio::test]
async fn a_wedged_capture_is_found() {
    is_found("Capture", "producer", "capture").await;
}

#[tokio::test]
async fn a_wedged_publisher_is_found() {
    is_found("Publish", "producer", "publish").await;
}

#[tokio::test]
async fn a_wedged_session_is_found() {
    is_found("Sessions", "consumer", "sessions").await;
}

#[tokio::test]
async fn a_wedged_acceptor_is_found() {
    is_found("Acceptor", "consumer", "acceptor").await;
}

#[tokio::test]
async fn a_wedged_reader_of_dead_letters_is_found() {
    is_found("DeadLetters", "consumer", "dead-letters").await;
}

#[tokio::test]
async fn a_wedged_applier_is_found() {
    is_found("Applier", "consumer", "applier").await;
}

/// One of its servers falls silent under work, and answers again.
async fn bears_silence(of: LinkTarget, services: &[&str]) {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    fixture.insert("order-1", 1).await;
    fixture.applied("order-1").await;
    let link = fixture.0.pod(0).link(of).expect("the link leads through the fixture");
    link.inject(NetworkFault::BlackHole).await;
    fixture.insert("order-2", 1).await;
    for service in services {
        wait_for("a service that is not ready", NOTICED_WITHIN, async || {
            assert_eq!(fixture.get("/healthz").await.status, 200, "a silent server is no reason to restart a pod");
            let answer = fixture.get("/readyz").await;
            let report: Json = serde_json::from_str(&answer.body).unwrap();
            if answer.status == 503 && unready(&report, service).is_some() { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
    link.heal().await;
    fixture.applied("order-2").await;
    wait_for("a pod that is well again", SOON, async || {
        let answer = fixture.get("/readyz").await;
        assert_eq!(fixture.get("/healthz").await.status, 200);
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_silent_bus_makes_a_pod_unready_and_never_dead() {
    bears_silence(LinkTarget::Broker, &["producer", "consumer"]).await;
}

#[tokio::test]
async fn a_silent_mongodb_makes_a_pod_unready_and_never_dead() {
    bears_silence(LinkTarget::Mongo, &["lease"]).await;
}
