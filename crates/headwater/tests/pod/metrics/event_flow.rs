//! Metrics moved by regular and irregular events.

use mongodb::bson::doc;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, wait_for_rise, wait_for_value};
use crate::fixture::{PodFixture, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_events_captured_total",
    "headwater_events_published_total",
    "headwater_transfers_total",
    "headwater_checkpoint_saves_total",
    "headwater_sessions_accepted_total",
    "headwater_messages_received_total",
    "headwater_messages_settled_total",
    "headwater_events_applied_total",
    "headwater_transactions_total{outcome=\"committed\"}",
    "headwater_read_model_documents",
    // By irregular events.
    "headwater_changes_ignored_total",
    "headwater_events_rejected_total",
    "headwater_rejected_events",
    "headwater_events_oversize_total",
    "headwater_parked_aggregates",
    "headwater_parked_events",
    "headwater_events_parked_total",
    "headwater_problems",
    "headwater_gaps_healed_total",
    "headwater_events_duplicate_total",
    "headwater_events_regressed_total",
];

/// Adding a value that is not a number fails, so the event is parked.
const COUNTING: &str = "read_models: { orders: { when: { Placed: { $set: { seen: true } }, Paid: { $inc: { sum: $$event.payload.customer } } } } }\n";

fn counting() -> TestClusterConfig {
    TestClusterConfig { extra_yaml: COUNTING.into(), ..cluster_config(MongoTopology::Shared) }
}

#[tokio::test]
async fn regular_events_are_counted_once_at_every_station() {
    let fixture = PodFixture::start(counting()).await;
    let before = MetricsSnapshot::read(&fixture).await;
    for order in 0..10 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    let of_events = [
        "headwater_events_captured_total",
        "headwater_events_published_total",
        "headwater_messages_received_total",
        "headwater_messages_settled_total",
        "headwater_events_applied_total",
    ];
    // Every station counts each of the ten events once.
    for sample in of_events {
        assert_eq!(before.value(sample), 0.0, "{sample}");
        wait_for_value(&fixture, sample, 10.0).await;
    }
    let others = [
        "headwater_transfers_total",
        "headwater_checkpoint_saves_total",
        "headwater_sessions_accepted_total",
        "headwater_transactions_total{outcome=\"committed\"}",
    ];
    let after = wait_for_rise(&fixture, &before, &others).await;
    assert!((1.0..=10.0).contains(&after.value("headwater_transfers_total")));
    assert!((1.0..=10.0).contains(&after.value("headwater_transactions_total{outcome=\"committed\"}")));
    wait_for_value(&fixture, "headwater_read_model_documents{read_model=\"orders\"}", 10.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn irregular_events_are_counted_by_kind() {
    // Its own server, because the oplog of a shared one may add a problem to the count.
    let fixture = PodFixture::start(TestClusterConfig { mongo: MongoTopology::SingleNode, ..counting() }).await;
    let events = fixture.0.events();
    // An update, where only inserts are expected.
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    events.update_one(doc! { "aggregateId": "order-1" }, doc! { "$set": { "late": true } }).await.unwrap();
    wait_for_value(&fixture, "headwater_changes_ignored_total", 1.0).await;

    // Without an aggregate id.
    events.insert_one(doc! { "version": 1_i64, "type": "Placed" }).await.unwrap();
    wait_for_value(&fixture, "headwater_events_rejected_total", 1.0).await;
    wait_for_value(&fixture, "headwater_rejected_events{reason=\"no_aggregate_id\"}", 1.0).await;

    // Too large for a message.
    let large = doc! { "customer": "x".repeat(5 << 20) };
    let large = doc! { "aggregateId": "order-2", "version": 1_i64, "type": "Placed", "payload": large };
    events.insert_one(large).await.unwrap();
    fixture.wait_for_applied("order-2").await;
    wait_for_value(&fixture, "headwater_events_oversize_total", 1.0).await;

    // An event that cannot be applied, and one behind it.
    fixture.insert_type("Paid", "order-1", 2).await;
    fixture.insert("order-1", 3).await;
    wait_for_value(&fixture, "headwater_events_parked_total", 2.0).await;
    wait_for_value(&fixture, "headwater_parked_aggregates{read_model=\"orders\"}", 1.0).await;
    wait_for_value(&fixture, "headwater_parked_events{read_model=\"orders\"}", 2.0).await;
    // The parked and the rejected event.
    wait_for_value(&fixture, "headwater_problems{severity=\"warning\"}", 2.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn gaps_duplicates_and_regressions_are_counted() {
    let mut fixture = PodFixture::start(counting()).await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    // Version 3 arrives before version 2. While the broker is paused, version 2 is read from the source; later it arrives as a duplicate.
    fixture.insert("order-1", 3).await;
    wait_for("the third to be received", SOON, async || {
        match fixture.metric("headwater_messages_received_total").await {
            Some(received) if received >= 2.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 2).await;
    wait_for_value(&fixture, "headwater_gaps_healed_total", 1.0).await;
    fixture.0.broker_mut().resume();
    wait_for_value(&fixture, "headwater_events_duplicate_total", 1.0).await;

    // The aggregate is deleted and created again.
    fixture.0.events().delete_many(doc! { "aggregateId": "order-1" }).await.unwrap();
    fixture.insert("order-1", 1).await;
    wait_for_value(&fixture, "headwater_events_regressed_total", 1.0).await;
    fixture.stop().await;
}
