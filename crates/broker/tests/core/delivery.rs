use broker::core::*;

use crate::rig::*;

#[test]
fn messages_arrive_in_order_as_far_as_credit_goes() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a", "b", "c"]);
    let link = rig.receiver(queue, 2);
    assert_eq!(rig.bodies(link), ["a", "b"]);
    rig.credit(link, 5);
    assert_eq!(rig.bodies(link), ["c"]);
    rig.send_all(queue.entity, &["d"]);
    assert_eq!(rig.bodies(link), ["d"], "credit left over takes what comes later");
}

#[test]
fn receivers_of_one_queue_compete_in_turn() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    let (one, other) = (rig.receiver(queue, 10), rig.receiver(queue, 1));
    rig.send_all(queue.entity, &["a", "b", "c", "d"]);
    assert_eq!(rig.bodies(one), ["a", "c", "d"]);
    assert_eq!(rig.bodies(other), ["b"]);
}

#[test]
fn every_subscription_gets_its_own_copy_of_one_stored_body() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    let (one, other) = (rig.subscription("t", "one", |_| {}), rig.subscription("t", "other", |_| {}));
    rig.send_all(topic, &["a"]);
    let links = [rig.receiver(one, 1), rig.receiver(other, 1)];
    let deliveries = links.map(|link| rig.one(link));
    assert_eq!(deliveries[0].location, deliveries[1].location);
    assert_ne!(deliveries[0].token, deliveries[1].token);
    rig.complete(one, &deliveries[0]);
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [1], "the other still needs it");
    rig.complete(other, &deliveries[1]);
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_topic_accepts_what_no_subscription_keeps() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    assert_eq!(rig.send(topic, message("a")), SequenceNumber(1));
    let subscription = rig.subscription("t", "late", |_| {});
    assert_eq!(rig.send(topic, message("b")), SequenceNumber(2));
    let link = rig.receiver(subscription, 5);
    assert_eq!(rig.bodies(link), ["b"]);
}

#[test]
fn receive_and_delete_settles_on_the_way_out() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a", "b"]);
    let link = rig.deleting_receiver(queue, 1);
    let delivery = rig.one(link);
    assert!(delivery.settled);
    assert_eq!(rig.counts("q").active, 1);
    rig.restart();
    assert_eq!(rig.counts("q").active, 1, "what went out does not come back");
}

#[test]
fn a_drain_delivers_what_there_is_and_gives_the_credit_up() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 0);
    rig.drain(link, 10);
    assert_eq!(rig.bodies(link), ["a"]);
    assert_eq!(rig.inbox(link).drained, Some(10));
    rig.send_all(queue.entity, &["b"]);
    assert!(rig.received(link).is_empty(), "no credit is left");
    rig.credit(link, 1);
    assert_eq!(rig.bodies(link), ["b"]);
}

#[test]
fn a_link_that_settles_nothing_gets_no_more_than_its_share() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    (0..150).for_each(|n| rig.send_all(queue.entity, &[&n.to_string()]));
    let link = rig.receiver(queue, 1000);
    let received = rig.received(link);
    assert_eq!(received.len(), 100, "as many as `max_unsettled`");
    rig.complete(queue, &received[0]);
    assert_eq!(rig.received(link).len(), 1);
}

#[test]
fn a_detached_link_gets_nothing_more() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    let link = rig.receiver(queue, 10);
    rig.detach(link);
    rig.send_all(queue.entity, &["a"]);
    assert!(rig.received(link).is_empty());
    let next = rig.receiver(queue, 1);
    assert_eq!(rig.bodies(next), ["a"]);
}

