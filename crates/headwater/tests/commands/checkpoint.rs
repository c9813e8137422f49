//! Where the pipeline stands: shown, and set anew.

use mongodb::bson::{Document, doc};
use serde_json::{Value as Json, json};
use testkit::wait::wait_for;

use crate::house::{House, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

const USAGE: Option<i32> = Some(2);

async fn shown(house: &House) -> Json {
    let said = house.ask(&["checkpoint", "show", "--json"]).await;
    let shown = said.json();
    said.well();
    shown
}

/// Until so many events of the order are in the read model.
async fn total(house: &House, expected: i32) {
    wait_for("the total", SOON, async || {
        let found = house.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
        let total = found.and_then(|found| found.get_i32("total").ok());
        if total == Some(expected) { Ok(()) } else { Err(total) }
    })
    .await;
}

/// Until the bus has everything up to now.
async fn past(house: &House, token: &Json) -> Json {
    wait_for("the checkpoint to move on", SOON, async || {
        let now = shown(house).await;
        let moved = now["phase"] == "stream" && now["token"].as_str() > token.as_str();
        if moved { Ok(now) } else { Err(now) }
    })
    .await
}

#[tokio::test]
async fn the_checkpoint_is_shown_set_and_reset() {
    let house = House::new("checkpoint", MODELS).await;
    house.ask(&["topology", "apply"]).await.well();
    assert_eq!(shown(&house).await, json!({ "pipeline": "shop", "phase": null }));
    assert!(house.ask(&["checkpoint", "show"]).await.well().contains("`shop` has no checkpoint yet"));
    let early = house.ask(&["checkpoint", "set", "--token", &"82".repeat(20), "--yes"]).await.refused();
    assert!(early.contains("no checkpoint yet"), "{early}");

    house.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let pod = house.pod("pod-1");
    total(&house, 5).await;
    let first = past(&house, &Json::Null).await;
    assert_eq!((&first["pipeline"], &first["term"], &first["epoch"]), (&json!("shop"), &json!(1), &json!(1)));
    assert_eq!((&first["saved_by"], &first["snapshot"]), (&json!("pod-1"), &Json::Null));
    assert!(first["saved_at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{first}");
    let token = first["token"].as_str().unwrap();
    let text = house.ask(&["checkpoint", "show"]).await.well();
    for line in ["pipeline      shop", "term          1", "epoch         1", "phase         stream"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains(" by pod-1"), "{text}");

    house.insert("order-1", 2, "Added", doc! { "amount": 7 }).await;
    total(&house, 12).await;
    let second = past(&house, &first["token"]).await;

    // Back to where it stood: what came since is published again, and applied once.
    let unmeant = house.ask(&["checkpoint", "set", "--token", token]).await;
    assert_eq!(unmeant.status.code(), USAGE);
    assert!(
        unmeant.err.contains("published again; consumers skip") && unmeant.err.contains("--yes"),
        "{}",
        unmeant.err
    );
    let unread = house.ask(&["checkpoint", "set", "--token", "here", "--yes"]).await;
    assert_eq!(unread.status.code(), USAGE);
    assert!(unread.err.contains("hexadecimal digits"), "{}", unread.err);
    let set = house.ask(&["checkpoint", "set", "--token", token, "--yes", "--json"]).await.json();
    assert_eq!((&set["epoch"], &set["term"], &set["phase"]), (&json!(2), &json!(2), &json!("stream")));
    assert_eq!(set["token"], first["token"]);
    assert!(set["saved_by"].as_str().is_some_and(|by| by.ends_with("(operator)")), "{set}");
    assert!(set["consequence"].as_str().unwrap().contains("published again"), "{set}");
    house.insert("order-1", 3, "Added", doc! { "amount": 1 }).await;
    total(&house, 13).await;
    let third = past(&house, &second["token"]).await;
    assert_eq!(third["epoch"], 2, "the leader took it up from there");

    // Half a token, and one that is yet to come, change nothing.
    let half = &token[..token.len() - 9];
    let refused = house.ask(&["checkpoint", "set", "--token", half, "--yes"]).await.refused();
    assert!(refused.contains("cannot be followed from that token, and nothing was done"), "{refused}");
    let future = format!("82FFFFFFF0{}", &token[10..]);
    let refused = house.ask(&["checkpoint", "set", "--token", &future, "--yes"]).await.refused();
    assert!(refused.contains("lies in the future, and nothing was done"), "{refused}");
    assert_eq!(shown(&house).await["epoch"], 2);

    let unmeant = house.ask(&["checkpoint", "reset", "--start", "beginning"]).await;
    assert_eq!(unmeant.status.code(), USAGE);
    assert!(unmeant.err.contains("everything the source holds is published again"), "{}", unmeant.err);
    let reset = house.ask(&["checkpoint", "reset", "--start", "beginning", "--yes", "--json"]).await.json();
    assert_eq!(
        (&reset["epoch"], &reset["phase"], &reset["snapshot"]["scanned"]),
        (&json!(3), &json!("snapshot"), &json!(0))
    );
    house.insert("order-1", 4, "Added", doc! { "amount": 2 }).await;
    total(&house, 15).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
