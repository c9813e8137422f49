//! The count and the age that a pod reports for each read model.

use serde_json::Value as Json;
use testkit::cluster::{MongoTopology, TestClusterConfig};
use testkit::wait::wait_for;

use crate::fixture::{PodFixture, SOON, cluster_config};
use crate::metrics::wait_for_value;

/// One takes every order, the other only shipped ones.
const TWO_READ_MODELS: &str = "read_models:
  orders: { when: { Placed: { $set: { customer: $$event.payload.customer } } } }
  shipped: { when: { Shipped: { $set: { by: $$event.payload.customer } } } }
";

/// The number of documents, and the age of the last applied event.
async fn read_model_status(fixture: &PodFixture, model: &str) -> (Option<u64>, Option<f64>) {
    let status = fixture.json("/api/status").await;
    let models = status["read_models"].as_array().cloned().unwrap_or_default();
    let model = models.into_iter().find(|found| found["name"] == model).unwrap_or(Json::Null);
    assert_eq!(model["applied"].is_string(), model["applied_seconds_ago"].is_number(), "{model}");
    (model["documents"].as_u64(), model["applied_seconds_ago"].as_f64())
}

#[tokio::test]
async fn each_read_model_has_its_own_count_and_age() {
    let fixture = PodFixture::start(TestClusterConfig {
        extra_yaml: TWO_READ_MODELS.into(),
        ..cluster_config(MongoTopology::Shared)
    })
    .await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    let first =
        wait_for("the first read model's age", SOON, async || match read_model_status(&fixture, "orders").await {
            (Some(1), Some(age)) => Ok(age),
            other => Err(other),
        })
        .await;
    assert_eq!(read_model_status(&fixture, "shipped").await, (Some(0), None), "no event was applied to the other one");

    // Only the other one gets an event; the first grows older.
    fixture.insert_type("Shipped", "order-1", 2).await;
    let second =
        wait_for("the second read model's age", SOON, async || match read_model_status(&fixture, "shipped").await {
            (Some(1), Some(age)) => Ok(age),
            other => Err(other),
        })
        .await;
    let (documents, older) = read_model_status(&fixture, "orders").await;
    let older = older.expect("it stays known");
    assert_eq!(documents, Some(1));
    assert!(older > first && older > second, "{first} s, then {older} s; the other {second} s");

    for (model, events) in [("orders", 1.0), ("shipped", 1.0)] {
        let sample = format!("headwater_read_model_events_total{{read_model=\"{model}\"}}");
        assert_eq!(fixture.metric(&sample).await, Some(events));
        let sample = format!("headwater_read_model_age_seconds{{read_model=\"{model}\"}}");
        assert!(fixture.metric(&sample).await.is_some(), "{sample}");
    }
    let table = fixture.run_command(&["status"]).await;
    let line = |model: &str| table.lines().find(|line| line.starts_with(model)).unwrap_or_default().to_owned();
    assert!(line("orders").contains(" ago") && line("shipped").contains(" ago"), "{table}");
    fixture.stop().await;
}

#[tokio::test]
async fn without_a_sequence_a_change_leaves_it_incomplete() {
    let config = cluster_config(MongoTopology::Shared);
    let mut fixture = PodFixture::start(TestClusterConfig {
        extra_yaml: TWO_READ_MODELS.replace("read_models:\n", "read_models:\n  change_delay: 0s\n"),
        with_sequence: false,
        producer: config.producer.replace("start: beginning", "start: now"),
        ..config
    })
    .await;
    fixture.insert("order-1", 1).await;
    fixture.wait_for_applied("order-1").await;
    let incomplete = |model: &str| format!("headwater_read_model_incomplete{{read_model=\"{model}\"}}");
    wait_for_value(&fixture, &incomplete("shipped"), 0.0).await;

    let path = fixture.0.pod(0).config().to_owned();
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("$set: { by:", "$set: { carrier:")).unwrap();
    fixture.0.restart_pod(0).await.unwrap();
    wait_for_value(&fixture, &incomplete("shipped"), 1.0).await;
    wait_for_value(&fixture, &incomplete("orders"), 0.0).await;
    fixture.stop().await;
}
