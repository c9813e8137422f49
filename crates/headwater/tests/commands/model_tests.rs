//! `read-model test` and `read-model preview`: documents as the declaration in the file gives them.

use mongodb::bson::{Document, doc};
use serde_json::json;

use crate::fixture::{CliFixture, CommandOutput};

const MODELS: &str = "read_models:
  database: VIEWS
  orders: { when: { Placed: { $set: { customer: $$event.payload.customer } }, Added: { $inc: { total: $$event.payload.amount } }, Gone: delete } }
  days: { key: $$event.payload.day, when: { Added: { $inc: { sold: $$event.payload.amount } } } }
";

const PASSING: &str = "tests:
  - name: an order with two items
    events:
      - { aggregateId: order-1, version: 1, type: Placed, payload: { customer: ada } }
      - { aggregateId: order-1, version: 2, type: Added, payload: { amount: 2, day: monday } }
      - { aggregateId: order-1, version: 3, type: Added, payload: { amount: 3, day: monday } }
      - { aggregateId: order-2, version: 1, type: Placed, payload: { customer: ada } }
      - { aggregateId: order-2, version: 2, type: Gone, payload: {} }
    expect:
      orders: [ { _id: order-1, total: 5, customer: ada } ]
      days: [ { _id: monday, sold: 5.0 } ]
";

const FAILING: &str = "tests:
  - name: a wrong total
    events: [ { aggregateId: order-1, version: 1, type: Added, payload: { amount: 2, day: monday } } ]
    expect: { orders: [ { _id: order-1, total: 7 } ], days: [] }
  - name: an amount that is a text
    events: [ { aggregateId: order-1, version: 1, type: Added, payload: { amount: two, day: monday } } ]
    expect: { orders: [] }
";

async fn run_tests(fixture: &CliFixture, files: &[(&str, &str)], more: &[&str]) -> CommandOutput {
    let paths: Vec<_> = files.iter().map(|(name, _)| fixture.folder().join(name)).collect();
    for (path, (_, text)) in paths.iter().zip(files) {
        std::fs::write(path, text).unwrap();
    }
    let shared = testkit::mongo::shared().await.unwrap();
    let mut arguments = vec!["read-model", "test", "--mongodb-uri", shared.uri()];
    arguments.extend(paths.iter().map(|path| path.to_str().unwrap()));
    arguments.extend(more);
    fixture.run(&arguments).await
}

#[tokio::test]
async fn a_test_file_passes_or_shows_what_differs() {
    let fixture = CliFixture::new("model_tests", MODELS).await;
    let passed = run_tests(&fixture, &[("passing.yaml", PASSING)], &[]).await.success();
    assert!(passed.contains("passing.yaml: an order with two items\n1 test, 0 failed\n"), "{passed}");

    let report = fixture.folder().join("report.xml");
    let junit = ["--junit", report.to_str().unwrap()];
    let failed = run_tests(&fixture, &[("passing.yaml", PASSING), ("failing.yaml", FAILING)], &junit).await;
    assert_eq!(failed.status.code(), Some(1), "{}", failed.stderr);
    for line in [
        "orders, order-1, total: expected 7, found 2\n",
        "days: expected no such document, found {\"_id\":\"monday\",\"sold\":2}\n",
        "orders: event 1 (Added) cannot be applied and would be parked: the server refused a statement with error 14\n",
        "3 tests, 2 failed\n",
    ] {
        assert!(failed.stdout.contains(line), "{line}in {}", failed.stdout);
    }
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("tests=\"3\" failures=\"2\""), "{report}");
    assert!(report.contains("<failure message=\"orders, order-1, total: expected 7, found 2\">"), "{report}");

    let unknown = run_tests(&fixture, &[("unknown.yaml", &PASSING.replace("days:", "weeks:"))], &[]).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stderr.contains("`weeks`, which the configuration does not declare"), "{}", unknown.stderr);
}

#[tokio::test]
async fn the_shop_passes_its_own_test_file() {
    let models = include_str!("../../src/shop/read_models.yaml");
    let models = models.replacen("read_models:\n", "read_models:\n  database: VIEWS\n", 1);
    let fixture = CliFixture::new("shop_tests", &models).await;
    let tests = include_str!("../../src/shop/read_models.test.yaml");
    let passed = run_tests(&fixture, &[("shop.yaml", tests)], &[]).await.success();
    assert!(passed.contains(", 0 failed\n"), "{passed}");
}

#[tokio::test]
async fn preview_shows_the_new_documents_beside_the_stored() {
    let fixture = CliFixture::new("model_preview", MODELS).await;
    fixture.insert("order-1", 1, "Placed", doc! { "customer": "ada" }).await;
    fixture.insert("order-1", 2, "Added", doc! { "amount": 2, "day": "monday" }).await;
    let orders = fixture.views.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": "order-1", "customer": "ada", "total": 1 }).await.unwrap();
    let shown = fixture.run(&["read-model", "preview", "orders", "--aggregate", "order-1", "--json"]).await;
    let expected = json!({
        "model": "orders",
        "events": 2,
        "documents": [{
            "id": "order-1",
            "preview": { "_id": "order-1", "customer": "ada", "total": 2 },
            "stored": { "_id": "order-1", "customer": "ada", "total": 1 },
            "differences": [{ "path": "total", "kind": "different value" }],
        }],
    });
    assert_eq!(shown.json(), expected);
    let text = fixture.run(&["read-model", "preview", "days", "--aggregate", "order-1"]).await.success();
    assert!(text.starts_with("2 events of the aggregate give 1 document\n\nmonday\npreview  {"), "{text}");
    assert!(text.contains("stored   null\n  missing document\n"), "{text}");
    let unknown = fixture.run(&["read-model", "preview", "orders", "--aggregate", "order-2"]).await.failure();
    assert!(unknown.contains("the source has no event of this aggregate"), "{unknown}");
}
