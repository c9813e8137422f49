//! Publishing pauses while nobody would keep what is sent, and goes on by itself.

use pipeline::publish::{Config, PauseReason, PublishEnd, PublishState};
use testkit::proxy::{NetworkFault, Proxy};

use crate::house::*;

#[tokio::test]
async fn nothing_is_sent_while_the_subscription_is_missing() {
    let house = House::without_subscription(|_| {}).await;
    let run = house.publish(1, Config::default()).await;
    let events = events(100, 10);
    run.give(&events).await;
    run.is_in(PublishState::Paused(PauseReason::SubscriptionMissing)).await;
    assert_eq!(run.counts().published, 0);
    house.subscribe().await;
    run.published(100).await;
    assert_eq!(run.handle.state(), PublishState::Publishing);

    // And again, when it is taken away in the middle.
    house.holds_in_order(&events).await;
    house.unsubscribe().await;
    run.is_in(PublishState::Paused(PauseReason::SubscriptionMissing)).await;
    run.give(&events).await;
    assert_eq!(run.counts().published, 100);
    house.subscribe().await;
    run.published(200).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}

#[tokio::test]
async fn a_bus_that_cannot_be_reached_is_a_pause_and_not_an_end() {
    let house = House::as_designed().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    proxy.inject(NetworkFault::Reset).await;
    let gate = std::sync::Arc::new(true.into());
    let topic = house.topic(house.client(proxy.address()), &gate);
    let run = house.publish_to(topic, gate, 1, Config::default()).await;
    let events = events(10, 2);
    run.give(&events).await;
    run.is_in(PublishState::Paused(PauseReason::Unreachable)).await;
    proxy.heal().await;
    run.published(10).await;
    run.is_in(PublishState::Publishing).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    house.holds_in_order(&events).await;
}
