//! Publishing pauses while the subscription is missing or Service Bus is unreachable, and resumes without operator action.

use pipeline::publish::{Config, PauseReason, PublishEnd, PublishState};
use testkit::proxy::{NetworkFault, Proxy};

use crate::fixture::*;

#[tokio::test]
async fn publishing_pauses_while_the_subscription_is_missing() {
    let fixture = PublishFixture::without_subscription(|_| {}).await;
    let run = fixture.publish(1, Config::default()).await;
    let events = events(100, 10);
    run.send(&events).await;
    run.wait_for_state(PublishState::Paused(PauseReason::SubscriptionMissing)).await;
    assert_eq!(run.counts().published, 0);
    fixture.subscribe().await;
    run.wait_until_published(100).await;
    assert_eq!(run.handle.state(), PublishState::Publishing);

    // Again, when the subscription is deleted during publishing.
    fixture.assert_received_in_order(&events).await;
    fixture.unsubscribe().await;
    run.wait_for_state(PublishState::Paused(PauseReason::SubscriptionMissing)).await;
    run.send(&events).await;
    assert_eq!(run.counts().published, 100);
    fixture.subscribe().await;
    run.wait_until_published(200).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn publishing_pauses_while_the_bus_is_unreachable() {
    let fixture = PublishFixture::with_default_topic().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    proxy.inject(NetworkFault::Reset).await;
    let gate = std::sync::Arc::new(true.into());
    let topic = fixture.topic(fixture.client(proxy.address()), &gate);
    let run = fixture.publish_to(topic, gate, 1, Config::default()).await;
    let events = events(10, 2);
    run.send(&events).await;
    run.wait_for_state(PublishState::Paused(PauseReason::Unreachable)).await;
    proxy.heal().await;
    run.wait_until_published(10).await;
    run.wait_for_state(PublishState::Publishing).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}