#[test]
fn links_attach_the_way_the_entity_is_made() {
    let mut rig = Rig::new();
    let (plain, sessions) = (rig.queue("p", |_| {}), rig.session_queue("s"));
    let condition = |result: Result<_, Error>| result.map(|_: (LinkId, Attached)| ()).unwrap_err().condition();
    let named = SessionFilter::Named("s".into());
    assert_eq!(condition(rig.try_attach(plain, Mode::PeekLock, named)), "amqp:not-allowed");
    assert_eq!(condition(rig.try_attach(sessions, Mode::PeekLock, SessionFilter::None)), "amqp:not-allowed");
    assert!(rig.try_attach(dead_letters(sessions), Mode::PeekLock, SessionFilter::None).is_ok());
    let missing = QueueId::main(EntityId(99));
    assert_eq!(condition(rig.try_attach(missing, Mode::PeekLock, SessionFilter::None)), "amqp:not-found");
}

/// Three of these are more than a connection may have under way when there is no room at all.
fn large() -> Incoming {
    message(&"x".repeat(100 << 10))
}

fn crowded() -> Rig {
    let mut rig = Rig::new();
    rig.core = Core::new(Limits { max_outgoing: 0, ..Limits::default() }, [7; 32]);
    rig
}

#[test]
fn a_connection_that_takes_nothing_is_given_no_more_whatever_its_links() {
    let mut rig = crowded();
    let queue = rig.queue("q", |_| {});
    for _ in 0..10 {
        rig.send(queue.entity, large());
    }
    // WHEN one connection has three links with all the credit there is, and writes nothing
    let links = [(); 3].map(|()| rig.receiver(queue, 1_000));
    let deliveries: Vec<_> = links.iter().flat_map(|link| rig.received(*link)).collect();
    assert_eq!(deliveries.len(), 3, "its share, and the one that passed it");
    assert!(rig.core.listens(ConnectionId(0)), "deliveries alone do not make it deaf");
    rig.core.tell(ConnectionId(0), 512 << 10);
    assert!(!rig.core.listens(ConnectionId(0)));
    rig.turn(|core, turn| core.written(turn, ConnectionId(0), 512 << 10));
    // THEN another still gets its own
    let other = ConnectionId(9).link(1);
    rig.turn(|core, turn| core.attach(turn, other, queue, Mode::PeekLock, SessionFilter::None)).unwrap();
    rig.credit(other, 1_000);
    assert_eq!(rig.received(other).len(), 3);
    // AND it goes on when something was written, each of its links in turn
    let weight = deliveries[0].weight();
    rig.turn(|core, turn| core.written(turn, ConnectionId(0), 2 * weight));
    assert_eq!(links.map(|link| rig.received(link).len()).iter().sum::<usize>(), 2);
    // AND one that is gone leaves nothing behind.
    links.into_iter().for_each(|link| rig.detach(link));
    rig.core.hang_up(ConnectionId(0));
    let next = rig.receiver(queue, 1_000);
    assert_eq!(rig.received(next).len(), 2, "all there is");
}

#[test]
fn a_session_waits_for_room_as_well() {
    let mut rig = crowded();
    let queue = rig.session_queue("q");
    for _ in 0..5 {
        rig.send(queue.entity, Incoming { session_id: Some("s".into()), ..large() });
    }
    let link = rig.named_session(queue, "s").unwrap();
    rig.credit(link, 10);
    let first = rig.received(link);
    assert_eq!(first.len(), 3);
    rig.turn(|core, turn| core.written(turn, ConnectionId(0), usize::MAX));
    assert_eq!(rig.received(link).len(), 2);
}

#[test]
fn a_drain_is_answered_after_what_waited_for_room() {
    let mut rig = crowded();
    let queue = rig.queue("q", |_| {});
    for _ in 0..5 {
        rig.send(queue.entity, large());
    }
    let link = rig.receiver(queue, 0);
    rig.drain(link, 10);
    assert_eq!((rig.received(link).len(), rig.inbox(link).drained), (3, None));
    rig.turn(|core, turn| core.written(turn, ConnectionId(0), usize::MAX));
    assert_eq!((rig.received(link).len(), rig.inbox(link).drained), (2, Some(10)));
}
