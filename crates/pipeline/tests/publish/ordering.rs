//! Order per aggregate under faults of Service Bus, and deduplication of republished events.

use std::num::NonZeroUsize;

use pipeline::publish::{Config, PublishEnd};
use testkit::proxy::{NetworkFault, Proxy};

use crate::fixture::*;

#[tokio::test]
async fn events_arrive_once_in_order_and_the_checkpoint_follows() {
    let fixture = PublishFixture::start(|_| {}).await;
    let run = fixture.publish(1, Config::default()).await;
    let events = events(2_000, 40);
    run.send(&events).await;
    run.wait_until_published(2_000).await;
    assert!(run.counts().transfers < 2_000, "queued events are batched: {:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    assert_eq!(fixture.phase().await, stream(2_000));
    fixture.assert_received_in_order(&events).await;
}

/// Many transfers, also if all events are captured before the link is open: a fault needs its occasions.
fn small_batches() -> Config {
    Config { batch_count: NonZeroUsize::new(4).unwrap(), ..Config::default() }
}

#[tokio::test]
async fn order_holds_when_acknowledgements_are_lost() {
    let fixture = PublishFixture::with_default_topic().await;
    fixture.inject(r#"{"kind": "lose_acknowledgement", "skip": 20, "times": 5, "one_in": 7, "seed": 3}"#).await;
    let run = fixture.publish(1, small_batches()).await;
    let events = events(1_000, 20);
    run.send(&events).await;
    run.wait_until_published(1_000).await;
    assert!(run.counts().uncertain > 0, "{:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_when_messages_are_throttled() {
    // Without duplicate detection: a refused message is not stored, so there must be no duplicate.
    let fixture = PublishFixture::start(|_| {}).await;
    fixture.inject(r#"{"kind": "server_busy", "skip": 10, "times": 40, "one_in": 3, "seed": 5}"#).await;
    let run = fixture.publish(1, Config::default()).await;
    let events = events(1_000, 20);
    run.send(&events).await;
    run.wait_until_published(1_000).await;
    assert!(run.counts().retried > 0, "{:?}", run.counts());
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_when_links_are_detached() {
    let fixture = PublishFixture::with_default_topic().await;
    fixture.inject(r#"{"kind": "detach_link", "skip": 30, "times": 6, "one_in": 9, "seed": 2}"#).await;
    let run = fixture.publish(1, small_batches()).await;
    let events = events(1_000, 50);
    run.send(&events).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn order_holds_when_connections_are_reset() {
    let fixture = PublishFixture::with_default_topic().await;
    let proxy = Proxy::start(fixture.broker.address()).await.unwrap();
    let gate = std::sync::Arc::new(true.into());
    let topic = fixture.topic(fixture.client(proxy.address()), &gate);
    let run = fixture.publish_to(topic, gate, 1, Config::default()).await;
    let events = events(3_000, 100);
    for (cut, part) in events.chunks(500).enumerate() {
        run.send(part).await;
        if cut % 2 == 0 {
            proxy.inject(NetworkFault::Reset).await;
            proxy.heal().await;
        }
    }
    run.wait_until_published(3_000).await;
    assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    fixture.assert_received_in_order(&events).await;
}

#[tokio::test]
async fn events_republished_by_the_next_leader_are_deduplicated() {
    let fixture = PublishFixture::with_default_topic().await;
    let events = events(300, 10);
    for term in [1, 2] {
        let run = fixture.publish(term, Config::default()).await;
        run.send(&events).await;
        assert_eq!(run.drain().await.unwrap(), PublishEnd::Drained);
    }
    fixture.assert_received_in_order(&events).await;
}
