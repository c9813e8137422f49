//! `headwater erase`: no copy is left, and nothing comes back.

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str = "read_models:
  database: VIEWS
  totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } }
  customers: { key: $$event.payload.customer, when: { Added: { $inc: { orders: 1 } } } }
";

/// The collections that mention a text anywhere in a document.
async fn mentions(database: &Database, text: &str) -> Vec<String> {
    let mut found = vec![];
    for name in database.list_collection_names().await.unwrap() {
        let documents = database.collection::<Document>(&name).find(doc! {}).await.unwrap();
        let documents: Vec<Document> = documents.try_collect().await.unwrap();
        if documents.iter().any(|it| Bson::Document(it.clone()).into_canonical_extjson().to_string().contains(text)) {
            found.push(name);
        }
    }
    found
}

#[tokio::test]
async fn an_erased_aggregate_is_gone_and_stays_gone() {
    let fixture = CliFixture::new("erase", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    fixture.insert("person-7", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    fixture.insert("person-8", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    for id in ["person-7", "person-8"] {
        fixture.run(&["wait", id, "--sequence", "1", "--timeout", "60s"]).await.success();
    }
    // One parked event, one discarded one, and one that waits on the bus.
    fixture.insert("person-7", 2, "Added", doc! { "amount": "x", "customer": "c" }).await;
    fixture.insert("person-7", 3, "Added", doc! { "amount": "x", "customer": "c" }).await;
    wait_for("two events to wait", SOON, async || {
        let list = fixture.run(&["parked", "list", "--json"]).await.json();
        if list[0]["waiting"] == 2 { Ok(()) } else { Err(list) }
    })
    .await;
    fixture.run(&["parked", "discard", "person-7", "--yes"]).await.success();
    fixture.run(&["pause", "consumer"]).await.success();
    wait_for("the consumer to pause", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["pods"][0]["consumer"] == "paused by an operator" { Ok(()) } else { Err(status["pods"].to_string()) }
    })
    .await;
    fixture.insert("person-7", 4, "Added", doc! { "amount": 1, "customer": "c" }).await;
    wait_for("the late message", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["subscription"]["active_messages"] == 1 { Ok(()) } else { Err(status["subscription"].to_string()) }
    })
    .await;

    let refused = fixture.run(&["erase", "person-7", "--yes"]).await.failure();
    assert!(refused.contains("the source still has events"), "{refused}");
    fixture.source.collection::<Document>("events").delete_many(doc! { "aggregateId": "person-7" }).await.unwrap();
    assert_eq!(fixture.run(&["erase", "person-7"]).await.status.code(), Some(2), "it needs --yes");
    let erased = fixture.run(&["erase", "person-7", "--yes"]).await.success();
    assert!(erased.contains("1 message on the subscription"), "{erased}");
    assert!(erased.contains("read model `customers` has keys of its own"), "{erased}");
    assert_eq!(mentions(&fixture.views, "person-7").await, Vec::<String>::new());
    assert_eq!(mentions(&fixture.coordination, "person-7").await, Vec::<String>::new());

    // The late message is settled without effect, and a rebuild and the audit bring nothing back.
    fixture.run(&["resume", "consumer"]).await.success();
    wait_for("the late message to be settled", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["subscription"]["active_messages"] == 0 { Ok(()) } else { Err(status["subscription"].to_string()) }
    })
    .await;
    fixture.insert("person-8", 2, "Added", doc! { "amount": 1, "customer": "c" }).await;
    fixture.run(&["wait", "person-8", "--sequence", "2", "--timeout", "60s"]).await.success();
    fixture.insert("person-7", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    fixture.run(&["audit", "--all"]).await.success();
    assert_eq!(mentions(&fixture.views, "person-7").await, Vec::<String>::new());
    let totals = fixture.views.collection::<Document>("totals").find_one(doc! { "_id": "person-8" }).await.unwrap();
    assert_eq!(totals, Some(doc! { "_id": "person-8", "total": 6 }), "others go on");
    let history = fixture.run(&["history"]).await.success();
    assert!(history.contains("one aggregate, tombstone") && history.contains("of (erased) in `totals`"), "{history}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn without_their_key_tombstones_stop_every_pod() {
    let fixture = CliFixture::new("erase_key", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    fixture.insert("person-7", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    fixture.run(&["wait", "person-7", "--sequence", "1", "--timeout", "60s"]).await.success();
    fixture.source.collection::<Document>("events").delete_many(doc! { "aggregateId": "person-7" }).await.unwrap();
    fixture.run(&["erase", "person-7", "--yes"]).await.success();
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());

    let keys = fixture.coordination.collection::<Document>("erasure_keys");
    let key = keys.find_one_and_delete(doc! {}).await.unwrap().unwrap();
    // The erased id is used again, and another aggregate has a new event.
    fixture.insert("person-7", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    fixture.insert("person-8", 1, "Added", doc! { "amount": 5, "customer": "c" }).await;
    let pod = fixture.start_pod("pod-1");
    wait_for("the critical problem", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let lost = problems.iter().find(|problem| problem["code"] == "erasure_key_lost").cloned();
        match lost {
            Some(lost) if lost["severity"] == "critical" && lost["page"] == "E0004" => Ok(()),
            _ => Err(status["problems"].to_string()),
        }
    })
    .await;
    wait_for("the log of the pod", SOON, async || {
        let is_said = pod.lines().iter().any(|line| line.text.contains("E0004"));
        if is_said { Ok(()) } else { Err(pod.tail().to_string()) }
    })
    .await;
    let other = Binary { subtype: BinarySubtype::Generic, bytes: vec![7; 32] };
    for document in [None, Some(doc! { "_id": "shop", "format": 1_i64, "key": other })] {
        if let Some(document) = document {
            // Another key is no better.
            keys.insert_one(document).await.unwrap();
        }
        for command in [&["audit", "--all"][..], &["erase", "person-9", "--yes"]] {
            let refused = fixture.run(command).await.failure();
            assert!(refused.contains("E0004"), "{command:?}: {refused}");
        }
    }
    for id in ["person-7", "person-8"] {
        assert_eq!(mentions(&fixture.views, id).await, Vec::<String>::new(), "nobody guesses");
    }

    keys.replace_one(doc! {}, key).await.unwrap();
    fixture.run(&["wait", "person-8", "--sequence", "1", "--timeout", "60s"]).await.success();
    fixture.run(&["audit", "--all"]).await.success();
    assert_eq!(mentions(&fixture.views, "person-7").await, Vec::<String>::new());
    let healthy = fixture.run(&["status", "--json"]).await.json();
    assert!(!healthy["problems"].to_string().contains("erasure_key_lost"), "{healthy}");
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn a_replay_during_an_erasure_brings_nothing_back() {
    let models = "read_models:
  database: VIEWS
  first: { when: { Added: { $inc: { total: $$event.payload.amount } } } }
  second: { when: { Added: { $inc: { total: $$event.payload.amount } } } }
";
    let fixture = CliFixture::new("erase_replay", models).await;
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    let [first, second] = ["first", "second"].map(|name| fixture.views.collection::<Document>(name));
    // Its `$inc` fails until the document is gone.
    first.insert_one(doc! { "_id": "person-7", "total": "none" }).await.unwrap();
    fixture.insert("person-7", 1, "Added", doc! { "amount": 5 }).await;
    wait_for("the parked event", SOON, async || {
        let list = fixture.run(&["parked", "list", "--json"]).await.json();
        if list[0]["waiting"] == 1 { Ok(()) } else { Err(list) }
    })
    .await;
    fixture.source.collection::<Document>("events").delete_many(doc! {}).await.unwrap();
    // Holds the erasure in the middle: it cannot delete a document that a transaction has written.
    let mut session = fixture.views.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let held = doc! { "$set": { "held": true } };
    second.update_one(doc! { "_id": "person-7" }, held).session(&mut session).await.unwrap();
    let replay = async {
        wait_for("the first document to be erased", SOON, async || {
            let found = first.find_one(doc! { "_id": "person-7" }).await.unwrap();
            if found.is_none() { Ok(()) } else { Err("it is there") }
        })
        .await;
        let replayed = fixture.run(&["parked", "retry", "person-7", "--model", "first"]).await;
        session.abort_transaction().await.unwrap();
        replayed.failure()
    };
    let (erased, replayed) = tokio::join!(fixture.run(&["erase", "person-7", "--yes"]), replay);
    erased.success();
    assert!(replayed.contains("not parked"), "{replayed}");
    assert_eq!(mentions(&fixture.views, "person-7").await, Vec::<String>::new());
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
