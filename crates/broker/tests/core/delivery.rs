use broker::core::*;

use crate::fixture::*;

#[test]
fn messages_are_delivered_in_order_within_credit() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b", "c"]);
    let link = fixture.receiver(queue, 2);
    assert_eq!(fixture.take_bodies(link), ["a", "b"]);
    fixture.credit(link, 5);
    assert_eq!(fixture.take_bodies(link), ["c"]);
    fixture.send_all(queue.entity, &["d"]);
    assert_eq!(fixture.take_bodies(link), ["d"], "credit left over takes what comes later");
}

#[test]
fn receivers_of_one_queue_are_served_round_robin() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let (one, other) = (fixture.receiver(queue, 10), fixture.receiver(queue, 1));
    fixture.send_all(queue.entity, &["a", "b", "c", "d"]);
    assert_eq!(fixture.take_bodies(one), ["a", "c", "d"]);
    assert_eq!(fixture.take_bodies(other), ["b"]);
}

#[test]
fn every_subscription_gets_a_copy_of_one_stored_body() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let (one, other) = (fixture.subscription("t", "one", |_| {}), fixture.subscription("t", "other", |_| {}));
    fixture.send_all(topic, &["a"]);
    let links = [fixture.receiver(one, 1), fixture.receiver(other, 1)];
    let deliveries = links.map(|link| fixture.receive_one(link));
    assert_eq!(deliveries[0].location, deliveries[1].location);
    assert_ne!(deliveries[0].token, deliveries[1].token);
    fixture.complete(one, &deliveries[0]);
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [1], "the other still needs it");
    fixture.complete(other, &deliveries[1]);
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_topic_without_subscriptions_accepts_messages() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    assert_eq!(fixture.send(topic, message("a")), SequenceNumber(1));
    let subscription = fixture.subscription("t", "late", |_| {});
    assert_eq!(fixture.send(topic, message("b")), SequenceNumber(2));
    let link = fixture.receiver(subscription, 5);
    assert_eq!(fixture.take_bodies(link), ["b"]);
}

#[test]
fn receive_and_delete_settles_on_delivery() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b"]);
    let link = fixture.receive_and_delete_link(queue, 1);
    let delivery = fixture.receive_one(link);
    assert!(delivery.settled);
    assert_eq!(fixture.counts("q").active, 1);
    fixture.restart();
    assert_eq!(fixture.counts("q").active, 1, "what went out does not come back");
}

#[test]
fn a_drain_delivers_available_messages_and_ends_the_credit() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 0);
    fixture.drain(link, 10);
    assert_eq!(fixture.take_bodies(link), ["a"]);
    assert_eq!(fixture.events(link).drained, Some(10));
    fixture.send_all(queue.entity, &["b"]);
    assert!(fixture.take_deliveries(link).is_empty(), "no credit is left");
    fixture.credit(link, 1);
    assert_eq!(fixture.take_bodies(link), ["b"]);
}

#[test]
fn a_link_that_settles_nothing_is_limited() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    (0..150).for_each(|n| fixture.send_all(queue.entity, &[&n.to_string()]));
    let link = fixture.receiver(queue, 1000);
    let received = fixture.take_deliveries(link);
    assert_eq!(received.len(), 100, "as many as `max_unsettled`");
    fixture.complete(queue, &received[0]);
    assert_eq!(fixture.take_deliveries(link).len(), 1);
}

#[test]
fn a_detached_link_gets_nothing_more() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let link = fixture.receiver(queue, 10);
    fixture.detach(link);
    fixture.send_all(queue.entity, &["a"]);
    assert!(fixture.take_deliveries(link).is_empty());
    let next = fixture.receiver(queue, 1);
    assert_eq!(fixture.take_bodies(next), ["a"]);
}

