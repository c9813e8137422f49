//! Dead letters: somebody else's, which are left for people, and ours, which are parked in their place.

use servicebus::{Client, Config, Map, Message, Settlement};
use testkit::cluster::MongoTopology;

use super::{MetricNames, becomes};
use crate::fixture::{PodFixture, SOON, blueprint};

pub(super) const MOVED: MetricNames = &[
    "headwater_dead_letters",
    "headwater_dead_letters_read_total{fate=\"left\"}",
    "headwater_dead_letters_read_total{fate=\"parked\"}",
];

#[tokio::test]
async fn a_stranger_s_message_is_a_dead_letter_and_left_for_people() {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    becomes(&fixture, "headwater_dead_letters", 0.0).await;
    let bus = Client::new(&fixture.0.broker().connection_string(), Config::default()).unwrap();
    let message = Message::new("hello").with_session("stranger").with_id("theirs").encode();
    bus.sender(fixture.0.broker().topic()).send(&message).await.unwrap();
    becomes(&fixture, "headwater_dead_letters", 1.0).await;
    becomes(&fixture, "headwater_dead_letters_read_total{fate=\"left\"}", 1.0).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_letter_of_ours_is_parked_in_its_place() {
    let fixture = PodFixture::start(blueprint(MongoTopology::Shared)).await;
    // Somebody else has the session, and puts its message aside.
    let bus = Client::new(&fixture.0.broker().connection_string(), Config::default()).unwrap();
    let mut held = bus.accept_session(&fixture.0.broker().subscription(), "order-1").await.unwrap();
    fixture.insert("order-1", 1).await;
    let messages = held.receive(1, SOON).await.unwrap();
    assert_eq!(fixture.metric("headwater_dead_letters_read_total{fate=\"parked\"}").await, Some(0.0));
    let letter =
        Settlement::DeadLetter { reason: "test".into(), description: "by hand".into(), properties: Map::new() };
    held.settle(&messages[..1], letter).await.unwrap();
    held.close().await.unwrap();
    becomes(&fixture, "headwater_dead_letters_read_total{fate=\"parked\"}", 1.0).await;
    becomes(&fixture, "headwater_parked_aggregates{read_model=\"orders\"}", 1.0).await;
    fixture.stop().await;
}
