use broker::core::*;

use crate::rig::*;

fn peek(rig: &mut Rig, queue: QueueId, session: Option<&str>, from: u64, max: usize) -> Vec<(u64, MessageState)> {
    let peeked = rig.turn(|core, turn| core.peek(turn, queue, session, SequenceNumber(from), max)).unwrap();
    peeked.iter().map(|peeked| (peeked.sequence.counter(), peeked.state)).collect()
}

#[test]
fn peeking_shows_everything_in_order_and_takes_nothing() {
    use MessageState::*;
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["1", "2", "3"]);
    rig.send(queue.entity, Incoming { scheduled_for: Some(Timestamp(START.0 + 9_000)), ..message("4") });
    rig.send_all(queue.entity, &["5"]);
    let link = rig.receiver(queue, 2);
    let received = rig.received(link);
    assert!(rig.settle(queue, &received[1], &defer()));
    assert_eq!(
        peek(&mut rig, queue, None, 0, 10),
        [(1, Active), (2, Deferred), (3, Active), (4, Scheduled), (5, Active)]
    );
    assert_eq!(peek(&mut rig, queue, None, 2, 3), [(2, Deferred), (3, Active), (4, Scheduled)]);
    assert_eq!(peek(&mut rig, queue, None, 6, 3), []);
}

#[test]
fn peeking_a_session_shows_its_own_and_no_session_shows_all() {
    use MessageState::*;
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    for (session, body) in [("b", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("c", "5")] {
        rig.send(queue.entity, in_session(session, body));
    }
    assert_eq!(peek(&mut rig, queue, Some("a"), 0, 10), [(2, Active), (4, Active)]);
    assert_eq!(peek(&mut rig, queue, Some("none"), 0, 10), []);
    assert_eq!(peek(&mut rig, queue, None, 2, 3), [(2, Active), (3, Active), (4, Active)]);
}

#[test]
fn a_deferred_message_is_received_by_its_number_and_settled_like_any_other() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a", "b"]);
    let link = rig.receiver(queue, 2);
    let received = rig.received(link);
    assert!(rig.settle(queue, &received[0], &defer()));
    let number = received[0].sequence;
    let fetch = |rig: &mut Rig, numbers: &[SequenceNumber], mode| {
        rig.turn(|core, turn| core.receive_deferred(turn, queue, None, numbers, mode))
    };
    let refused = fetch(&mut rig, &[number, received[1].sequence], Mode::PeekLock).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:message-not-found", 404));
    let fetched = fetch(&mut rig, &[number], Mode::PeekLock).unwrap().remove(0);
    assert_eq!(rig.body(&fetched), "a");
    assert!(fetch(&mut rig, &[number], Mode::PeekLock).is_err(), "it is locked");
    rig.abandon(queue, &fetched);
    rig.credit(link, 5);
    assert!(rig.received(link).is_empty(), "it is still deferred");
    rig.restart();
    let fetched = fetch(&mut rig, &[number], Mode::PeekLock).unwrap().remove(0);
    assert_eq!(fetched.delivery_count, 1);
    rig.pass(60_000);
    let fetched = fetch(&mut rig, &[number], Mode::ReceiveAndDelete).unwrap().remove(0);
    assert_eq!((fetched.delivery_count, fetched.settled), (2, true));
    assert!(fetch(&mut rig, &[number], Mode::PeekLock).is_err());
    assert!(fetch(&mut rig, &[], Mode::PeekLock).unwrap().is_empty());
}

#[test]
fn a_deferred_message_of_a_session_needs_the_session() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    rig.send(queue.entity, in_session("a", "1"));
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let delivery = rig.one(link);
    assert!(rig.settle(queue, &delivery, &defer()));
    let numbers = [delivery.sequence];
    let fetch = |rig: &mut Rig, session: Option<&str>| {
        rig.turn(|core, turn| core.receive_deferred(turn, queue, session, &numbers, Mode::PeekLock))
    };
    assert_eq!(fetch(&mut rig, None).unwrap_err().condition(), "amqp:not-allowed");
    let fetched = fetch(&mut rig, Some("a")).unwrap().remove(0);
    rig.detach(link);
    assert!(!rig.settle(queue, &fetched, &Outcome::Complete), "its lock went with the session's");
    assert_eq!(fetch(&mut rig, Some("a")).unwrap_err().condition(), "com.microsoft:session-lock-lost");
    rig.named_session(queue, "a").unwrap();
    let fetched = fetch(&mut rig, Some("a")).unwrap().remove(0);
    rig.complete(queue, &fetched);
    assert_eq!(rig.counts("q").active, 0);
}

#[test]
fn sessions_are_listed_by_what_they_have() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    rig.send(queue.entity, in_session("message", "1"));
    let link = rig.named_session(queue, "state").unwrap();
    rig.named_session(queue, "nothing").unwrap();
    rig.pass(1_000);
    rig.turn(|core, turn| core.set_session_state(turn, queue, "state", Some("x".into()))).unwrap();
    rig.detach(link);
    let list = |rig: &mut Rig, since: Option<u64>, skip, top| {
        let since = since.map(|since| Timestamp(START.0 + since));
        let ids = rig.turn(|core, turn| core.sessions(turn, queue, since, skip, top)).unwrap();
        ids.iter().map(|id| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut rig, None, 0, 10), ["message", "state"]);
    assert_eq!(list(&mut rig, None, 1, 10), ["state"]);
    assert_eq!(list(&mut rig, None, 0, 1), ["message"]);
    assert_eq!(list(&mut rig, Some(500), 0, 10), ["state"]);
    assert_eq!(list(&mut rig, Some(1_500), 0, 10), [""; 0]);
}

#[test]
fn messages_are_deleted_in_bulk_oldest_first() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["1", "2", "3", "4"]);
    rig.pass(1_000);
    rig.send_all(queue.entity, &["5"]);
    let link = rig.receiver(queue, 1);
    let locked = rig.one(link);
    let delete = |rig: &mut Rig, before: u64, max| {
        rig.turn(|core, turn| core.delete_messages(turn, queue, None, Timestamp(START.0 + before), max)).unwrap()
    };
    assert_eq!(delete(&mut rig, 500, 2), 2);
    assert_eq!(delete(&mut rig, 500, 9), 1, "only those from before, and none that is locked");
    assert_eq!(delete(&mut rig, 500, 9), 0);
    rig.restart();
    assert_eq!(rig.counts("q").active, 2);
    let link = rig.receiver(queue, 9);
    assert_eq!(rig.bodies(link), ["1", "5"]);
    assert!(!rig.settle(queue, &locked, &Outcome::Complete));
}
