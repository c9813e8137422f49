//! Metrics moved by a Service Bus that is slow, busy, or loses acknowledgements.

use mongodb::bson::{Document, doc};
use testkit::cluster::MongoTopology;
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, wait_for_rise, wait_for_value};
use crate::fixture::{PodFixture, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_in_flight_events",
    "headwater_in_flight_bytes",
    "headwater_lag_seconds",
    "headwater_lag_events",
    "headwater_checkpoint_age_seconds",
    "headwater_events_republished_total{reason=\"unacknowledged\"}",
    "headwater_events_republished_total{reason=\"refused\"}",
    "headwater_session_locks_lost_total",
    "headwater_sessions_dropped_total",
    "headwater_messages_redelivered_total",
    "headwater_subscription_messages",
    "headwater_sessions_held",
    "headwater_transactions_total{outcome=\"conflict\"}",
    "headwater_service_ready",
];

#[tokio::test]
async fn in_flight_and_lag_rise_while_the_bus_is_paused() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    let before = MetricsSnapshot::read(&fixture).await;
    assert_eq!(before.value("headwater_in_flight_events"), 0.0);
    fixture.0.broker_mut().pause().await;
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    wait_for_value(&fixture, "headwater_in_flight_events", 5.0).await;
    let held = wait_for_rise(&fixture, &before, &["headwater_in_flight_bytes", "headwater_lag_seconds"]).await;
    // A paused broker reports no message count, so the sum is unknown.
    wait_for("an unknown lag", SOON, async || {
        match MetricsSnapshot::read(&fixture).await.get("headwater_lag_events") {
            None => Ok(()),
            known => Err(known),
        }
    })
    .await;
    // Nothing is acknowledged, so no checkpoint is saved.
    wait_for_rise(&fixture, &held, &["headwater_checkpoint_age_seconds", "headwater_lag_seconds"]).await;
    fixture.0.broker_mut().resume();
    for sample in ["headwater_in_flight_events", "headwater_in_flight_bytes", "headwater_lag_events"] {
        wait_for_value(&fixture, sample, 0.0).await;
    }
    // The broker responds and accepts no message.
    fixture.0.broker().inject_fault("{\"kind\": \"server_busy\", \"times\": 1000000}").await.unwrap();
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 2).await;
    }
    wait_for_value(&fixture, "headwater_lag_events", 5.0).await;
    fixture.0.broker().clear_faults().await.unwrap();
    wait_for_value(&fixture, "headwater_lag_events", 0.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn republished_and_redelivered_messages_are_counted() {
    let mut fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    for (fault, sample) in [
        ("server_busy", "headwater_events_republished_total{reason=\"refused\"}"),
        ("lose_acknowledgement", "headwater_events_republished_total{reason=\"unacknowledged\"}"),
    ] {
        assert_eq!(fixture.metric(sample).await, Some(0.0));
        fixture.0.broker().inject_fault(&format!("{{\"kind\": \"{fault}\"}}")).await.unwrap();
        fixture.insert(fault, 1).await;
        fixture.wait_for_applied(fault).await;
        wait_for_value(&fixture, sample, 1.0).await;
    }
    // The session lock expires while events are unsettled: the session closes, and they are redelivered.
    let before = MetricsSnapshot::read(&fixture).await;
    fixture.0.broker().inject_fault("{\"kind\": \"expire_session_lock\", \"times\": 3}").await.unwrap();
    fixture.insert("locked", 1).await;
    fixture.wait_for_applied("locked").await;
    let lost = ["headwater_session_locks_lost_total", "headwater_messages_redelivered_total"];
    wait_for_rise(&fixture, &before, &lost).await;
    // Cut the connection when the session settles; `skip` lets the send pass.
    fixture.0.broker().inject_fault("{\"kind\": \"drop_connection\", \"skip\": 1}").await.unwrap();
    fixture.insert("cut", 1).await;
    wait_for_rise(&fixture, &before, &["headwater_sessions_dropped_total"]).await;
    fixture.wait_for_applied("cut").await;

    // The broker is down.
    wait_for_value(&fixture, "headwater_service_ready{service=\"producer\"}", 1.0).await;
    fixture.0.broker_mut().kill().await;
    wait_for_value(&fixture, "headwater_service_ready{service=\"producer\"}", 0.0).await;
    fixture.0.broker_mut().restart().await.unwrap();
    wait_for_value(&fixture, "headwater_service_ready{service=\"producer\"}", 1.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_write_conflict_holds_messages_and_sessions() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    let before = MetricsSnapshot::read(&fixture).await;
    let client = fixture.0.mongo().client();
    let orders = client.database(&fixture.views_database()).collection::<Document>("orders");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    orders.insert_one(doc! { "_id": "order-1" }).session(&mut session).await.unwrap();
    fixture.insert("order-1", 1).await;
    fixture.insert("order-2", 1).await;
    let waits = [
        "headwater_subscription_messages",
        "headwater_sessions_held",
        "headwater_transactions_total{outcome=\"conflict\"}",
    ];
    wait_for_rise(&fixture, &before, &waits).await;
    fixture.wait_for_applied("order-2").await;
    session.abort_transaction().await.unwrap();
    fixture.wait_for_applied("order-1").await;
    for sample in ["headwater_subscription_messages", "headwater_sessions_held"] {
        wait_for_value(&fixture, sample, 0.0).await;
    }
    fixture.stop().await;
}
