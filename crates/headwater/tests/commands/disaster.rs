//! Source, coordination or read models restored from a backup: noticed, and brought back in order.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Document, doc};
use serde_json::json;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  totals: { when: { Added: { $inc: { total: $$event.payload.amount }, $push: { seen: $$event.version } } } }
";

/// The contents of a database, as a backup has them.
struct Backup(BTreeMap<String, Vec<Document>>);

impl Backup {
    async fn take(database: &Database) -> Self {
        let mut contents = BTreeMap::new();
        for name in database.list_collection_names().await.unwrap() {
            let documents = database.collection::<Document>(&name).find(doc! {}).await.unwrap();
            contents.insert(name, documents.try_collect().await.unwrap());
        }
        Self(contents)
    }

    async fn restore(&self, database: &Database) {
        for name in database.list_collection_names().await.unwrap() {
            let collection = database.collection::<Document>(&name);
            collection.delete_many(doc! {}).await.unwrap();
            if let Some(documents) = self.0.get(&name).filter(|documents| !documents.is_empty()) {
                collection.insert_many(documents).await.unwrap();
            }
        }
    }
}

async fn add(fixture: &CliFixture, version: i64) {
    fixture.insert("order-1", version, "Added", doc! { "amount": version }).await;
    let sequence = version.to_string();
    fixture.run(&["wait", "order-1", "--sequence", &sequence, "--timeout", "60s"]).await.success();
}

async fn total(fixture: &CliFixture) -> Option<Document> {
    fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap()
}

fn expected(seen: &[i64]) -> Option<Document> {
    Some(doc! { "_id": "order-1", "total": seen.iter().sum::<i64>(), "seen": seen.to_vec() })
}

#[tokio::test]
async fn restored_read_models_catch_up_from_the_source() {
    let fixture = CliFixture::new("restored_views", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    add(&fixture, 1).await;
    let backup = Backup::take(&fixture.views).await;
    add(&fixture, 2).await;
    add(&fixture, 3).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    backup.restore(&fixture.views).await;
    assert_eq!(total(&fixture).await, expected(&[1]));

    let pod = fixture.start_pod("pod-1");
    let explained = fixture.run(&["explain", "order-1"]).await.success();
    assert!(explained.contains("behind by 2 events"), "{explained}");
    let healed = fixture.run(&["audit", "--all"]).await;
    assert_eq!(healed.status.code(), Some(4), "it says that something was missing: {}", healed.stderr);
    assert_eq!(fixture.history().await[0], "audit");
    assert_eq!(total(&fixture).await, expected(&[1, 2, 3]));
    fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    add(&fixture, 4).await;
    assert_eq!(total(&fixture).await, expected(&[1, 2, 3, 4]));
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn restored_coordination_applies_nothing_twice() {
    let fixture = CliFixture::new("restored_pods", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    add(&fixture, 1).await;
    let backup = Backup::take(&fixture.coordination).await;
    add(&fixture, 2).await;
    fixture.run(&["step-down"]).await.success();
    add(&fixture, 3).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    // An older lease, an older term, an older checkpoint.
    backup.restore(&fixture.coordination).await;

    let pod = fixture.start_pod("pod-1");
    add(&fixture, 4).await;
    assert_eq!(total(&fixture).await, expected(&[1, 2, 3, 4]), "what is published again is a duplicate");
    fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    assert_eq!(fixture.run(&["parked", "list", "--json"]).await.json(), json!([]));
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn a_restored_source_is_noticed_and_read_models_follow_it() {
    let fixture = CliFixture::new("restored_source", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    for version in 1..=3 {
        add(&fixture, version).await;
    }
    // Restored to the time before the third event; the application then writes another third one.
    let events = fixture.source.collection::<Document>("events");
    events.delete_one(doc! { "aggregateId": "order-1", "version": 3_i64 }).await.unwrap();
    fixture.insert("order-1", 3, "Added", doc! { "amount": 30_i64 }).await;
    let parked = wait_for("the other history to be noticed", SOON, async || {
        let list = fixture.run(&["parked", "list", "--json"]).await.json();
        if list[0]["reason"] == "version_regressed" { Ok(list) } else { Err(list) }
    })
    .await;
    assert_eq!(parked[0]["sequence"], 3);
    let status = fixture.run(&["status"]).await;
    assert!(status.stdout.contains("1 aggregate is parked"), "{}", status.stdout);

    // The source is right: take its event in, then let the documents be what the source says.
    fixture.run(&["parked", "retry", "order-1"]).await.success();
    fixture.run(&["read-model", "verify", "totals", "--all", "--repair"]).await;
    let right = doc! { "_id": "order-1", "total": 33_i64, "seen": [1_i64, 2_i64, 3_i64] };
    assert_eq!(total(&fixture).await, Some(right));
    fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
