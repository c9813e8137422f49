//! `$management` is there as long as its entity, and no longer: by that a client learns at once that a subscription is gone.

use amqp::performative::Performative;
use amqp::{Attach, Source, Target};
use broker::core::{Description, SubscriptionDescription, TopicDescription};
use broker::{Broker, Persistence};
use servicebus::{Client, Config};
use tokio::time::timeout;

use crate::house::SOON;
use crate::peer::{Peer, attach};

async fn broker() -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), Persistence::Ephemeral);
    config.entities = vec![
        ("t".into(), Description::Topic(TopicDescription::default())),
        ("t/Subscriptions/s".into(), Description::Subscription(SubscriptionDescription::default())),
    ];
    Broker::start(config).await.expect("a broker")
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
        let mut peer = Peer::begun(broker.address()).await;
        peer.frame(0, &link).await;
        assert_eq!(peer.verdict().await, Some(("detach", "amqp:not-found".into())));
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
    let mut peer = Peer::begun(broker.address()).await;
    peer.frame(0, &requests(node)).await;
    peer.frame(0, &responses(node)).await;
    for _ in 0..2 {
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
    }
    let client = Client::new(&broker.connection_string(), Config::default()).expect("a client");
    assert!(client.entity_exists("t/Subscriptions/s").await.expect("an answer"));
    let disturbed = tokio::spawn({
        let client = client.clone();
        async move { client.entity_disturbed("t/Subscriptions/s").await }
    });
    delete(&broker, "/t/Subscriptions/s").await;
    for _ in 0..2 {
        assert_eq!(peer.verdict().await, Some(("detach", "amqp:not-found".into())));
    }
    timeout(SOON, disturbed).await.expect("it is told").expect("it does not panic");
    assert!(!client.entity_exists("t/Subscriptions/s").await.expect("an answer"));
    broker.stop().await;
}

async fn delete(broker: &Broker, path: &str) {
    let answer = crate::house::request(broker.address(), "DELETE", path, "", b"").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
