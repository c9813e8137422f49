//! How a pod ends when it is asked to.

use std::time::Duration;

use testkit::cluster::StoreKind;
use testkit::wait::wait_for;

use crate::house::{Answer, House, SOON, blueprint};

#[tokio::test]
async fn a_pod_that_cannot_finish_ends_at_once_on_the_second_signal_and_says_so() {
    let mut house = House::start(blueprint(StoreKind::Shared)).await;
    // What was read cannot be sent, and so a stop in order would take its time.
    house.0.broker_mut().pause().await;
    house.insert("order-1", 1).await;
    house.pod().terminate();
    house.pod().wait_for_line("stopping", SOON).await;
    // Signals that follow closely, within a quarter of a second, are one wish; a person who presses twice waits no second.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(house.pod().exit_status(), None, "it has not finished");
    house.pod().terminate();
    let status = house.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(130), "{}", house.pod().tail());
    house.0.broker_mut().resume();
}

#[tokio::test]
async fn a_pod_that_stops_is_not_ready_and_tells_of_its_services_until_they_have_ended() {
    let mut house = House::start(blueprint(StoreKind::Shared)).await;
    wait_for("a pod that is ready", SOON, async || match house.get("/readyz").await.status {
        200 => Ok(()),
        other => Err(other),
    })
    .await;
    // What was read cannot be sent yet: the stop lasts for as long as we look.
    house.0.broker_mut().pause().await;
    house.insert("order-1", 1).await;
    house.pod().terminate();
    house.pod().wait_for_line("stopping", SOON).await;
    wait_for("a pod that is not ready", SOON, async || {
        let Answer { status, body } = house.get("/readyz").await;
        let report: serde_json::Value = serde_json::from_str(&body).unwrap();
        if status == 503 && report["stopping"] == true { Ok(()) } else { Err(report) }
    })
    .await;
    assert_eq!(house.get("/healthz").await.status, 200, "it is at work");
    house.0.broker_mut().resume();
    let status = house.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{}", house.pod().tail());
    let said: Vec<String> = house.pod().lines().into_iter().map(|line| line.text).collect();
    let at = |message: &str| {
        let message = format!("\"message\":\"{message}\"");
        said.iter().position(|line| line.contains(&message)).unwrap_or_else(|| panic!("no {message}"))
    };
    let order = [
        "dashboard, metrics and health are served",
        "pod started",
        "gained leadership",
        "stopping",
        "lost leadership",
        "stopped",
    ];
    let places = order.map(at);
    assert!(places.is_sorted(), "{order:?} at {places:?}");
}
