//! The audit: aggregates compared, found and healed, and a round that does not end.

use mongodb::bson::{Document, doc};
use testkit::cluster::{MongoTopology, TestClusterConfig};

use super::{MetricNames, MetricsSnapshot, wait_for_rise, wait_for_value};
use crate::fixture::{PodFixture, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_audited_aggregates_total{result=\"current\"}",
    "headwater_audited_aggregates_total{result=\"found\"}",
    "headwater_audit_age_seconds",
    "headwater_audit_found_aggregates",
    "headwater_audit_healed_events_total",
    "headwater_audit_overdue",
];

fn audited() -> TestClusterConfig {
    let audit = "period: 2s, budget_percent: 100".into();
    TestClusterConfig { audit, ..cluster_config(MongoTopology::Shared) }
}

#[tokio::test]
async fn what_the_audit_finds_and_heals_is_counted() {
    let fixture = PodFixture::start(audited()).await;
    let start = MetricsSnapshot::read(&fixture).await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    let current = ["headwater_audited_aggregates_total{result=\"current\"}", "headwater_audit_age_seconds"];
    let before = wait_for_rise(&fixture, &start, &current).await;

    // The read model and its cursor lose the aggregate.
    let views = fixture.0.mongo().client().database(&fixture.views_database());
    for collection in ["orders", "_headwater_cursors"] {
        views.collection::<Document>(collection).delete_many(doc! {}).await.unwrap();
    }
    let found = [
        "headwater_audited_aggregates_total{result=\"found\"}",
        "headwater_audit_found_aggregates",
        "headwater_audit_healed_events_total",
    ];
    wait_for_rise(&fixture, &before, &found).await;
    fixture.wait_for_applied("order-1").await;
    fixture.stop().await;
}

#[tokio::test]
async fn an_audit_that_waits_for_a_session_is_overdue() {
    let fixture = PodFixture::start(audited()).await;
    wait_for_value(&fixture, "headwater_audit_overdue", 0.0).await;
    let bus = fixture.bus_client();
    let held = bus.accept_session(&fixture.0.broker().subscription(), "order-1").await.unwrap();
    fixture.insert("order-1", 1).await;
    wait_for_value(&fixture, "headwater_audit_overdue", 1.0).await;
    held.close().await.unwrap();
    wait_for_value(&fixture, "headwater_audit_overdue", 0.0).await;
    fixture.stop().await;
}
