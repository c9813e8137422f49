//! Metrics moved by pods that start, lead and stop.

use std::cell::Cell;
use std::time::Duration;

use mongodb::bson::doc;
use testkit::cluster::{LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, wait_for_value};
use crate::fixture::{PodFixture, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_leader_present",
    "headwater_term",
    "headwater_is_leader",
    "headwater_terms_total",
    "headwater_pods",
    "headwater_pods_silent",
    "headwater_problems",
    "headwater_status_age_seconds",
    "headwater_build_info",
];

#[tokio::test]
async fn a_step_down_moves_the_leadership_metrics() {
    // There is no other pod. It stays a standby for a ttl, long enough to be observed, and then leads again.
    let lease = LeaseTimings {
        ttl: Duration::from_secs(8),
        renew_deadline: Duration::from_secs(6),
        heartbeat: Duration::from_secs(1),
    };
    // Its own server, because the oplog of a shared one may add a problem to the count.
    let fixture = PodFixture::start(TestClusterConfig { lease, ..cluster_config(MongoTopology::SingleNode) }).await;
    for sample in ["headwater_leader_present", "headwater_is_leader", "headwater_terms_total"] {
        wait_for_value(&fixture, sample, 1.0).await;
    }
    let before = MetricsSnapshot::read(&fixture).await;
    let asked = tokio::spawn({
        let config = fixture.0.pod(0).config().to_owned();
        async move {
            let arguments = ["step-down", "--config", config.to_str().unwrap()];
            testkit::process::Program::new(crate::BINARY).args(arguments).start().unwrap().wait_for_exit(SOON).await
        }
    });
    wait_for_value(&fixture, "headwater_is_leader", 0.0).await;
    let between = wait_for("no leader", SOON, async || match MetricsSnapshot::read(&fixture).await {
        reading if reading.get("headwater_leader_present") == Some(0.0) => Ok(reading),
        reading => Err(reading.get("headwater_leader_present")),
    })
    .await;
    assert_eq!(between.get("headwater_term"), None, "no leader, no term");
    assert_eq!(between.get("headwater_problems{severity=\"critical\"}"), Some(1.0));
    wait_for_value(&fixture, "headwater_is_leader", 1.0).await;
    wait_for_value(&fixture, "headwater_terms_total", 2.0).await;
    wait_for_value(&fixture, "headwater_leader_present", 1.0).await;
    wait_for_value(&fixture, "headwater_term", before.value("headwater_term") + 1.0).await;
    assert!(asked.await.unwrap().success());
    fixture.stop().await;
}

#[tokio::test]
async fn counters_continue_in_the_next_term() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    let foreign = doc! { "$set": { "odd": true } };
    let changed = fixture.0.events().update_one(doc! { "aggregateId": "order-0" }, foreign).await.unwrap();
    assert_eq!(changed.modified_count, 1);
    wait_for_value(&fixture, "headwater_events_captured_total", 5.0).await;
    wait_for_value(&fixture, "headwater_changes_ignored_total", 1.0).await;
    fixture.run_command(&["step-down"]).await;
    wait_for_value(&fixture, "headwater_terms_total", 2.0).await;
    fixture.insert("order-0", 2).await;
    // As soon as the new term has read an event.
    let after = wait_for("an event of the second term", SOON, async || {
        let now = MetricsSnapshot::read(&fixture).await;
        if now.value("headwater_events_published_total") == 6.0 { Ok(now) } else { Err(now) }
    })
    .await;
    assert_eq!(after.get("headwater_events_captured_total"), Some(6.0));
    assert_eq!(after.get("headwater_changes_ignored_total"), Some(1.0));
    fixture.stop().await;
}

#[tokio::test]
async fn pods_with_and_without_a_heartbeat_are_counted() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..cluster_config(MongoTopology::Shared) }).await;
    wait_for_value(&fixture, "headwater_pods", 2.0).await;
    wait_for_value(&fixture, "headwater_pods_silent", 0.0).await;
    for pod in 0..2 {
        let version = env!("CARGO_PKG_VERSION");
        let who = format!("headwater_build_info{{pod=\"pod-{pod}\",version=\"{version}\"}}");
        assert_eq!(MetricsSnapshot::read_pod(&fixture, pod).await.get(&who), Some(1.0), "{who}");
    }
    fixture.0.pod_mut(1).kill().await;
    wait_for_value(&fixture, "headwater_pods", 1.0).await;
    wait_for_value(&fixture, "headwater_pods_silent", 1.0).await;

    // The status ages between two collections.
    let age =
        async || MetricsSnapshot::read(&fixture).await.get("headwater_status_age_seconds").expect("it was gathered");
    let last = Cell::new(age().await);
    wait_for("figures that are younger than they were", SOON, async || {
        let now = age().await;
        if now < last.replace(now) { Ok(()) } else { Err(now) }
    })
    .await;
    let first = age().await;
    wait_for("figures that grow older", SOON, async || match age().await {
        now if now > first => Ok(()),
        now => Err(now),
    })
    .await;
    fixture.0.pod_mut(0).kill().await;
}
