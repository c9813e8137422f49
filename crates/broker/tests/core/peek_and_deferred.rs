use broker::core::*;

use crate::fixture::*;

fn peek(
    fixture: &mut CoreFixture,
    queue: QueueId,
    session: Option<&str>,
    from: u64,
    max: usize,
) -> Vec<(u64, MessageState)> {
    let peeked = fixture.call(|core, call| core.peek(call, queue, session, SequenceNumber(from), max)).unwrap();
    peeked.iter().map(|peeked| (peeked.sequence.counter(), peeked.state)).collect()
}

#[test]
fn peek_shows_all_messages_and_locks_none() {
    use MessageState::*;
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["1", "2", "3"]);
    fixture.send(queue.entity, IncomingMessage { scheduled_for: Some(Timestamp(START.0 + 9_000)), ..message("4") });
    fixture.send_all(queue.entity, &["5"]);
    let link = fixture.receiver(queue, 2);
    let received = fixture.take_deliveries(link);
    assert!(fixture.settle(queue, &received[1], &defer()));
    assert_eq!(
        peek(&mut fixture, queue, None, 0, 10),
        [(1, Active), (2, Deferred), (3, Active), (4, Scheduled), (5, Active)]
    );
    assert_eq!(peek(&mut fixture, queue, None, 2, 3), [(2, Deferred), (3, Active), (4, Scheduled)]);
    assert_eq!(peek(&mut fixture, queue, None, 6, 3), []);
}

#[test]
fn peek_filters_by_session() {
    use MessageState::*;
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    for (session, body) in [("b", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("c", "5")] {
        fixture.send(queue.entity, in_session(session, body));
    }
    assert_eq!(peek(&mut fixture, queue, Some("a"), 0, 10), [(2, Active), (4, Active)]);
    assert_eq!(peek(&mut fixture, queue, Some("none"), 0, 10), []);
    assert_eq!(peek(&mut fixture, queue, None, 2, 3), [(2, Active), (3, Active), (4, Active)]);
}

#[test]
fn a_deferred_message_is_received_by_number_and_settled() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b"]);
    let link = fixture.receiver(queue, 2);
    let received = fixture.take_deliveries(link);
    assert!(fixture.settle(queue, &received[0], &defer()));
    let number = received[0].sequence;
    let receive_deferred = |fixture: &mut CoreFixture, numbers: &[SequenceNumber], mode| {
        fixture.call(|core, call| core.receive_deferred(call, queue, None, numbers, mode))
    };
    let refused = receive_deferred(&mut fixture, &[number, received[1].sequence], ReceiveMode::PeekLock).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:message-not-found", 404));
    let fetched = receive_deferred(&mut fixture, &[number], ReceiveMode::PeekLock).unwrap().remove(0);
    assert_eq!((fixture.body(&fetched).as_str(), fetched.delivery_count), ("a", 1), "a deferral counts");
    assert!(receive_deferred(&mut fixture, &[number], ReceiveMode::PeekLock).is_err(), "it is locked");
    fixture.abandon(queue, &fetched);
    fixture.credit(link, 5);
    assert!(fixture.take_deliveries(link).is_empty(), "it is still deferred");
    fixture.restart();
    let fetched = receive_deferred(&mut fixture, &[number], ReceiveMode::PeekLock).unwrap().remove(0);
    assert_eq!(fetched.delivery_count, 2);
    fixture.advance(60_000);
    let fetched = receive_deferred(&mut fixture, &[number], ReceiveMode::ReceiveAndDelete).unwrap().remove(0);
    assert_eq!((fetched.delivery_count, fetched.settled), (3, true));
    assert!(receive_deferred(&mut fixture, &[number], ReceiveMode::PeekLock).is_err());
    assert!(receive_deferred(&mut fixture, &[], ReceiveMode::PeekLock).unwrap().is_empty());
}

#[test]
fn a_deferred_message_of_a_session_needs_the_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    fixture.send(queue.entity, in_session("a", "1"));
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    assert!(fixture.settle(queue, &delivery, &defer()));
    let numbers = [delivery.sequence];
    let receive_deferred = |fixture: &mut CoreFixture, session: Option<&str>| {
        fixture.call(|core, call| core.receive_deferred(call, queue, session, &numbers, ReceiveMode::PeekLock))
    };
    assert_eq!(receive_deferred(&mut fixture, None).unwrap_err().condition(), "amqp:not-allowed");
    let fetched = receive_deferred(&mut fixture, Some("a")).unwrap().remove(0);
    fixture.detach(link);
    assert!(!fixture.settle(queue, &fetched, &SettlementOutcome::Complete), "its lock went with the session's");
    assert_eq!(receive_deferred(&mut fixture, Some("a")).unwrap_err().condition(), "com.microsoft:session-lock-lost");
    fixture.named_session(queue, "a").unwrap();
    let fetched = receive_deferred(&mut fixture, Some("a")).unwrap().remove(0);
    fixture.complete(queue, &fetched);
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn sessions_with_messages_or_state_are_listed() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    fixture.send(queue.entity, in_session("message", "1"));
    let link = fixture.named_session(queue, "state").unwrap();
    fixture.named_session(queue, "nothing").unwrap();
    fixture.advance(1_000);
    fixture.call(|core, call| core.set_session_state(call, queue, "state", Some("x".into()))).unwrap();
    fixture.detach(link);
    let list = |fixture: &mut CoreFixture, since: Option<u64>, skip, top| {
        let since = since.map(|since| Timestamp(START.0 + since));
        let ids = fixture.call(|core, call| core.sessions(call, queue, since, skip, top)).unwrap();
        ids.iter().map(|id| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut fixture, None, 0, 10), ["message", "state"]);
    assert_eq!(list(&mut fixture, None, 1, 10), ["state"]);
    assert_eq!(list(&mut fixture, None, 0, 1), ["message"]);
    assert_eq!(list(&mut fixture, Some(500), 0, 10), ["state"]);
    assert_eq!(list(&mut fixture, Some(1_500), 0, 10), [""; 0]);
}

#[test]
fn messages_are_deleted_in_bulk_oldest_first() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["1", "2", "3", "4"]);
    fixture.advance(1_000);
    fixture.send_all(queue.entity, &["5"]);
    let link = fixture.receiver(queue, 1);
    let locked = fixture.receive_one(link);
    let delete = |fixture: &mut CoreFixture, before: u64, max| {
        fixture.call(|core, call| core.delete_messages(call, queue, None, Timestamp(START.0 + before), max)).unwrap()
    };
    assert_eq!(delete(&mut fixture, 500, 2), 2);
    assert_eq!(delete(&mut fixture, 500, 9), 1, "only those from before, and none that is locked");
    assert_eq!(delete(&mut fixture, 500, 9), 0);
    fixture.restart();
    assert_eq!(fixture.counts("q").active, 2);
    let link = fixture.receiver(queue, 9);
    assert_eq!(fixture.take_bodies(link), ["1", "5"]);
    assert!(!fixture.settle(queue, &locked, &SettlementOutcome::Complete));
}
