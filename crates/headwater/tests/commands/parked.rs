//! What is parked: listed, shown, applied again, discarded.

use mongodb::bson::{Document, doc};
use serde_json::json;
use testkit::wait::wait_for;

use crate::house::{House, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

#[tokio::test]
async fn what_is_parked_is_listed_shown_retried_and_discarded() {
    let house = House::new("parked", MODELS).await;
    house.ask(&["topology", "apply"]).await.well();
    house.insert("order-1", 1, "Added", doc! { "amount": "a secret" }).await;
    house.insert("order-1", 2, "Added", doc! { "amount": 5 }).await;
    house.insert("order-2", 1, "Added", doc! { "amount": 3 }).await;
    let pod = house.pod("pod-1");
    wait_for("both events to wait", SOON, async || {
        let said = house.ask(&["parked", "list", "--json"]).await;
        let list = said.json();
        let waiting = list[0]["waiting"] == 2 && list.as_array().unwrap().len() == 1;
        if waiting { Ok(()) } else { Err(said.out) }
    })
    .await;

    let list = house.ask(&["parked", "list"]).await.well();
    assert!(list.contains("MODEL   AGGREGATE  REASON") && list.contains("totals  order-1    poison"), "{list}");
    let shown = house.ask(&["parked", "show", "order-1"]).await.well();
    assert!(shown.contains("Added") && !shown.contains("a secret"), "{shown}");
    let bodies = house.ask(&["parked", "show", "order-1", "--bodies", "--json"]).await;
    assert_eq!(bodies.json()["events"][0]["body"]["payload"]["amount"], "a secret");

    let still = house.ask(&["parked", "retry", "order-1"]).await.refused();
    assert!(still.contains("still cannot be applied") && !still.contains("a secret"), "{still}");
    let unmeant = house.ask(&["parked", "discard", "order-1"]).await.refused();
    assert!(unmeant.contains("for good") && unmeant.contains("--yes"), "{unmeant}");
    let discarded = house.ask(&["parked", "discard", "order-1", "--yes"]).await.well();
    assert!(
        discarded.contains("1 events of order-1 were discarded") && discarded.contains("1 more wait"),
        "{discarded}"
    );
    let applied = house.ask(&["parked", "retry", "order-1", "--model", "totals"]).await.well();
    assert!(applied.contains("1 events were applied"), "{applied}");
    assert!(house.ask(&["parked", "list"]).await.well().contains("nothing is parked"));
    let total = house.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(total, Some(doc! { "_id": "order-1", "total": 5 }));
    let gone = house.ask(&["parked", "retry", "order-1"]).await.refused();
    assert!(gone.contains("no such aggregate is parked"), "{gone}");

    // The same for a program.
    house.insert("order-3", 1, "Added", doc! { "amount": "a secret" }).await;
    house.insert("order-3", 2, "Added", doc! { "amount": 8 }).await;
    house.insert("order-3", 3, "Added", doc! { "amount": 1 }).await;
    wait_for("three events to wait", SOON, async || {
        let said = house.ask(&["parked", "list", "--json"]).await;
        if said.json()[0]["waiting"] == 3 { Ok(()) } else { Err(said.out) }
    })
    .await;
    let discarded = house.ask(&["parked", "discard", "order-3", "--yes", "--json"]).await;
    let expected = json!({ "model": "totals", "aggregate": "order-3", "discarded": 1, "waiting": 2 });
    assert_eq!(discarded.json(), expected);
    let applied = house.ask(&["parked", "retry", "order-3", "--json"]).await;
    assert_eq!(applied.json(), json!({ "model": "totals", "aggregate": "order-3", "applied": 2 }));
    assert_eq!(house.ask(&["parked", "list", "--json"]).await.json(), json!([]));
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
