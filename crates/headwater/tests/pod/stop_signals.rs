//! How a pod ends when it is asked to.

use std::time::Duration;

use testkit::cluster::MongoTopology;
use testkit::wait::wait_for;

use crate::fixture::{HttpReply, PodFixture, SOON, blueprint};

#[tokio::test]
async fn a_pod_that_cannot_finish_ends_at_once_on_the_second_signal_and_says_so() {
    let mut fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    // What was read cannot be sent, and so a stop in order would take its time.
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    fixture.pod().terminate();
    fixture.pod().wait_for_line("stopping", SOON).await;
    // Signals that follow closely, within a quarter of a second, are one wish; a person who presses twice waits no second.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(fixture.pod().exit_status(), None, "it has not finished");
    fixture.pod().terminate();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(130), "{}", fixture.pod().tail());
    fixture.0.broker_mut().resume();
}

#[tokio::test]
async fn a_pod_that_stops_is_not_ready_and_tells_of_its_services_until_they_have_ended() {
    let mut fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    wait_for("a pod that is ready", SOON, async || match fixture.get("/readyz").await.status {
        200 => Ok(()),
        other => Err(other),
    })
    .await;
    // What was read cannot be sent yet: the stop lasts for as long as we look.
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    fixture.pod().terminate();
    fixture.pod().wait_for_line("stopping", SOON).await;
    wait_for("a pod that is not ready", SOON, async || {
        let HttpReply { status, body } = fixture.get("/readyz").await;
        let report: serde_json::Value = serde_json::from_str(&body).unwrap();
        if status == 503 && report["stopping"] == true { Ok(()) } else { Err(report) }
    })
    .await;
    assert_eq!(fixture.get("/healthz").await.status, 200, "it is at work");
    fixture.0.broker_mut().resume();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{}", fixture.pod().tail());
    let said: Vec<String> = fixture.pod().lines().into_iter().map(|line| line.text).collect();
    let at = |message: &str| {
        let message = format!("\"message\":\"{message}\"");
        said.iter().position(|line| line.contains(&message)).unwrap_or_else(|| panic!("no {message}"))
    };
    let order = [
        "dashboard, metrics and health are served",
        "pod started",
        "lease acquired",
        "stopping",
        "lease lost",
        "stopped",
    ];
    let places = order.map(at);
    assert!(places.is_sorted(), "{order:?} at {places:?}");
}
