//! `headwater erase`: no copy is left, and nothing comes back.

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
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
