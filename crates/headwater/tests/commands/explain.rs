//! `explain`, `wait`, `history` and `rejected` of the built binary, with a pod.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use serde_json::json;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } }
  seen: { when: { Added: { $push: { versions: $$event.version } } } }
";

#[tokio::test]
async fn explain_and_wait_say_where_an_event_is() {
    let fixture = CliFixture::new("explain", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    fixture.insert("order-1", 1, "Added", doc! { "amount": 5 }).await;
    let before = fixture.run(&["explain", "order-1"]).await.success();
    assert!(before.contains("source        highest sequence 1\n"), "{before}");
    assert!(
        before.contains("no event is applied: the pipeline has not published the source yet\nnext: headwater status\n"),
        "{before}"
    );
    let late = fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "100ms"]).await;
    assert_eq!(late.status.code(), Some(1));
    assert!(late.stderr.contains("not applied after 100ms: no event is applied"), "{}", late.stderr);

    let pod = fixture.start_pod("pod-1");
    let applied = fixture.run(&["wait", "order-1", "--sequence", "1", "--timeout", "60s", "--json"]).await;
    assert!(applied.status.success(), "{}", applied.stderr);
    let answer = applied.json();
    assert_eq!(answer["read_models"], json!({ "seen": { "state": "applied" }, "totals": { "state": "applied" } }));
    assert!(answer["operation_time"]["t"].as_u64().is_some_and(|time| time > 0), "{answer}");
    let total = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(total, Some(doc! { "_id": "order-1", "total": 5 }), "what `wait` says is readable");
    let explained = fixture.run(&["explain", "order-1", "--json"]).await.json();
    assert_eq!(
        (&explained["state"], &explained["cursor"]["sequence"], &explained["source"]["sequence"]),
        (&json!("up to date"), &json!(1), &json!(1))
    );
    assert_eq!(explained["read_models"]["totals"], json!({ "applied": 1, "parked": null }));

    // The second event cannot be added: it parks in one read model.
    fixture.insert("order-1", 2, "Added", doc! { "amount": "x" }).await;
    let parked = fixture.run(&["wait", "order-1", "--sequence", "2", "--timeout", "60s"]).await;
    assert_eq!(parked.status.code(), Some(1));
    assert!(parked.stdout.contains("totals      parked: poison"), "{}", parked.stdout);
    let text = fixture.run(&["explain", "order-1"]).await.success();
    assert!(text.contains("  seen: applied up to sequence 2\n"), "{text}");
    assert!(text.contains("  totals: parked at sequence 2 since "), "{text}");
    assert!(text.contains("next: headwater parked show order-1 --model totals\n"), "{text}");

    // What the operator does is kept.
    fixture.run(&["parked", "discard", "order-1", "--yes"]).await.success();
    fixture.run(&["wait", "order-1", "--sequence", "2"]).await.success();
    let history = fixture.run(&["history", "--json"]).await.json();
    assert_eq!(history[0]["action"], "parked discard", "{history}");
    assert_eq!(history[0]["detail"], "1 event of order-1 in `totals`");
    assert!(history[0]["by"].as_str().is_some_and(|by| by.contains('@')), "{history}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn rejected_events_are_listed_discarded_and_resubmitted() {
    let fixture = CliFixture::new("rejected_commands", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    pod.wait_for_line("lease acquired", SOON).await;
    let nameless = doc! { "_id": "e-1", "version": 1, "type": "Added", "payload": { "amount": 1 } };
    fixture.source.collection("events").insert_one(nameless).await.unwrap();
    let listed = wait_for("the event to be rejected", SOON, async || {
        let list = fixture.run(&["rejected", "list", "--json"]).await.json();
        if list[0]["reason"] == "no_aggregate_id" { Ok(list) } else { Err(list) }
    })
    .await;
    assert_eq!(listed[0]["key"], "e-1");
    let message = listed[0]["message"].as_str().unwrap().to_owned();
    let shown = fixture.run(&["rejected", "show", &message, "--body"]).await.json();
    assert_eq!(shown["body"]["payload"], json!({ "amount": 1 }));
    assert_eq!(fixture.run(&["rejected", "discard", &message]).await.status.code(), Some(2), "it needs --yes");
    fixture.run(&["rejected", "discard", &message, "--yes"]).await.success();
    assert_eq!(fixture.run(&["rejected", "list"]).await.success(), "no rejected events in `shop`\n");
    assert!(
        fixture.run(&["rejected", "list", "--all", "--json"]).await.json()[0]["discarded"].is_string(),
        "it is kept"
    );
    let history = fixture.run(&["history"]).await.success();
    assert!(history.contains("rejected discard"), "{history}");

    // Corrected in the source, it is applied in its place.
    let wrong =
        doc! { "_id": "e-2", "aggregateId": "order-2", "version": "one", "type": "Added", "payload": { "amount": 7 } };
    fixture.source.collection("events").insert_one(wrong).await.unwrap();
    let listed = wait_for("the second event to be rejected", SOON, async || {
        let list = fixture.run(&["rejected", "list", "--json"]).await.json();
        if list[0]["reason"] == "no_sequence" { Ok(list) } else { Err(list) }
    })
    .await;
    let message = listed[0]["message"].as_str().unwrap().to_owned();
    let still = fixture.run(&["rejected", "resubmit", &message]).await.failure();
    assert!(still.contains("correct it in the source first"), "{still}");
    let corrected = doc! { "$set": { "version": 1_i64 } };
    fixture.source.collection::<Document>("events").update_one(doc! { "_id": "e-2" }, corrected).await.unwrap();
    let resubmitted = fixture.run(&["rejected", "resubmit", &message]).await.success();
    assert!(resubmitted.contains("the event is applied"), "{resubmitted}");
    assert_eq!(fixture.history().await[0], "rejected resubmit");
    fixture.run(&["wait", "order-2", "--sequence", "1"]).await.success();
    let again = fixture.run(&["rejected", "resubmit", &message]).await.failure();
    assert!(again.contains("applied or parked already"), "{again}");
    assert_eq!(fixture.run(&["rejected", "list"]).await.success(), "no rejected events in `shop`\n");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn an_event_can_be_waited_for_by_its_id() {
    let fixture = CliFixture::new("wait_event", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    let events = fixture.source.collection::<Document>("events");
    let event = |id: Bson, version: Option<i64>| {
        let mut event = doc! { "_id": id, "aggregateId": "order-1", "type": "Added", "payload": { "amount": 5 } };
        event.extend(version.map(|version| ("version".to_owned(), version.into())));
        event
    };
    let oid = ObjectId::new();
    events.insert_one(event(oid.into(), Some(1))).await.unwrap();
    events.insert_one(event("second".into(), Some(2))).await.unwrap();
    for (id, sequence) in [(oid.to_hex(), 1), ("second".to_owned(), 2)] {
        let answer = fixture.run(&["wait", "--event", &id, "--timeout", "60s", "--json"]).await;
        assert!(answer.status.success(), "{}", answer.stderr);
        assert!(answer.json()["sequence"].as_i64().is_some_and(|at| at >= sequence), "{}", answer.stdout);
    }
    let total = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "order-1" }).await.unwrap();
    assert_eq!(total, Some(doc! { "_id": "order-1", "total": 10 }));

    let unknown = fixture.run(&["wait", "--event", "third"]).await.failure();
    assert!(unknown.contains("the source has no event with this `_id`"), "{unknown}");
    events.insert_one(event("unnumbered".into(), None)).await.unwrap();
    let rejected = fixture.run(&["wait", "--event", "unnumbered"]).await.failure();
    assert!(rejected.contains("no usable aggregate id or sequence"), "{rejected}");
    for wrong in [&["wait", "order-1"][..], &["wait", "--sequence", "1"], &["wait", "order-1", "--event", "second"]] {
        assert_eq!(fixture.run(wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    // Without a sequence, position and time of an event are not in the source.
    fixture.edit_config(|text| text.replace(", sequence: version", "") + "producer: { start: now }\n");
    let unsequenced = fixture.run(&["wait", "--event", "second"]).await.failure();
    assert!(unsequenced.contains("without it nobody can tell whether an event is applied"), "{unsequenced}");
}
