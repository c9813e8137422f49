//! Signed messages: the pod applies what it has signed itself, and reports what another program sends.

use mongodb::bson::doc;
use servicebus::Message;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use super::{MetricNames, wait_for_value};
use crate::fixture::{CUSTOMER, PodFixture, READ_MODELS, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &["headwater_messages_unsigned_total", "headwater_messages_unverified_total"];

const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

#[tokio::test]
async fn an_unsigned_message_is_refused_and_reported() {
    let extra_yaml = format!("{READ_MODELS}message_signing: {{ keys: \"a:{KEY}\" }}\n");
    let fixture = PodFixture::start(TestClusterConfig { extra_yaml, ..cluster_config(MongoTopology::Shared) }).await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    // Too large for a message: its body is elsewhere, and only its hash is signed.
    let payload = doc! { "customer": CUSTOMER, "notes": "n".repeat(400_000) };
    let large = doc! { "aggregateId": "order-2", "version": 1_i64, "type": "Placed", "payload": payload };
    fixture.0.events().insert_one(large).await.unwrap();
    fixture.wait_for_applied("order-2").await;
    for metric in MOVED {
        assert_eq!(fixture.metric(metric).await, Some(0.0), "{metric}");
    }

    let bus = fixture.bus_client();
    let forged = Message::new("hello").with_session("order-1").with_id("forged").with_property("headwater-format", 1);
    bus.sender(fixture.0.broker().topic()).send(&forged.encode()).await.unwrap();
    for metric in MOVED {
        wait_for_value(&fixture, metric, 1.0).await;
    }
    wait_for("the problem in the status", SOON, async || {
        let status = fixture.json("/api/status").await;
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        if problems.iter().any(|problem| problem["code"] == "unverified") { Ok(()) } else { Err(problems) }
    })
    .await;
    fixture.insert("order-1", 2).await;
    fixture.insert("order-3", 1).await;
    fixture.wait_for_applied("order-3").await;
    let printed = fixture.run_command(&["config", "print"]).await;
    assert!(printed.contains("message_signing") && !printed.contains(KEY), "{printed}");
    fixture.stop().await;
}
