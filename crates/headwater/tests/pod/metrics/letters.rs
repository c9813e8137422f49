//! Dead letters: somebody else's, which are left for people, and ours, which are parked in their place.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use servicebus::{Client, Config, Map, Message, Settlement};
use testkit::cluster::{Blueprint, StoreKind, Topic};

use super::{Moved, becomes};
use crate::house::{House, SOON, blueprint};

pub(super) const MOVED: Moved = &[
    "headwater_dead_letters",
    "headwater_dead_letters_read_total{fate=\"left\"}",
    "headwater_dead_letters_read_total{fate=\"parked\"}",
];

#[tokio::test]
async fn a_stranger_s_message_is_a_dead_letter_and_left_for_people() {
    let house = House::start(blueprint(StoreKind::Shared)).await;
    becomes(&house, "headwater_dead_letters", 0.0).await;
    let bus = Client::new(&house.0.broker().connection_string(), Config::default()).unwrap();
    let message = Message::new("hello").with_session("stranger").with_id("theirs").encode();
    bus.sender(house.0.broker().topic()).send(&message).await.unwrap();
    becomes(&house, "headwater_dead_letters", 1.0).await;
    becomes(&house, "headwater_dead_letters_read_total{fate=\"left\"}", 1.0).await;
    house.stop().await;
}

#[tokio::test]
async fn a_letter_of_ours_is_parked_in_its_place() {
    // A dead pod's lock runs out soon.
    let topic = Topic { lock: Duration::from_secs(5), ..Topic::default() };
    let mut house = House::start(Blueprint { topic, ..blueprint(StoreKind::Shared) }).await;
    // It cannot be applied, so that it is still on the bus when the pod is gone.
    let client = house.0.store().client().clone();
    let orders = client.database(&house.views()).collection::<Document>("orders");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    orders.insert_one(doc! { "_id": "order-1" }).session(&mut session).await.unwrap();
    house.insert("order-1", 1).await;
    becomes(&house, "headwater_messages_received_total", 1.0).await;
    house.0.pod_mut(0).kill().await;
    session.abort_transaction().await.unwrap();

    let bus = Client::new(&house.0.broker().connection_string(), Config::default()).unwrap();
    let mut held = bus.accept_session(&house.0.broker().subscription(), "order-1").await.unwrap();
    let messages = held.receive(1, SOON).await.unwrap();
    let letter =
        Settlement::DeadLetter { reason: "test".into(), description: "by hand".into(), properties: Map::new() };
    held.settle(&messages[..1], letter).await.unwrap();
    held.close().await.unwrap();

    house.0.restart_pod(0).await.unwrap();
    becomes(&house, "headwater_dead_letters_read_total{fate=\"parked\"}", 1.0).await;
    becomes(&house, "headwater_parked_aggregates{read_model=\"orders\"}", 1.0).await;
    house.stop().await;
}
