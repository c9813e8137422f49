//! Dead letters: foreign ones are left for an operator, ours are parked in their read model.

use servicebus::{Map, Message, Settlement};
use testkit::cluster::MongoTopology;

use super::{MetricNames, wait_for_value};
use crate::fixture::{PodFixture, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_dead_letters",
    "headwater_dead_letters_read_total{action=\"left\"}",
    "headwater_dead_letters_read_total{action=\"parked\"}",
];

#[tokio::test]
async fn a_foreign_dead_letter_is_left_in_the_queue() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    wait_for_value(&fixture, "headwater_dead_letters", 0.0).await;
    let bus = fixture.bus_client();
    let message = Message::new("hello").with_session("stranger").with_id("theirs").encode();
    bus.sender(fixture.0.broker().topic()).send(&message).await.unwrap();
    wait_for_value(&fixture, "headwater_dead_letters", 1.0).await;
    wait_for_value(&fixture, "headwater_dead_letters_read_total{action=\"left\"}", 1.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_dead_letter_of_ours_is_parked() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::Shared)).await;
    // Another client holds the session and dead-letters its message.
    let bus = fixture.bus_client();
    let mut held = bus.accept_session(&fixture.0.broker().subscription(), "order-1").await.unwrap();
    fixture.insert("order-1", 1).await;
    let messages = held.receive(1, SOON).await.unwrap();
    assert_eq!(fixture.metric("headwater_dead_letters_read_total{action=\"parked\"}").await, Some(0.0));
    let letter =
        Settlement::DeadLetter { reason: "test".into(), description: "by hand".into(), properties: Map::new() };
    held.settle(&messages[..1], letter).await.unwrap();
    held.close().await.unwrap();
    wait_for_value(&fixture, "headwater_dead_letters_read_total{action=\"parked\"}", 1.0).await;
    wait_for_value(&fixture, "headwater_parked_aggregates{read_model=\"orders\"}", 1.0).await;
    fixture.stop().await;
}
