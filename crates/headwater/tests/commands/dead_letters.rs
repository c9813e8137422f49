//! `dead-letters` of the built binary: list, show, park and discard.

use mongodb::bson::Bson;
use serde_json::json;
use servicebus::{Map, Message, Settlement};
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

/// The list once it has so many entries that a pod has set aside.
async fn wait_for_list(fixture: &CliFixture, count: usize) -> serde_json::Value {
    wait_for("the dead letters", SOON, async || {
        let list = fixture.run(&["dead-letters", "list", "--json"]).await.json();
        let set_aside = list.as_array().unwrap().iter().filter(|it| it["state"] == "set aside").count();
        if set_aside == count { Ok(list) } else { Err(list) }
    })
    .await
}

#[tokio::test]
async fn dead_letters_are_listed_shown_parked_and_discarded() {
    let fixture = CliFixture::new("dead_letters", MODELS).await;
    fixture.run(&["topology", "apply"]).await.success();
    assert_eq!(fixture.run(&["dead-letters", "list"]).await.success(), "no dead letters in `read-models`\n");
    let pod = fixture.start_pod("pod-1");
    let bus = fixture.broker.client(servicebus::Config::default());
    // Somebody else's message, which pods set aside.
    let foreign = Message::new("a secret").with_session("stranger").with_id("theirs").encode();
    bus.sender("events").send(&foreign).await.unwrap();
    let listed = wait_for_list(&fixture, 1).await;
    assert_eq!((&listed[0]["reason"], &listed[0]["message"]), (&json!("headwater-unreadable"), &json!("theirs")));
    let number = listed[0]["number"].to_string();
    let shown = fixture.run(&["dead-letters", "show", &number]).await.success();
    assert!(!shown.contains("a secret"), "{shown}");
    assert_eq!(fixture.run(&["dead-letters", "show", &number, "--body"]).await.json()["body"], "a secret");
    let foreign = fixture.run(&["dead-letters", "park", &number]).await.failure();
    assert!(foreign.contains("it is no event of this pipeline"), "{foreign}");
    assert_eq!(fixture.run(&["dead-letters", "discard", &number]).await.status.code(), Some(2), "it needs --yes");
    fixture.run(&["dead-letters", "discard", &number, "--yes"]).await.success();
    assert_eq!(fixture.run(&["dead-letters", "list", "--json"]).await.json(), json!([]));

    // An event of ours, with a reason that pods leave to an operator.
    let mut held = bus.accept_session("events/Subscriptions/read-models", "order-1").await.unwrap();
    fixture.insert("order-1", 1, "Added", mongodb::bson::doc! { "amount": 5 }).await;
    let messages = held.receive(1, SOON).await.unwrap();
    let letter = Settlement::DeadLetter {
        reason: "headwater-signature".into(),
        description: "by hand".into(),
        properties: Map::new(),
    };
    held.settle(&messages[..1], letter).await.unwrap();
    held.close().await.unwrap();
    let listed = wait_for_list(&fixture, 1).await;
    let number = listed[0]["number"].to_string();
    let parked = fixture.run(&["dead-letters", "park", &number]).await.success();
    assert!(parked.contains("is parked"), "{parked}");
    assert_eq!(fixture.run(&["dead-letters", "list", "--json"]).await.json(), json!([]));
    let list = fixture.run(&["parked", "list", "--json"]).await.json();
    assert_eq!((&list[0]["aggregate"], &list[0]["reason"]), (&json!("order-1"), &json!("dead_lettered")), "{list}");
    fixture.run(&["parked", "retry", "order-1"]).await.success();
    fixture.run(&["wait", "order-1", "--sequence", "1"]).await.success();
    assert_eq!(
        fixture.history().await,
        ["parked retry", "dead-letters park", "dead-letters discard", "topology apply"]
    );
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

#[tokio::test]
async fn a_poison_event_without_a_sequence_is_queued_once() {
    let models = format!("{MODELS}\nconsumer: {{ on_poison: dead_letter }}\nproducer: {{ start: now }}\n");
    let fixture = CliFixture::new("dead_letters_unsequenced", &models).await;
    fixture.edit_config(|text| text.replace(", sequence: version", ""));
    fixture.run(&["topology", "apply"]).await.success();
    let pod = fixture.start_pod("pod-1");
    wait_for("the checkpoint", SOON, async || {
        let status = fixture.run(&["status", "--json"]).await.json();
        if status["checkpoint"]["phase"] == "stream" { Ok(()) } else { Err(status["checkpoint"].to_string()) }
    })
    .await;
    // The second event queues behind the poison, so the cursor knows the place of the first one no more.
    for (version, amount) in [(1, Bson::from("x")), (2, Bson::from(5))] {
        fixture.insert("order-1", version, "Added", mongodb::bson::doc! { "amount": amount }).await;
    }
    let waiting = async || fixture.run(&["parked", "list", "--json"]).await.json()[0]["waiting"].clone();
    wait_for("both events", SOON, async || {
        let waiting = waiting().await;
        if waiting == 2 { Ok(()) } else { Err(waiting) }
    })
    .await;
    let listed = wait_for_list(&fixture, 1).await;
    assert_eq!(listed[0]["reason"], "headwater-poison");
    let parked = fixture.run(&["dead-letters", "park", &listed[0]["number"].to_string()]).await.success();
    assert!(parked.contains("was applied or parked before"), "{parked}");
    assert_eq!(waiting().await, 2, "not a second time");
    assert_eq!(fixture.run(&["dead-letters", "list", "--json"]).await.json(), json!([]));
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
