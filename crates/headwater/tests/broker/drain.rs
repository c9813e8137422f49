//! Credit and drain: all credit is used while there are messages; then the drain gets its reply.

use amqp::performative::{Flow, Performative};
use broker::core::{EntityDefinition, QueueDescription};
use broker::{Broker, StorageLocation};
use bytes::BytesMut;

use crate::raw_peer::{self, RawPeer, message, transfer};

async fn broker_with(messages: u32) -> Broker {
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), StorageLocation::Ephemeral);
    config.entities = vec![("q".into(), EntityDefinition::Queue(QueueDescription::default()))];
    let broker = Broker::start(config).await.expect("a broker");
    send(&broker, messages).await;
    broker
}

async fn send(broker: &Broker, messages: u32) {
    let mut sender = RawPeer::sending(broker.address(), "q").await;
    let mut sends = BytesMut::new();
    (0..messages).for_each(|id| raw_peer::write_performative(&mut sends, 0, &transfer(0, id, false), &message(100)));
    sender.write(&sends).await;
    let mut accepted = 0;
    while accepted < messages {
        let frame = sender.until(|frame| matches!(frame, Performative::Disposition(_))).await;
        let Performative::Disposition(disposition) = frame else { unreachable!("just matched") };
        accepted = disposition.last.unwrap_or(disposition.first) + 1;
    }
}

fn flow(delivery_count: u32, credit: u32, drain: bool) -> Performative {
    let Performative::Flow(flow) = raw_peer::credit(0, credit, u32::MAX / 4) else { unreachable!("credit is a flow") };
    Performative::Flow(Flow { delivery_count: Some(delivery_count), drain, ..flow })
}

fn drain(delivery_count: u32, credit: u32) -> Performative {
    flow(delivery_count, credit, true)
}

/// Counts transfers until the reply to the drain; returns the reply's delivery-count too.
async fn drained(peer: &mut RawPeer) -> (u32, Option<u32>) {
    let mut transfers = 0;
    loop {
        match peer.next().await.expect("the broker goes on") {
            Performative::Transfer(transfer) if !transfer.more => transfers += 1,
            Performative::Flow(flow) if flow.drain => {
                assert_eq!(flow.link_credit, Some(0));
                return (transfers, flow.delivery_count);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_drain_delivers_everything_before_its_reply() {
    // More than one credit window of the core.
    let broker = broker_with(1_800).await;
    let mut receiver = RawPeer::receiving(broker.address(), "q").await;
    receiver.frame(0, &drain(0, 5_000)).await;
    assert_eq!(drained(&mut receiver).await, (1_800, Some(5_000)));
    // The queue is empty: the reply comes at once.
    receiver.frame(0, &drain(5_000, 7)).await;
    assert_eq!(drained(&mut receiver).await, (0, Some(5_007)));
    broker.stop().await;
}

#[tokio::test]
async fn a_drain_ends_with_the_credit() {
    let broker = broker_with(100).await;
    let mut receiver = RawPeer::receiving(broker.address(), "q").await;
    receiver.frame(0, &drain(0, 60)).await;
    assert_eq!(drained(&mut receiver).await, (60, Some(60)));
    receiver.frame(0, &drain(60, 60)).await;
    assert_eq!(drained(&mut receiver).await, (40, Some(120)));
    broker.stop().await;
}

#[tokio::test]
async fn a_drain_without_credit_is_answered_once() {
    let broker = broker_with(0).await;
    let mut receiver = RawPeer::receiving(broker.address(), "q").await;
    for delivered in 0..20 {
        receiver.frame(0, &drain(delivered, 0)).await;
        assert_eq!(drained(&mut receiver).await, (0, Some(delivered)));
        receiver.frame(0, &flow(delivered, 1, false)).await;
        send(&broker, 1).await;
        // A second reply would come before the delivery, or take its credit.
        match receiver.until(|frame| matches!(frame, Performative::Transfer(_) | Performative::Flow(_))).await {
            Performative::Transfer(_) => {}
            other => panic!("{other:?}"),
        }
    }
    broker.stop().await;
}