#[test]
fn links_attach_with_or_without_session_filter() {
    let mut fixture = CoreFixture::new();
    let (plain, sessions) = (fixture.queue("p", |_| {}), fixture.session_queue("s"));
    let condition = |result: Result<_, Error>| result.map(|_: (CoreLinkId, AttachResult)| ()).unwrap_err().condition();
    let named = SessionFilter::Named("s".into());
    assert_eq!(condition(fixture.try_attach(plain, ReceiveMode::PeekLock, named)), "amqp:not-allowed");
    assert_eq!(condition(fixture.try_attach(sessions, ReceiveMode::PeekLock, SessionFilter::None)), "amqp:not-allowed");
    assert!(fixture.try_attach(dead_letters(sessions), ReceiveMode::PeekLock, SessionFilter::None).is_ok());
    let missing = QueueId::main(EntityId(99));
    assert_eq!(condition(fixture.try_attach(missing, ReceiveMode::PeekLock, SessionFilter::None)), "amqp:not-found");
}

/// Three of these exceed a connection's minimum budget.
fn large() -> IncomingMessage {
    message(&"x".repeat(100 << 10))
}

fn without_outgoing_budget() -> CoreFixture {
    let mut fixture = CoreFixture::new();
    fixture.core = Core::new(BrokerLimits { max_outgoing: 0, ..BrokerLimits::default() }, [7; 32]);
    fixture
}

#[test]
fn a_connection_that_does_not_read_gets_no_more_deliveries() {
    let mut fixture = without_outgoing_budget();
    let queue = fixture.queue("q", |_| {});
    for _ in 0..10 {
        fixture.send(queue.entity, large());
    }
    // WHEN one connection has three links with ample credit and writes nothing
    let links = [(); 3].map(|()| fixture.receiver(queue, 1_000));
    let deliveries: Vec<_> = links.iter().flat_map(|link| fixture.take_deliveries(*link)).collect();
    assert_eq!(deliveries.len(), 3, "its share, and the one that passed it");
    assert!(fixture.core.is_reading(ConnectionId(0)), "deliveries alone do not make it deaf");
    fixture.core.record_output(ConnectionId(0), 512 << 10);
    assert!(!fixture.core.is_reading(ConnectionId(0)));
    fixture.call(|core, call| core.record_written(call, ConnectionId(0), 512 << 10));
    // THEN another connection still gets its share
    let other = ConnectionId(9).link(1);
    fixture.call(|core, call| core.attach(call, other, queue, ReceiveMode::PeekLock, SessionFilter::None)).unwrap();
    fixture.credit(other, 1_000);
    assert_eq!(fixture.take_deliveries(other).len(), 3);
    // AND deliveries continue after a write, for each of its links in turn
    let outgoing_size = deliveries[0].outgoing_size();
    fixture.call(|core, call| core.record_written(call, ConnectionId(0), 2 * outgoing_size));
    assert_eq!(links.map(|link| fixture.take_deliveries(link).len()).iter().sum::<usize>(), 2);
    // AND a closed connection leaves nothing behind
    links.into_iter().for_each(|link| fixture.detach(link));
    fixture.core.remove_connection(ConnectionId(0));
    let next = fixture.receiver(queue, 1_000);
    assert_eq!(fixture.take_deliveries(next).len(), 2, "all there is");
}

#[test]
fn a_session_waits_for_outgoing_budget() {
    let mut fixture = without_outgoing_budget();
    let queue = fixture.session_queue("q");
    for _ in 0..5 {
        fixture.send(queue.entity, IncomingMessage { session_id: Some("s".into()), ..large() });
    }
    let link = fixture.named_session(queue, "s").unwrap();
    fixture.credit(link, 10);
    let first = fixture.take_deliveries(link);
    assert_eq!(first.len(), 3);
    fixture.call(|core, call| core.record_written(call, ConnectionId(0), usize::MAX));
    assert_eq!(fixture.take_deliveries(link).len(), 2);
}

#[test]
fn a_drain_reply_follows_messages_that_waited_for_budget() {
    let mut fixture = without_outgoing_budget();
    let queue = fixture.queue("q", |_| {});
    for _ in 0..5 {
        fixture.send(queue.entity, large());
    }
    let link = fixture.receiver(queue, 0);
    fixture.drain(link, 10);
    assert_eq!((fixture.take_deliveries(link).len(), fixture.events(link).drained), (3, None));
    fixture.call(|core, call| core.record_written(call, ConnectionId(0), usize::MAX));
    assert_eq!((fixture.take_deliveries(link).len(), fixture.events(link).drained), (2, Some(10)));
}
