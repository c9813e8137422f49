//! Order per aggregate holds whatever the bus does, and what is sent twice is there once.

use pipeline::publish::{Config, PublishEnd};
use testkit::proxy::{NetworkFault, Proxy};

use crate::house::*;

#[tokio::test]
async fn everything_arrives_once_and_in_order_and_the_checkpoint_stands_at_its_end() {
    let house = House::start(|_| {}).await;
    let run = house.publish(1, Config::default()).await;
    let events = events(2_000, 40);
    run.give(&events).await;
    run.published(2_000).await;
    assert!(run.counts().transfers < 2_000, "what waits goes together: {:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(house.phase().await, stream(2_000));
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_when_acknowledgements_are_lost_after_the_store() {
    let house = House::as_designed().await;
    house.arm(r#"{"kind": "lose_acknowledgement", "skip": 20, "times": 5, "one_in": 7, "seed": 3}"#).await;
    let run = house.publish(1, Config::default()).await;
    let events = events(1_000, 20);
    run.give(&events).await;
    run.published(1_000).await;
    assert!(run.counts().uncertain > 0, "{:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_when_messages_in_the_middle_of_a_run_are_throttled() {
    // Without duplicate detection: what was refused was not stored, so nothing may come twice either.
    let house = House::start(|_| {}).await;
    house.arm(r#"{"kind": "server_busy", "skip": 10, "times": 40, "one_in": 3, "seed": 5}"#).await;
    let run = house.publish(1, Config::default()).await;
    let events = events(1_000, 20);
    run.give(&events).await;
    run.published(1_000).await;
    assert!(run.counts().retried > 0, "{:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_on_a_partitioned_topic_whose_links_are_taken_away() {
    let house = House::as_designed().await;
    house.arm(r#"{"kind": "detach_link", "skip": 30, "times": 6, "one_in": 9, "seed": 2}"#).await;
    let run = house.publish(1, Config::default()).await;
    let events = events(1_000, 50);
    run.give(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_through_a_network_that_is_cut_again_and_again() {
    let house = House::as_designed().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = house.topic(house.client(proxy.address()), &gate);
    let run = house.publish_to(topic, gate, 1, Config::default()).await;
    let events = events(3_000, 100);
    for (cut, part) in events.chunks(500).enumerate() {
        run.give(part).await;
        if cut % 2 == 0 {
            proxy.inject(NetworkFault::Reset).await;
            proxy.heal().await;
        }
    }
    run.published(3_000).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn what_the_next_leader_sends_again_is_there_once() {
    let house = House::as_designed().await;
    let events = events(300, 10);
    for term in [1, 2] {
        let run = house.publish(term, Config::default()).await;
        run.give(&events).await;
        assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    }
    house.holds_in_order(&events).await;
}
