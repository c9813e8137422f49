//! `read-model verify` of the built binary, while a pod applies events.

use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
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
    assert_eq!(fixture.history().await[0], "read-model verify --repair");
    assert!(repaired.contains("2 different, 2 repaired"), "{repaired}");
    wait_for_orders(&fixture, 4).await;
    fixture.run(&["read-model", "verify", "totals", "--all"]).await.success();
    let names = fixture.views.list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name.starts_with("_headwater_scratch")), "{names:?}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

const ORDERS: &str = "read_models:
  database: VIEWS
  orders:
    when:
      Placed: { $set: { status: open, customer: $$event.payload.customer } }
      Added: { $inc: { total: $$event.payload.price }, $push: { items: { sku: $$event.payload.sku, n: $$event.version } }, $set: { last: $$event.version } }
";

async fn insert_order(fixture: &CliFixture, order: u32, versions: std::ops::RangeInclusive<i64>) {
    for version in versions {
        let kind = if version == 1 { "Placed" } else { "Added" };
        let payload = doc! { "customer": "ann", "price": 10, "sku": format!("sku-{version}") };
        fixture.insert(&format!("order-{order:02}"), version, kind, payload).await;
    }
}

async fn wait_for_cursors(fixture: &CliFixture, version: i64, count: u64) {
    let cursors = fixture.views.collection::<Document>(pipeline::view::CURSORS);
    wait_for("all events to be applied", SOON, async || {
        let applied = cursors.count_documents(doc! { "sequence": version }).await.unwrap();
        if applied == count { Ok(()) } else { Err(applied) }
    })
    .await;
}

/// Damages documents, each in another way. Returns the id of each with what must be found.
async fn corrupt(orders: &Collection<Document>) -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let update = async |id: &str, update: Document| {
        orders.update_one(doc! { "_id": id }, update).await.unwrap();
    };
    let read = async |id: &str| orders.find_one(doc! { "_id": id }).await.unwrap().unwrap();
    // Missing: its document is gone.
    orders.delete_one(doc! { "_id": "order-01" }).await.unwrap();
    // Doubled: its last event is applied twice.
    let item = doc! { "sku": "sku-4", "n": 4_i64 };
    update("order-02", doc! { "$inc": { "total": 10 }, "$push": { "items": item } }).await;
    // Reordered: two events have changed places.
    let mut reordered = read("order-03").await;
    reordered.get_array_mut("items").unwrap().swap(0, 1);
    orders.replace_one(doc! { "_id": "order-03" }, reordered).await.unwrap();
    // Stale: its last event is missing.
    update("order-04", doc! { "$inc": { "total": -10 }, "$pop": { "items": 1 }, "$set": { "last": 3_i64 } }).await;
    // Extra document, of an aggregate that never was.
    orders.insert_one(doc! { "_id": "order-99", "status": "open" }).await.unwrap();
    // Wrong type, with the same value.
    update("order-05", doc! { "$set": { "total": 30.0 } }).await;
    // Extra field.
    update("order-06", doc! { "$set": { "vip": true } }).await;
    // Wrong value in a list.
    update("order-07", doc! { "$set": { "items.1.sku": "sku-9" } }).await;
    // Wrong key: the document is there, under another id.
    let mut moved = read("order-08").await;
    orders.delete_one(doc! { "_id": "order-08" }).await.unwrap();
    moved.insert("_id", "Order-08");
    orders.insert_one(moved).await.unwrap();
    // Partial: only its first event is in it.
    orders.replace_one(doc! { "_id": "order-09" }, doc! { "customer": "ann", "status": "open" }).await.unwrap();
    // Fields in another order, which a query for the whole document sees.
    let fields: Vec<_> = read("order-10").await.into_iter().collect();
    let turned: Document = fields.into_iter().rev().collect();
    orders.replace_one(doc! { "_id": "order-10" }, turned).await.unwrap();
    vec![
        ("order-01", vec![("", "missing document")]),
        ("order-02", vec![("items.3", "extra"), ("total", "different value")]),
        ("order-03", vec![("items", "reordered")]),
        ("order-04", vec![("items.2", "missing"), ("last", "different value"), ("total", "different value")]),
        ("order-05", vec![("total", "different type")]),
        ("order-06", vec![("vip", "extra")]),
        ("order-07", vec![("items.1.sku", "different value")]),
        ("order-08", vec![("", "missing document")]),
        ("order-09", vec![("items", "missing"), ("last", "missing"), ("total", "missing")]),
        ("order-10", vec![("", "fields reordered")]),
        ("Order-08", vec![("", "extra document")]),
        ("order-99", vec![("", "extra document")]),
    ]
}

#[tokio::test]
async fn every_kind_of_corruption_is_named_and_repaired() {
    let fixture = CliFixture::new("verify_corruptions", ORDERS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    for order in 1..=12 {
        insert_order(&fixture, order, 1..=4).await;
    }
    wait_for_cursors(&fixture, 4, 12).await;
    let orders = fixture.views.collection::<Document>("orders");
    let expected = corrupt(&orders).await;
    let report = fixture.run(&["read-model", "verify", "orders", "--all", "--json"]).await.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let differences = |finding: &serde_json::Value| {
        let list = finding["differences"].as_array().cloned().unwrap_or_default();
        let mut list: Vec<_> = list.iter().map(|found| (text(&found["path"]), text(&found["kind"]))).collect();
        list.sort();
        list
    };
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<_> = findings.iter().map(|finding| (text(&finding["id"]), differences(finding))).collect();
    let owned = |list: Vec<(&str, &str)>| list.iter().map(|(path, kind)| ((*path).into(), (*kind).into())).collect();
    let mut expected: Vec<(String, Vec<(String, String)>)> =
        expected.into_iter().map(|(id, list)| (id.to_owned(), owned(list))).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{report}");

    // Events go on while the documents are repaired.
    let (repaired, ()) = tokio::join!(fixture.run(&["read-model", "verify", "orders", "--all", "--repair"]), async {
        for order in 1..=12 {
            insert_order(&fixture, order, 5..=8).await;
        }
    });
    let repaired = repaired.success();
    assert!(repaired.contains("12 different, 12 repaired"), "{repaired}");
    wait_for_cursors(&fixture, 8, 12).await;
    fixture.run(&["read-model", "verify", "orders", "--all"]).await.success();
    let totals: Vec<_> = orders.distinct("total", doc! {}).await.unwrap();
    assert_eq!(totals, [Bson::Int32(70)], "all events once");
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
