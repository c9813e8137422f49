//! What a bus that is slow, busy or forgetful moves.

use mongodb::bson::{Document, doc};
use testkit::cluster::MongoTopology;
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, becomes, rise};
use crate::fixture::{PodFixture, SOON, blueprint};

pub(super) const MOVED: MetricNames = &[
    "headwater_in_flight_events",
    "headwater_in_flight_bytes",
    "headwater_lag_seconds",
    "headwater_lag_events",
    "headwater_checkpoint_age_seconds",
    "headwater_events_resent_total{why=\"uncertain\"}",
    "headwater_events_resent_total{why=\"refused\"}",
    "headwater_session_locks_lost_total",
    "headwater_sessions_dropped_total",
    "headwater_messages_redelivered_total",
    "headwater_subscription_messages",
    "headwater_sessions_held",
    "headwater_transactions_total{outcome=\"conflict\"}",
    "headwater_service_ready",
];

#[tokio::test]
async fn events_pile_up_before_a_bus_that_stands_still() {
    let mut fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    let before = MetricsSnapshot::of(&fixture).await;
    assert_eq!(before.value("headwater_in_flight_events"), 0.0);
    fixture.0.broker_mut().pause().await;
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 1).await;
    }
    becomes(&fixture, "headwater_in_flight_events", 5.0).await;
    let held = rise(&fixture, &before, &["headwater_in_flight_bytes", "headwater_lag_seconds"]).await;
    // What waits on a bus that does not answer is not known, and so neither is the sum.
    wait_for("a lag that is not known", SOON, async || {
        match MetricsSnapshot::of(&fixture).await.get("headwater_lag_events") {
            None => Ok(()),
            known => Err(known),
        }
    })
    .await;
    // Nothing is acknowledged, so nothing is saved: it grows older.
    rise(&fixture, &held, &["headwater_checkpoint_age_seconds", "headwater_lag_seconds"]).await;
    fixture.0.broker_mut().resume();
    for sample in ["headwater_in_flight_events", "headwater_in_flight_bytes", "headwater_lag_events"] {
        becomes(&fixture, sample, 0.0).await;
    }
    // A bus that answers, and takes nothing.
    fixture.0.broker().inject_fault("{\"kind\": \"server_busy\", \"times\": 1000000}").await.unwrap();
    for order in 0..5 {
        fixture.insert(&format!("order-{order}"), 2).await;
    }
    becomes(&fixture, "headwater_lag_events", 5.0).await;
    fixture.0.broker().clear_faults().await.unwrap();
    becomes(&fixture, "headwater_lag_events", 0.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_sent_again_and_what_comes_again_is_counted() {
    let mut fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    for (fault, sample) in [
        ("server_busy", "headwater_events_resent_total{why=\"refused\"}"),
        ("lose_acknowledgement", "headwater_events_resent_total{why=\"uncertain\"}"),
    ] {
        assert_eq!(fixture.metric(sample).await, Some(0.0));
        fixture.0.broker().inject_fault(&format!("{{\"kind\": \"{fault}\"}}")).await.unwrap();
        fixture.insert(fault, 1).await;
        fixture.applied(fault).await;
        becomes(&fixture, sample, 1.0).await;
    }
    // A lock that is lost while its events are in hand: the session is let go, and they come again.
    let before = MetricsSnapshot::of(&fixture).await;
    fixture.0.broker().inject_fault("{\"kind\": \"expire_session_lock\", \"times\": 3}").await.unwrap();
    fixture.insert("locked", 1).await;
    fixture.applied("locked").await;
    let lost = ["headwater_session_locks_lost_total", "headwater_messages_redelivered_total"];
    rise(&fixture, &before, &lost).await;
    // A connection that is cut when the session would settle; before that comes the send.
    fixture.0.broker().inject_fault("{\"kind\": \"drop_connection\", \"skip\": 1}").await.unwrap();
    fixture.insert("cut", 1).await;
    rise(&fixture, &before, &["headwater_sessions_dropped_total"]).await;
    fixture.applied("cut").await;

    // A bus that is away.
    becomes(&fixture, "headwater_service_ready{service=\"producer\"}", 1.0).await;
    fixture.0.broker_mut().kill().await;
    becomes(&fixture, "headwater_service_ready{service=\"producer\"}", 0.0).await;
    fixture.0.broker_mut().restart().await.unwrap();
    becomes(&fixture, "headwater_service_ready{service=\"producer\"}", 1.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn messages_wait_while_somebody_holds_what_they_would_write() {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    let before = MetricsSnapshot::of(&fixture).await;
    let client = fixture.0.mongo().client();
    let orders = client.database(&fixture.views()).collection::<Document>("orders");
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
    rise(&fixture, &before, &waits).await;
    fixture.applied("order-2").await;
    session.abort_transaction().await.unwrap();
    fixture.applied("order-1").await;
    for sample in ["headwater_subscription_messages", "headwater_sessions_held"] {
        becomes(&fixture, sample, 0.0).await;
    }
    fixture.stop().await;
}
