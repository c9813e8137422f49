//! `read-model verify` of the built binary, while a pod applies events.

use mongodb::bson::{Document, doc};
use serde_json::json;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  totals: { when: { Added: { $inc: { total: $$event.payload.amount }, $push: { seen: $$event.version } } } }
  days: { key: $$event.payload.day, when: { Added: { $set: { last: $$event.aggregateId } } } }
";

async fn wait_for_orders(fixture: &CliFixture, version: i64) {
    let cursors = fixture.views.collection::<Document>(pipeline::view::CURSORS);
    wait_for("all events to be applied", SOON, async || {
        let applied = cursors.count_documents(doc! { "sequence": version }).await.unwrap();
        if applied == 3 { Ok(()) } else { Err(applied) }
    })
    .await;
}

async fn insert_orders(fixture: &CliFixture, version: i64) {
    for order in 1..=3 {
        fixture.insert(&format!("order-{order}"), version, "Added", doc! { "amount": version, "day": "monday" }).await;
    }
}

#[tokio::test]
async fn verify_names_what_differs_and_repairs_it() {
    let fixture = CliFixture::new("verify_command", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    for version in 1..=3 {
        insert_orders(&fixture, version).await;
    }
    let pod = fixture.start_pod("pod-1");
    wait_for_orders(&fixture, 3).await;
    let equal = fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    assert_eq!(equal, "3 documents compared, 0 skipped, 0 different, 0 repaired\n");

    let totals = fixture.views.collection::<Document>("totals");
    totals.update_one(doc! { "_id": "order-2" }, doc! { "$inc": { "total": 5 } }).await.unwrap();
    totals.insert_one(doc! { "_id": "order-9", "total": 77 }).await.unwrap();
    let differs = fixture.run(&["read-model", "verify", "totals", "--all"]).await;
    assert_eq!(differs.status.code(), Some(1), "{}", differs.stderr);
    let expected = "order-2, up to sequence 3\n  total: different value\norder-9: no event was ever applied to it\n  extra document\n";
    assert!(differs.stdout.starts_with(expected), "{}", differs.stdout);
    assert!(differs.stderr.contains("2 documents differ; `--repair`"), "{}", differs.stderr);
    let json = fixture.run(&["read-model", "verify", "totals", "--json"]).await;
    let differences = &json.json()["findings"][0]["differences"];
    assert_eq!(*differences, json!([{ "path": "total", "kind": "different value" }]), "no values");
    let one = fixture.run(&["read-model", "verify", "totals", "--aggregate", "order-2", "--show-values"]).await;
    assert!(one.stdout.contains("total: different value (expected 6, found 11)"), "{}", one.stdout);

    insert_orders(&fixture, 4).await;
    let repaired = fixture.run(&["read-model", "verify", "totals", "--all", "--repair"]).await.success();
    assert!(repaired.contains("2 different, 2 repaired"), "{repaired}");
    wait_for_orders(&fixture, 4).await;
    fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    let names = fixture.views.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.starts_with("_headwater_scratch")), "{names:?}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn verify_says_what_it_cannot_compare() {
    let fixture = CliFixture::new("verify_refused", MODELS).await;
    let unknown = fixture.run(&["read-model", "verify", "nothing"]).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stderr.contains("the configuration declares `totals`, `days`"), "{}", unknown.stderr);
    let shared = fixture.run(&["read-model", "verify", "days"]).await.failure();
    assert!(
        shared.contains("`days` is not comparable: several aggregates write a document, and the result of `$set`"),
        "{shared}"
    );
    fixture.edit_config(|text| text.replace(", sequence: version", "") + "producer: { start: now }\n");
    let unsequenced = fixture.run(&["read-model", "verify", "totals"]).await.failure();
    assert!(unsequenced.contains("the source has no sequence"), "{unsequenced}");
}
