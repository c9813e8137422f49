//! `$management` exists exactly as long as its entity: so a client notices at once that a subscription is deleted.

use amqp::codec::RawValue;
use amqp::performative::Performative;
use amqp::{Attach, Source, Target, Value};
use broker::core::{EntityDefinition, SubscriptionDescription, TopicDescription};
use broker::{Broker, StorageLocation};
use servicebus::{Client, Config};
use tokio::time::timeout;

use crate::fixture::SOON;
use crate::raw_peer::{RawPeer, attach, message, transfer};

async fn broker() -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    config.entities = vec![
        ("t".into(), EntityDefinition::Topic(TopicDescription::default())),
        ("t/Subscriptions/s".into(), EntityDefinition::Subscription(SubscriptionDescription::default())),
        ("t/Subscriptions/sessions".into(), EntityDefinition::Subscription(with_sessions())),
    ];
    Broker::start(config).await.expect("a broker")
}

fn with_sessions() -> SubscriptionDescription {
    let mut description = SubscriptionDescription::default();
    description.egress.requires_session = true;
    description
}

fn requests(node: &str) -> Performative {
    attach(Attach::sender("ask", Source::at("me"), Target::at(node)))
}

fn responses(node: &str) -> Performative {
    attach(Attach { handle: 1, ..Attach::receiver("hear", Source::at(node), Target::at("me")) })
}

#[tokio::test]
async fn the_node_of_what_is_not_there_is_not_attached_to() {
    let broker = broker().await;
    for link in [requests("t/Subscriptions/gone/$management"), responses("nothing/$management")] {
        let mut peer = RawPeer::begun(broker.address()).await;
        peer.frame(0, &link).await;
        assert_eq!(peer.close_error().await, Some(("detach", "amqp:not-found".into())));
        // The same AMQP session goes on.
        peer.frame(
            0,
            &attach(Attach { handle: 7, ..Attach::receiver("r", Source::at("t/Subscriptions/s"), Target::at("me")) }),
        )
        .await;
        let Performative::Attach(answer) = peer.until(|frame| matches!(frame, Performative::Attach(_))).await else {
            unreachable!("just matched")
        };
        assert!(answer.source.is_some(), "it is attached");
    }
    broker.stop().await;
}

#[tokio::test]
async fn the_links_of_a_node_go_with_its_entity() {
    let broker = broker().await;
    let node = "t/Subscriptions/s/$management";
    let mut peer = RawPeer::begun(broker.address()).await;
    peer.frame(0, &requests(node)).await;
    peer.frame(0, &responses(node)).await;
    for _ in 0..2 {
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
    }
    let client = Client::new(&broker.connection_string(), Config::default()).expect("a client");
    assert!(client.entity_exists("t/Subscriptions/s").await.expect("an answer"));
    let disturbed = tokio::spawn({
        let client = client.clone();
        async move { client.management_link_closed("t/Subscriptions/s").await }
    });
    delete(&broker, "/t/Subscriptions/s").await;
    for _ in 0..2 {
        assert_eq!(peer.close_error().await, Some(("detach", "amqp:not-found".into())));
    }
    timeout(SOON, disturbed).await.expect("the close is noticed").expect("it does not panic");
    assert!(!client.entity_exists("t/Subscriptions/s").await.expect("an answer"));
    broker.stop().await;
}

#[tokio::test]
async fn links_are_detached_with_an_error_when_the_entity_is_deleted() {
    let broker = broker().await;
    let gone = Some(("detach", "amqp:not-found".into()));
    // GIVEN a sender to a topic, a receiver of its subscription, and one that waits for a session of another
    let mut sender = RawPeer::sending(broker.address(), "t").await;
    let mut receiver = RawPeer::receiving(broker.address(), "t/Subscriptions/s").await;
    let mut source = Source::at("t/Subscriptions/sessions");
    source.filter.get_or_insert_default().set("com.microsoft:session-filter", RawValue::from_value(&Value::Null));
    let mut waiting = RawPeer::begun(broker.address()).await;
    waiting.frame(0, &attach(Attach::receiver("r", source, Target::at("me")))).await;
    // WHEN a subscription is deleted, THEN only its receiver is detached
    delete(&broker, "/t/Subscriptions/s").await;
    assert_eq!(receiver.close_error().await, gone);
    sender.frame_with(0, &transfer(0, 0, false), &message(10)).await;
    sender.until(|frame| matches!(frame, Performative::Disposition(_))).await;
    // WHEN the topic is deleted, THEN all others are detached
    delete(&broker, "/t").await;
    assert_eq!(sender.close_error().await, gone);
    assert_eq!(waiting.close_error().await, gone);
    broker.stop().await;
}

#[tokio::test]
async fn a_topic_exists_like_any_other_entity() {
    let broker = broker().await;
    let client = Client::new(&broker.connection_string(), Config::default()).expect("a client");
    for (entity, there) in [("t", true), ("t/Subscriptions/s", true), ("T", true), ("nothing", false)] {
        assert_eq!(client.entity_exists(entity).await.expect("an answer"), there, "{entity}");
    }
    broker.stop().await;
}

async fn delete(broker: &Broker, path: &str) {
    let answer = crate::fixture::request(broker.address(), "DELETE", path, "", b"").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
