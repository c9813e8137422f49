//! A pod parks an event before the subscription it really has would dead-letter the message.

use servicebus::{Map, Settlement};
use testkit::mongo::shared;
use testkit::wait::wait_for;

use crate::fixture::{CliFixture, SOON};

const SUBSCRIPTION: &str = "events/Subscriptions/read-models";
const MODELS: &str =
    "read_models: { database: VIEWS, totals: { when: { Added: { $inc: { total: $$event.payload.amount } } } } }";

/// Delivers the first message of the session so many times without an end.
async fn abandon(fixture: &CliFixture, session: &str, times: u32) {
    let bus = fixture.broker.client(servicebus::Config::default());
    for _ in 0..times {
        let mut held = bus.accept_session(SUBSCRIPTION, session).await.unwrap();
        let messages = held.receive(1, SOON).await.unwrap();
        held.settle(&messages[..1], Settlement::Abandon { properties: Map::new() }).await.unwrap();
        held.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_parks_at_half_of_the_real_delivery_count() {
    let fixture = CliFixture::new("delivery_limit", "").await;
    fixture.run(&["topology", "apply"]).await.success();
    let bus = fixture.administration();
    let mut subscription = bus.get(SUBSCRIPTION).await.unwrap().unwrap();
    assert!(subscription.set("MaxDeliveryCount", "10"));
    bus.update(SUBSCRIPTION, &subscription).await.unwrap();
    fixture.insert("order-1", 1, "Added", mongodb::bson::doc! { "amount": 1 }).await;
    // Without read models it only publishes.
    let publisher = fixture.start_pod("publisher");
    wait_for("the message", SOON, async || {
        let subscription = bus.get(SUBSCRIPTION).await.unwrap().unwrap();
        if subscription.count("ActiveMessageCount") == Some(1) { Ok(()) } else { Err("not published") }
    })
    .await;
    publisher.terminate();
    assert!(publisher.wait_for_exit(SOON).await.success());
    abandon(&fixture, "order-1", 5).await;

    fixture.configure(shared().await.unwrap().uri(), MODELS);
    let pod = fixture.start_pod("pod-1");
    wait_for("the event to be parked", SOON, async || {
        let output = fixture.run(&["parked", "list", "--json"]).await;
        if output.json()[0]["reason"] == "delivery_count" { Ok(()) } else { Err(output.stdout) }
    })
    .await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}
