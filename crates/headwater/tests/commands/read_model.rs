//! A read model that is declared or changed after events were applied lacks them: `status` says so until an operator accepts it.

use mongodb::bson::{Document, doc};
use serde_json::Value;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const TOTALS: &str = "totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } }";
const COUNTS: &str = "counts: { when: { Added: { $inc: { events: 1 } } } }";

async fn configure(fixture: &CliFixture, models: &[&str]) {
    let shared = testkit::mongo::shared().await.unwrap();
    let models = format!("read_models: {{ database: VIEWS, {} }}\naudit: {{ enabled: false }}\n", models.join(", "));
    fixture.configure(shared.uri(), &models);
}

/// Runs a pod until it has applied a new event to the read model `totals`, and stops it.
async fn run_pod(fixture: &CliFixture, version: i64) {
    let pod = fixture.start_pod("pod-0");
    fixture.insert("order-1", version, "Added", doc! { "amount": 1 }).await;
    let totals = fixture.views.collection::<Document>("totals");
    wait_for("the event to be applied", SOON, async || {
        let total = totals.find_one(doc! { "_id": "order-1" }).await.unwrap();
        let total =
            total.and_then(|found| found.get_i32("total").map(i64::from).or_else(|_| found.get_i64("total")).ok());
        if total == Some(version) { Ok(()) } else { Err(total) }
    })
    .await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

/// The read models that `status` calls incomplete, with the reason.
async fn incomplete(fixture: &CliFixture) -> Vec<(String, String)> {
    let status = fixture.run(&["status", "--json"]).await.json();
    let problems = status["problems"].as_array().unwrap();
    let named = problems.iter().filter(|problem| problem["code"] == "read_model_incomplete").count();
    let models = status["read_models"].as_array().unwrap().iter().filter(|model| model.get("incomplete").is_some());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut models: Vec<_> = models.map(|model| (text(&model["name"]), text(&model["incomplete"]["reason"]))).collect();
    models.sort();
    assert_eq!(named, models.len(), "each is a problem: {status}");
    assert!(models.is_empty() || status["healthy"] == false, "{status}");
    models
}

fn model(name: &str, reason: &str) -> (String, String) {
    (name.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn a_read_model_that_lacks_events_is_not_healthy() {
    let fixture = CliFixture::new("read_model", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    run_pod(&fixture, 1).await;
    assert_eq!(incomplete(&fixture).await, []);

    configure(&fixture, &[TOTALS, COUNTS]).await;
    run_pod(&fixture, 2).await;
    let added = model("counts", "added after events had been applied");
    assert_eq!(incomplete(&fixture).await, std::slice::from_ref(&added));
    let list = fixture.run(&["read-model", "list"]).await.success();
    assert!(list.contains("counts") && list.contains("incomplete: added after"), "{list}");

    configure(&fixture, &[&TOTALS.replace("$inc", "$max"), COUNTS]).await;
    let pod = fixture.start_pod("pod-0");
    wait_for("the change to be recorded", SOON, async || {
        let found = incomplete(&fixture).await;
        if found == [added.clone(), model("totals", "changed after events had been applied")] {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());

    let refused = fixture.run(&["read-model", "accept", "counts"]).await.failure();
    assert!(refused.contains("--yes"), "{refused}");
    fixture.run(&["read-model", "accept", "counts", "--yes"]).await.success();
    assert_eq!(incomplete(&fixture).await, [model("totals", "changed after events had been applied")]);
    let unknown = fixture.run(&["read-model", "accept", "count", "--yes"]).await.failure();
    assert!(unknown.contains("no pod has recorded"), "{unknown}");
}

#[tokio::test]
async fn another_index_leaves_a_read_model_complete() {
    let fixture = CliFixture::new("read_model_index", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    configure(&fixture, &[TOTALS]).await;
    run_pod(&fixture, 1).await;
    configure(&fixture, &[&TOTALS.replace("when:", "indexes: [{ keys: { total: 1 } }], when:")]).await;
    run_pod(&fixture, 2).await;
    assert_eq!(incomplete(&fixture).await, []);
}
