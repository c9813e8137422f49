//! Transactions: all or nothing, also on disk; and when they end by themselves.

use std::time::Duration;

use broker::core::*;

use crate::fixture::*;

const CONNECTION: ConnectionId = ConnectionId(7);

fn coordinator() -> CoreLinkId {
    CONNECTION.link(1)
}

fn scope(session: u64, entity: EntityId) -> TransactionScope {
    TransactionScope { connection: CONNECTION, session, entity }
}

fn declare(fixture: &mut CoreFixture) -> TransactionId {
    fixture.call(|core, call| core.declare_transaction(call, coordinator(), true)).unwrap()
}

fn send(fixture: &mut CoreFixture, id: TransactionId, to: EntityId, bodies: &[&str]) -> Result<(), Error> {
    let messages = bodies.iter().map(|body| message(body)).collect();
    let scope = scope(1, to);
    fixture.call(|core, call| core.send_in_transaction(call, id, scope, to, messages))
}

fn settle(
    fixture: &mut CoreFixture,
    id: TransactionId,
    queue: QueueId,
    delivery: &MessageDelivery,
    outcome: SettlementOutcome,
) -> Result<Vec<LockToken>, Error> {
    let scope = scope(1, queue.entity);
    fixture.call(|core, call| core.settle_in_transaction(call, id, scope, queue, &[delivery.token], outcome))
}

fn discharge(fixture: &mut CoreFixture, id: TransactionId, fail: bool) -> Result<(), Error> {
    fixture.call(|core, call| core.discharge_transaction(call, id, CONNECTION, fail))
}

/// A queue with five locked messages, and a topic with two subscriptions.
fn locked() -> (CoreFixture, QueueId, Vec<MessageDelivery>, EntityId) {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let topic = fixture.topic("t", |_| {});
    fixture.subscription("t", "one", |_| {});
    fixture.subscription("t", "two", |s| s.egress.requires_session = true);
    fixture.send_all(queue.entity, &["a", "b", "c", "d", "e"]);
    let link = fixture.receiver(queue, 5);
    let deliveries = fixture.take_deliveries(link);
    (fixture, queue, deliveries, topic)
}

/// Uses every kind of operation. `t/two` requires sessions, so its copies are dead-lettered by the broker.
fn fill(fixture: &mut CoreFixture, id: TransactionId, queue: QueueId, deliveries: &[MessageDelivery], topic: EntityId) {
    send(fixture, id, topic, &["1", "2"]).unwrap();
    send(fixture, id, queue.entity, &["3"]).unwrap();
    send(fixture, id, topic, &["4"]).unwrap();
    let outcomes = [SettlementOutcome::Complete, abandon(), defer(), dead_letter("x"), dead_letter("y")].into_iter();
    for (delivery, outcome) in deliveries.iter().zip(outcomes) {
        assert_eq!(settle(fixture, id, queue, delivery, outcome).unwrap(), []);
    }
}

fn counts(fixture: &CoreFixture) -> [(u64, u64); 3] {
    ["q", "t/Subscriptions/one", "t/Subscriptions/two"].map(|path| {
        let counts = fixture.counts(path);
        (counts.active, counts.dead_letter)
    })
}

#[test]
fn a_commit_is_one_group_of_the_journal() {
    let (mut fixture, queue, deliveries, topic) = locked();
    let id = declare(&mut fixture);
    let before = fixture.journal.groups().len();
    fill(&mut fixture, id, queue, &deliveries, topic);
    assert_eq!((counts(&fixture), fixture.journal.groups().len()), ([(5, 0), (0, 0), (0, 0)], before));
    discharge(&mut fixture, id, false).unwrap();
    assert_eq!(fixture.journal.groups().len(), before + 1);
    let after = [(3, 2), (3, 0), (0, 3)];
    assert_eq!(counts(&fixture), after);
    assert_eq!(count_references(&fixture.core, &fixture.journal), fixture.journal.references().collect::<Vec<_>>());
    fixture.restart();
    assert_eq!(counts(&fixture), after, "the same after a restart");
    fixture.core = recover(9, &[], &fixture.journal.groups()[..before], fixture.now);
    assert_eq!(counts(&fixture), [(5, 0), (0, 0), (0, 0)], "nothing if the group is not on disk");
}

