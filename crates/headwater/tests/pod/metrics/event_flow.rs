//! What events move on their way, and what odd ones do.

use mongodb::bson::doc;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, becomes, rise};
use crate::fixture::{PodFixture, SOON, blueprint};

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
    // By odd ones.
    "headwater_events_foreign_total",
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

/// What is no number cannot be added.
const COUNTING: &str = "read_models: { orders: { when: { Placed: { $set: { seen: true } }, Paid: { $inc: { sum: $$event.payload.customer } } } } }\n";

fn counting() -> TestClusterConfig {
    TestClusterConfig { extra_yaml: COUNTING.into(), ..blueprint(MongoTopology::Shared) }
}

#[tokio::test]
async fn a_day_of_events_moves_what_counts_them() {
    let fixture = PodFixture::start(counting()).await;
    let before = MetricsSnapshot::of(&fixture).await;
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
    // Each of ten events once, at every station.
    for sample in of_events {
        assert_eq!(before.value(sample), 0.0, "{sample}");
        becomes(&fixture, sample, 10.0).await;
    }
    let others = [
        "headwater_transfers_total",
        "headwater_checkpoint_saves_total",
        "headwater_sessions_accepted_total",
        "headwater_transactions_total{outcome=\"committed\"}",
    ];
    let after = rise(&fixture, &before, &others).await;
    assert!((1.0..=10.0).contains(&after.value("headwater_transfers_total")));
    assert!((1.0..=10.0).contains(&after.value("headwater_transactions_total{outcome=\"committed\"}")));
    becomes(&fixture, "headwater_read_model_documents{read_model=\"orders\"}", 10.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn events_that_are_not_as_they_should_be_are_counted_each_in_its_way() {
    // Of its own, as problems are counted: an oplog that others fill may be one.
    let fixture = PodFixture::start(TestClusterConfig { mongo: MongoTopology::SingleNode, ..counting() }).await;
    let events = fixture.0.events();
    // Changed, where only inserts are expected.
    fixture.insert("order-1", 1).await;
    fixture.applied("order-1").await;
    events.update_one(doc! { "aggregateId": "order-1" }, doc! { "$set": { "late": true } }).await.unwrap();
    becomes(&fixture, "headwater_events_foreign_total", 1.0).await;

    // Nobody's.
    events.insert_one(doc! { "version": 1_i64, "type": "Placed" }).await.unwrap();
    becomes(&fixture, "headwater_events_rejected_total", 1.0).await;
    becomes(&fixture, "headwater_rejected_events{reason=\"no_aggregate_id\"}", 1.0).await;

    // Too large for a message.
    let large = doc! { "customer": "x".repeat(5 << 20) };
    let large = doc! { "aggregateId": "order-2", "version": 1_i64, "type": "Placed", "payload": large };
    events.insert_one(large).await.unwrap();
    fixture.applied("order-2").await;
    becomes(&fixture, "headwater_events_oversize_total", 1.0).await;

    // Not to be applied, and one behind it.
    fixture.insert_of("Paid", "order-1", 2).await;
    fixture.insert("order-1", 3).await;
    becomes(&fixture, "headwater_events_parked_total", 2.0).await;
    becomes(&fixture, "headwater_parked_aggregates{read_model=\"orders\"}", 1.0).await;
    becomes(&fixture, "headwater_parked_events{read_model=\"orders\"}", 2.0).await;
    // That, and the rejected one.
    becomes(&fixture, "headwater_problems{severity=\"warning\"}", 2.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn gaps_duplicates_and_sequences_that_go_back_are_counted() {
    let fixture = PodFixture::start(counting()).await;
    fixture.insert("order-1", 1).await;
    fixture.applied("order-1").await;
    // The third comes before the second, which is then found in the source, and comes once more.
    fixture.insert("order-1", 3).await;
    wait_for("the third to be received", SOON, async || {
        match fixture.metric("headwater_messages_received_total").await {
            Some(received) if received >= 2.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    fixture.insert("order-1", 2).await;
    becomes(&fixture, "headwater_gaps_healed_total", 1.0).await;
    becomes(&fixture, "headwater_events_duplicate_total", 1.0).await;

    // It is taken away, and created again.
    fixture.0.events().delete_many(doc! { "aggregateId": "order-1" }).await.unwrap();
    fixture.insert("order-1", 1).await;
    becomes(&fixture, "headwater_events_regressed_total", 1.0).await;
    fixture.stop().await;
}
