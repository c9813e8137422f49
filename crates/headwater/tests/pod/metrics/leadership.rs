//! What pods move by coming, leading and going.

use std::cell::Cell;
use std::time::Duration;

use mongodb::bson::doc;
use testkit::cluster::{LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, becomes};
use crate::fixture::{PodFixture, SOON, blueprint};

pub(super) const MOVED: MetricNames = &[
    "headwater_leader_present",
    "headwater_term",
    "headwater_leads",
    "headwater_terms_total",
    "headwater_pods",
    "headwater_pods_silent",
    "headwater_problems",
    "headwater_status_age_seconds",
    "headwater_build_info",
];

#[tokio::test]
async fn a_leader_that_steps_down_is_gone_and_leads_again_in_a_higher_term() {
    // There is no other pod: it keeps away for a ttl, long enough to be seen, and then leads again.
    let lease = LeaseTimings {
        ttl: Duration::from_secs(8),
        renew_deadline: Duration::from_secs(6),
        heartbeat: Duration::from_secs(1),
    };
    // Of its own, as problems are counted: an oplog that others fill may be one.
    let fixture = PodFixture::start(TestClusterConfig { lease, ..blueprint(MongoTopology::SingleNode) }).await;
    for sample in ["headwater_leader_present", "headwater_leads", "headwater_terms_total"] {
        becomes(&fixture, sample, 1.0).await;
    }
    let before = MetricsSnapshot::of(&fixture).await;
    let asked = tokio::spawn({
        let config = fixture.0.pod(0).config().to_owned();
        async move {
            let arguments = ["step-down", "--config", config.to_str().unwrap()];
            testkit::process::Program::new(crate::BINARY).args(arguments).start().unwrap().wait_for_exit(SOON).await
        }
    });
    becomes(&fixture, "headwater_leads", 0.0).await;
    let between = wait_for("nobody to lead", SOON, async || match MetricsSnapshot::of(&fixture).await {
        reading if reading.get("headwater_leader_present") == Some(0.0) => Ok(reading),
        reading => Err(reading.get("headwater_leader_present")),
    })
    .await;
    assert_eq!(between.get("headwater_term"), None, "nobody's");
    assert_eq!(between.get("headwater_problems{severity=\"critical\"}"), Some(1.0));
    becomes(&fixture, "headwater_leads", 1.0).await;
    becomes(&fixture, "headwater_terms_total", 2.0).await;
    becomes(&fixture, "headwater_leader_present", 1.0).await;
    becomes(&fixture, "headwater_term", before.value("headwater_term") + 1.0).await;
    assert!(asked.await.unwrap().success());
    fixture.stop().await;
}

#[tokio::test]
async fn what_was_counted_in_one_term_is_counted_on_in_the_next() {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    let foreign = doc! { "$set": { "odd": true } };
    let changed = fixture.0.events().update_one(doc! { "aggregateId": "order-0" }, foreign).await.unwrap();
    assert_eq!(changed.modified_count, 1);
    becomes(&fixture, "headwater_events_captured_total", 5.0).await;
    becomes(&fixture, "headwater_events_foreign_total", 1.0).await;
    fixture.ask(&["step-down"]).await;
    becomes(&fixture, "headwater_terms_total", 2.0).await;
    fixture.insert("order-0", 2).await;
    // As soon as the new term has read anything.
    let after = wait_for("an event of the second term", SOON, async || {
        let now = MetricsSnapshot::of(&fixture).await;
        if now.value("headwater_events_published_total") == 6.0 { Ok(now) } else { Err(now) }
    })
    .await;
    assert_eq!(after.get("headwater_events_captured_total"), Some(6.0));
    assert_eq!(after.get("headwater_events_foreign_total"), Some(1.0));
    fixture.stop().await;
}

#[tokio::test]
async fn pods_are_counted_while_they_are_heard_of_and_missed_when_they_are_not() {
    let mut fixture = PodFixture::start(TestClusterConfig { pods: 2, ..blueprint(MongoTopology::Shared) }).await;
    becomes(&fixture, "headwater_pods", 2.0).await;
    becomes(&fixture, "headwater_pods_silent", 0.0).await;
    for pod in 0..2 {
        let version = env!("CARGO_PKG_VERSION");
        let who = format!("headwater_build_info{{pod=\"pod-{pod}\",version=\"{version}\"}}");
        assert_eq!(MetricsSnapshot::of_pod(&fixture, pod).await.get(&who), Some(1.0), "{who}");
    }
    fixture.0.pod_mut(1).kill().await;
    becomes(&fixture, "headwater_pods", 1.0).await;
    becomes(&fixture, "headwater_pods_silent", 1.0).await;

    // Figures grow older between two looks, and are young again after the next.
    let age =
        async || MetricsSnapshot::of(&fixture).await.get("headwater_status_age_seconds").expect("it was gathered");
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