#[test]
fn receivers_get_committed_messages_only() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let link = fixture.receiver(queue, 10);
    let id = declare(&mut fixture);
    send(&mut fixture, id, queue.entity, &["a", "b"]).unwrap();
    assert_eq!(fixture.take_bodies(link), [""; 0]);
    discharge(&mut fixture, id, false).unwrap();
    assert_eq!(fixture.take_bodies(link), ["a", "b"]);
}

#[test]
fn a_rollback_changes_nothing_and_keeps_the_locks() {
    let (mut fixture, queue, deliveries, topic) = locked();
    let id = declare(&mut fixture);
    fill(&mut fixture, id, queue, &deliveries, topic);
    discharge(&mut fixture, id, true).unwrap();
    assert_eq!(counts(&fixture), [(5, 0), (0, 0), (0, 0)]);
    deliveries.iter().for_each(|delivery| fixture.complete(queue, delivery));
}

#[test]
fn a_lost_lock_rolls_everything_back() {
    let (mut fixture, queue, deliveries, topic) = locked();
    let id = declare(&mut fixture);
    send(&mut fixture, id, topic, &["a"]).unwrap();
    settle(&mut fixture, id, queue, &deliveries[0], SettlementOutcome::Complete).unwrap();
    fixture.advance(61_000);
    let error = discharge(&mut fixture, id, false).unwrap_err();
    assert_eq!(error.condition(), "amqp:transaction:rollback");
    assert_eq!(counts(&fixture), [(5, 0), (0, 0), (0, 0)]);
    let id = declare(&mut fixture);
    assert_eq!(settle(&mut fixture, id, queue, &deliveries[1], abandon()).unwrap(), [deliveries[1].token]);
}

#[test]
fn a_message_settled_twice_rolls_everything_back() {
    let (mut fixture, queue, deliveries, _) = locked();
    let id = declare(&mut fixture);
    for _ in 0..2 {
        settle(&mut fixture, id, queue, &deliveries[0], SettlementOutcome::Complete).unwrap();
    }
    assert!(discharge(&mut fixture, id, false).is_err());
    assert_eq!(fixture.counts("q").active, 5);
}

#[test]
fn a_transaction_ends_with_its_link_and_after_two_minutes() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let id = declare(&mut fixture);
    fixture.detach(coordinator());
    assert_eq!(send(&mut fixture, id, queue.entity, &["a"]).unwrap_err().condition(), "amqp:transaction:unknown-id");
    let id = declare(&mut fixture);
    send(&mut fixture, id, queue.entity, &["a"]).unwrap();
    fixture.advance(Duration::from_secs(119).as_millis() as u64);
    send(&mut fixture, id, queue.entity, &["a"]).unwrap();
    fixture.advance(1_001);
    assert_eq!(discharge(&mut fixture, id, false).unwrap_err().condition(), "amqp:transaction:unknown-id");
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn another_connection_cannot_use_a_transaction() {
    let (mut fixture, _) = CoreFixture::with_queue(|_| {});
    let id = declare(&mut fixture);
    let refused = fixture.call(|core, call| core.discharge_transaction(call, id, ConnectionId(8), false));
    assert_eq!(refused.unwrap_err().condition(), "amqp:transaction:unknown-id");
    discharge(&mut fixture, id, false).unwrap();
}

#[test]
fn a_second_entity_needs_the_same_amqp_session() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let other = fixture.queue("other", |_| {}).entity;
    let [one, two] = [1, 2];
    let id = declare(&mut fixture);
    let mut send = |session, via, to| {
        fixture.call(|core, call| core.send_in_transaction(call, id, scope(session, via), to, vec![message("a")]))
    };
    send(one, queue.entity, queue.entity).unwrap();
    send(one, other, other).expect("the same AMQP session");
    send(two, queue.entity, other).expect("via the first entity");
    discharge(&mut fixture, id, false).unwrap();
    let id = declare(&mut fixture);
    let mut send = |session, to| {
        fixture.call(|core, call| core.send_in_transaction(call, id, scope(session, to), to, vec![message("a")]))
    };
    send(one, queue.entity).unwrap();
    assert_eq!(send(two, other).unwrap_err().condition(), "amqp:not-allowed");
    assert_eq!((fixture.counts("q").active, fixture.counts("other").active), (1, 2));
}

