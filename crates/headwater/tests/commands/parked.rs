//! `headwater parked`: list, show, retry and discard.

use mongodb::bson::{Document, doc};
use serde_json::json;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

#[tokio::test]
async fn parked_events_are_listed_shown_retried_and_discarded() {
    let fixture = CliFixture::new("parked", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": "a secret" }).await;
    fixture.insert("order-1", 2, "Added", doc! { "amount": 5 }).await;
    fixture.insert("order-2", 1, "Added", doc! { "amount": 3 }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for("both events to wait", SOON, async || {
        let output = fixture.run(&["parked", "list", "--json"]).await;
        let list = output.json();
        let waiting = list[0]["waiting"] == 2 && list.as_array().unwrap().len() == 1;
        if waiting { Ok(()) } else { Err(output.stdout) }
    })
    .await;

    let list = fixture.run(&["parked", "list"]).await.success();
    assert!(list.contains("MODEL   AGGREGATE  REASON") && list.contains("totals  order-1    poison"), "{list}");
    let shown = fixture.run(&["parked", "show", "order-1"]).await.success();
    assert!(shown.contains("Added") && !shown.contains("a secret"), "{shown}");
    let bodies = fixture.run(&["parked", "show", "order-1", "--bodies", "--json"]).await;
    assert_eq!(bodies.json()["events"][0]["body"]["payload"]["amount"], "a secret");

    let still = fixture.run(&["parked", "retry", "order-1"]).await.failure();
    assert!(still.contains("still cannot be applied") && !still.contains("a secret"), "{still}");
    let unconfirmed = fixture.run(&["parked", "discard", "order-1"]).await.failure();
    assert!(unconfirmed.contains("for good") && unconfirmed.contains("--yes"), "{unconfirmed}");
    let discarded = fixture.run(&["parked", "discard", "order-1", "--yes"]).await.success();
    assert!(
        discarded.contains("discarded 1 event of order-1") && discarded.contains("1 event still parked"),
        "{discarded}"
    );
    let applied = fixture.run(&["parked", "retry", "order-1", "--model", "totals"]).await.success();
    assert!(applied.contains("applied 1 event"), "{applied}");
    assert!(fixture.run(&["parked", "list"]).await.success().contains("no parked events"));
    let total = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(total, Some(doc! { "_id": "order-1", "total": 5 }));
    let gone = fixture.run(&["parked", "retry", "order-1"]).await.failure();
    assert!(gone.contains("this aggregate is not parked"), "{gone}");

    // The same for a program.
    fixture.insert("order-3", 1, "Added", doc! { "amount": "a secret" }).await;
    fixture.insert("order-3", 2, "Added", doc! { "amount": 8 }).await;
    fixture.insert("order-3", 3, "Added", doc! { "amount": 1 }).await;
    wait_for("three events to wait", SOON, async || {
        let output = fixture.run(&["parked", "list", "--json"]).await;
        if output.json()[0]["waiting"] == 3 { Ok(()) } else { Err(output.stdout) }
    })
    .await;
    let discarded = fixture.run(&["parked", "discard", "order-3", "--yes", "--json"]).await;
    let expected = json!({ "model": "totals", "aggregate": "order-3", "discarded": 1, "waiting": 2 });
    assert_eq!(discarded.json(), expected);
    let applied = fixture.run(&["parked", "retry", "order-3", "--json"]).await;
    assert_eq!(applied.json(), json!({ "model": "totals", "aggregate": "order-3", "applied": 2 }));
    assert_eq!(fixture.run(&["parked", "list", "--json"]).await.json(), json!([]));
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
