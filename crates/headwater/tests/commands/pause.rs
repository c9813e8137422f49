//! `pause` and `resume` of producer, consumer and one read model, with pods.

use std::time::{Duration, Instant};

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } }
  seen: { when: { Added: { $push: { versions: $$event.version } } } }
";

async fn find(fixture: &CliFixture, model: &str) -> Option<Document> {
    fixture.views.collection::<Document>(model).find_one(doc! { "_id": "order-1" }).await.unwrap()
}

async fn wait_until(fixture: &CliFixture, model: &str, expected: Document) {
    wait_for("the read model", SOON, async || match find(fixture, model).await {
        Some(found) if found == expected => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
}

/// Waits until the pods of the pipeline say so.
async fn wait_for_service(fixture: &CliFixture, service: &str, state: &str) {
    wait_for("the service of the pod", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        let pods = status["pods"].as_array().unwrap();
        let live: Vec<_> = pods.iter().filter(|pod| pod["silent"] == false).collect();
        let matches = !live.is_empty() && live.iter().all(|pod| pod[service] == state);
        if matches { Ok(()) } else { Err(status["pods"].to_string()) }
    })
    .await;
}

#[tokio::test]
async fn a_paused_read_model_waits_and_loses_nothing() {
    let fixture = CliFixture::new("pause_model", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = fixture.start_pod("pod-1");
    fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "60s"]).await.success();

    let unknown = fixture.run(&["pause", "read-model", "nobody"]).await.failure();
    assert!(unknown.contains("no read model `nobody`"), "{unknown}");
    fixture.run(&["pause", "read-model", "totals", "--reason", "index build"]).await.success();
    let again = fixture.run(&["pause", "read-model", "totals"]).await.failure();
    assert!(again.contains("read model `totals` is paused already"), "{again}");
    // Pods obey within a second; an event of another aggregate shows when.
    wait_for("the pod to obey", SOON, async || {
        let id = format!("probe-{}", ObjectId::new());
        fixture.insert(&id, 1, "Added", doc! { "amount": 1 }).await;
        wait_for("the probe", SOON, async || {
            let seen = fixture.views.collection::<Document>("seen").find_one(doc! { "_id": &id }).await.unwrap();
            seen.map(drop).ok_or("not seen")
        })
        .await;
        let total = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": &id }).await.unwrap();
        if total.is_none() { Ok(()) } else { Err("applied") }
    })
    .await;

    for version in 2..=4 {
        fixture.insert("order-1", version, "Added", doc! { "amount": 1 }).await;
    }
    wait_until(&fixture, "seen", doc! { "_id": "order-1", "versions": [1_i64, 2_i64, 3_i64, 4_i64] }).await;
    assert_eq!(find(&fixture, "totals").await, Some(doc! { "_id": "order-1", "total": 5 }));
    let asked = Instant::now();
    let paused = fixture.run(&["wait", "order-1", "--sequence", "4", "--timeout", "60s", "--json"]).await;
    assert!(asked.elapsed() < Duration::from_secs(30), "it fails at once");
    assert_eq!(paused.status.code(), Some(1));
    assert_eq!(paused.json()["read_models"]["totals"]["state"], "paused", "{}", paused.stdout);
    assert!(paused.stderr.contains("paused or being built"), "{}", paused.stderr);
    let explained = fixture.run(&["explain", "order-1"]).await.success();
    assert!(explained.contains("read model `totals` is paused: 3 events waiting"), "{explained}");
    assert!(explained.contains("next: headwater resume read-model totals"), "{explained}");
    let retried = fixture.run(&["parked", "retry", "order-1"]).await.failure();
    assert!(retried.contains("is paused"), "{retried}");

    // It survives the pod, and the next leader obeys from its first event on.
    pod.kill().await;
    pod.wait_for_exit(SOON).await;
    let pod = fixture.start_pod("pod-2");
    fixture.insert("order-1", 5, "Added", doc! { "amount": 1 }).await;
    wait_until(&fixture, "seen", doc! { "_id": "order-1", "versions": [1_i64, 2_i64, 3_i64, 4_i64, 5_i64] }).await;
    assert_eq!(find(&fixture, "totals").await, Some(doc! { "_id": "order-1", "total": 5 }));
    wait_for("the status to count what waits", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await;
        let text = status.json()["problems"].to_string();
        let said = text.contains("read model `totals` is paused by") && text.contains("index build");
        // The parked aggregates of a pause are no parked aggregates that need an operator.
        let is_listed = status.json()["parked"].as_array().is_some_and(Vec::is_empty);
        if said && is_listed && status.status.code() == Some(4) { Ok(()) } else { Err(status.stdout) }
    })
    .await;

    fixture.run(&["resume", "read-model", "totals"]).await.success();
    wait_until(&fixture, "totals", doc! { "_id": "order-1", "total": 9 }).await;
    fixture.insert("order-1", 6, "Added", doc! { "amount": 1 }).await;
    fixture.run(&["wait", "order-1", "--sequence", "6", "--timeout", "60s"]).await.success();
    wait_until(&fixture, "totals", doc! { "_id": "order-1", "total": 10 }).await;
    wait_for("the pause to end", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["paused"].as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(status["paused"].to_string()) }
    })
    .await;
    let history = fixture.run(&["history", "--json"]).await.json();
    assert_eq!((&history[0]["action"], &history[0]["detail"]), (&"resume".into(), &"read-model totals".into()));
    assert_eq!(history[1]["detail"], "read-model totals: index build");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn paused_services_stop_and_continue_where_they_were() {
    let fixture = CliFixture::new("pause_services", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = fixture.start_pod("pod-1");
    fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "60s"]).await.success();

    fixture.run(&["pause", "producer"]).await.success();
    wait_for_service(&fixture, "producer", "paused by an operator").await;
    fixture.insert("order-1", 2, "Added", doc! { "amount": 1 }).await;
    // A takeover does not end it.
    pod.kill().await;
    pod.wait_for_exit(SOON).await;
    let pod = fixture.start_pod("pod-2");
    wait_for_service(&fixture, "producer", "paused by an operator").await;
    let explained = fixture.run(&["explain", "order-1"]).await.success();
    assert!(explained.contains("the producer is paused\nnext: headwater resume producer\n"), "{explained}");
    let waited = fixture.run(&["wait", "order-1", "--sequence", "2", "--timeout", "60s"]).await.failure();
    assert!(waited.contains("paused or being built"), "{waited}");
    assert_eq!(find(&fixture, "totals").await, Some(doc! { "_id": "order-1", "total": 5 }));

    fixture.run(&["pause", "consumer", "--reason", "window"]).await.success();
    wait_for_service(&fixture, "consumer", "paused by an operator").await;
    fixture.run(&["resume", "producer"]).await.success();
    wait_for_service(&fixture, "producer", "publishing").await;
    wait_for("the event on the bus", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["subscription"]["active_messages"] == 1 { Ok(()) } else { Err(status["subscription"].to_string()) }
    })
    .await;
    assert_eq!(find(&fixture, "totals").await, Some(doc! { "_id": "order-1", "total": 5 }));
    let status = fixture.run(&["status"]).await;
    assert_eq!(status.status.code(), Some(4), "{}", status.stdout);
    assert!(
        status.stdout.contains("the consumer is paused by") && status.stdout.contains(": window"),
        "{}",
        status.stdout
    );

    fixture.run(&["resume", "consumer"]).await.success();
    fixture.run(&["wait", "order-1", "--sequence", "2", "--timeout", "60s"]).await.success();
    assert_eq!(find(&fixture, "totals").await, Some(doc! { "_id": "order-1", "total": 6 }));
    let not_paused = fixture.run(&["resume", "consumer"]).await.failure();
    assert!(not_paused.contains("the consumer is not paused"), "{not_paused}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