#[test]
fn a_transaction_has_at_most_100_messages() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let id = declare(&mut fixture);
    send(&mut fixture, id, queue.entity, &["a"; 100]).unwrap();
    discharge(&mut fixture, id, false).unwrap();
    assert_eq!(fixture.counts("q").active, 100);
    let id = declare(&mut fixture);
    send(&mut fixture, id, queue.entity, &["a"; 100]).unwrap();
    let error = send(&mut fixture, id, queue.entity, &["a"]).unwrap_err();
    assert_eq!(error.condition(), "amqp:resource-limit-exceeded");
    assert!(discharge(&mut fixture, id, false).is_err());
    assert_eq!(fixture.counts("q").active, 100);
}

#[test]
fn duplicates_within_a_transaction_are_dropped() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.requires_duplicate_detection = true);
    let id = declare(&mut fixture);
    let scope = scope(1, queue.entity);
    for _ in 0..2 {
        let sent = vec![with_id("m")];
        fixture.call(|core, call| core.send_in_transaction(call, id, scope, queue.entity, sent)).unwrap();
    }
    discharge(&mut fixture, id, false).unwrap();
    assert_eq!(fixture.counts("q").active, 1);
}

#[test]
fn a_failed_operation_leaves_only_the_rollback() {
    let (mut fixture, queue, deliveries, _) = locked();
    let by_send = declare(&mut fixture);
    send(&mut fixture, by_send, queue.entity, &["1"]).unwrap();
    send(&mut fixture, by_send, EntityId(99), &["2"]).unwrap_err();
    let by_lock = declare(&mut fixture);
    settle(&mut fixture, by_lock, queue, &deliveries[0], SettlementOutcome::Complete).unwrap();
    let lost = MessageDelivery { token: LockToken(1), ..deliveries[1].clone() };
    assert_eq!(settle(&mut fixture, by_lock, queue, &lost, SettlementOutcome::Complete).unwrap().len(), 1);
    let before = (counts(&fixture), fixture.journal.groups().len());
    for id in [by_send, by_lock] {
        assert_eq!(discharge(&mut fixture, id, false).unwrap_err().condition(), "amqp:transaction:rollback");
    }
    assert_eq!((counts(&fixture), fixture.journal.groups().len()), before, "nothing is applied");
}

/// Declares until it is refused; returns how many were declared, and the refusal.
fn declare_all(
    fixture: &mut CoreFixture,
    connection: ConnectionId,
    is_authorized: bool,
) -> (Vec<TransactionId>, Error) {
    let mut declared = Vec::new();
    loop {
        match fixture.call(|core, call| core.declare_transaction(call, connection.link(1), is_authorized)) {
            Ok(id) => declared.push(id),
            Err(error) => return (declared, error),
        }
    }
}

#[test]
fn open_transactions_of_a_connection_are_limited() {
    let mut fixture = CoreFixture::new();
    let (declared, refusal) = declare_all(&mut fixture, CONNECTION, true);
    assert_eq!((declared.len(), refusal.condition()), (1_000, "amqp:resource-limit-exceeded"));
    assert!(refusal.to_string().contains("may have 1000"), "{refusal}");
    let other = fixture.call(|core, call| core.declare_transaction(call, ConnectionId(8).link(1), true));
    assert!(other.is_ok(), "other connections have their own");
    discharge(&mut fixture, declared[0], false).unwrap();
    declare(&mut fixture);
    fixture.advance(121_000);
    assert_eq!(declare_all(&mut fixture, CONNECTION, true).0.len(), 1_000, "all have expired");
}

#[test]
fn connections_without_a_token_starve_no_others() {
    let mut fixture = CoreFixture::new();
    let declared: Vec<_> = (100..200).map(|n| declare_all(&mut fixture, ConnectionId(n), false)).collect();
    let (first, last) = (&declared[0], &declared[99]);
    assert_eq!((first.0.len(), first.1.condition()), (10, "amqp:resource-limit-exceeded"));
    assert!(first.1.to_string().contains("without a token"), "{}", first.1);
    assert_eq!((last.0.len(), last.1.condition()), (0, "com.microsoft:server-busy"));
    assert_eq!(declared.iter().map(|(own, _)| own.len()).sum::<usize>(), 500);
    let with_token: usize = (0..11).map(|n| declare_all(&mut fixture, ConnectionId(n), true).0.len()).sum();
    assert_eq!(with_token, 10_000);
    fixture.call(|core, call| core.detach(call, ConnectionId(100).link(1)));
    assert_eq!(declare_all(&mut fixture, ConnectionId(199), false).0.len(), 10);
}
