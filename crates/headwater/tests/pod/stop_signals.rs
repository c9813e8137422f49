//! A pod stops on signals.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use testkit::cluster::MongoTopology;
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, PodReply, SOON, cluster_config};

#[tokio::test]
async fn a_second_signal_ends_a_pod_that_cannot_drain() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    // Events cannot be sent, so a regular stop would take long.
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    fixture.pod().terminate();
    fixture.pod().wait_for_line("stopping", SOON).await;
    // Signals within a quarter of a second count as one. A person who presses Ctrl-C twice waits less than a second.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(fixture.pod().exit_status(), None, "it has not finished");
    fixture.pod().terminate();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(130), "{}", fixture.pod().tail());
    fixture.0.broker_mut().resume();
}

#[tokio::test]
async fn a_stopping_pod_is_unready_and_serves_until_drained() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    wait_for("the pod to be ready", SOON, async || match fixture.get("/readyz").await.status {
        200 => Ok(()),
        other => Err(other),
    })
    .await;
    // Events cannot be sent yet, so the stop lasts as long as this test needs.
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    fixture.pod().terminate();
    fixture.pod().wait_for_line("stopping", SOON).await;
    wait_for("the pod to be unready", SOON, async || {
        let PodReply { status, body } = fixture.get("/readyz").await;
        let report: serde_json::Value = serde_json::from_str(&body).unwrap();
        if status == 503 && report["stopping"] == true { Ok(()) } else { Err(report) }
    })
    .await;
    assert_eq!(fixture.get("/healthz").await.status, 200, "it is draining");
    fixture.0.broker_mut().resume();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{}", fixture.pod().tail());
    let logged: Vec<String> = fixture.pod().lines().into_iter().map(|line| line.text).collect();
    let at = |message: &str| {
        let message = format!("\"message\":\"{message}\"");
        logged.iter().position(|line| line.contains(&message)).unwrap_or_else(|| panic!("no {message}"))
    };
    let order = [
        "admin server listening: dashboard, metrics and health",
        "pod started",
        "lease acquired",
        "stopping",
        "lease given up",
        "stopped",
    ];
    let positions = order.map(at);
    assert!(positions.is_sorted(), "{order:?} at {positions:?}");
}

/// The source is not that of the checkpoint any more: the pod drains, and then ends by itself.
#[tokio::test]
async fn a_pod_that_ends_by_itself_is_unready_while_it_drains() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    wait_for("the pod to be ready", SOON, async || match fixture.get("/readyz").await.status {
        200 => Ok(()),
        other => Err(other),
    })
    .await;
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    let checkpoints = fixture.0.coordination().collection::<Document>("checkpoints");
    let set = doc! { "$set": { "cluster": "replica set of somebody else" } };
    assert_eq!(checkpoints.update_one(doc! { "_id": "shop" }, set).await.unwrap().matched_count, 1);
    wait_for("the pod to be unready", SOON, async || {
        let PodReply { status, body } = fixture.get("/readyz").await;
        let report: serde_json::Value = serde_json::from_str(&body).unwrap();
        if status == 503 && report["stopping"] == true { Ok(()) } else { Err(report) }
    })
    .await;
    fixture.0.broker_mut().resume();
    let status = fixture.pod().wait_for_exit(SOON).await;
    assert_eq!(status.code(), Some(3), "{}", fixture.pod().tail());
}
