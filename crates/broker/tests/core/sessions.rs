use std::time::Duration;

use broker::core::*;

use crate::rig::*;

fn sending(rig: &mut Rig, queue: QueueId, messages: &[(&str, &str)]) {
    for (session, body) in messages {
        rig.send(queue.entity, in_session(session, body));
    }
}

fn session_of(rig: &mut Rig, link: LinkId) -> Option<String> {
    rig.inbox(link).attached.clone().map(|(session, _)| session)
}

#[test]
fn the_next_session_is_the_one_that_has_waited_longest() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("b", "1"), ("a", "2"), ("b", "3"), ("c", "4")]);
    let links = [(); 3].map(|()| rig.next_session(queue));
    assert_eq!(links.map(|link| session_of(&mut rig, link).unwrap()), ["b", "a", "c"]);
    rig.credit(links[0], 10);
    assert_eq!(rig.bodies(links[0]), ["1", "3"]);
}

#[test]
fn an_attach_waits_for_a_session_first_come_first_served() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let (first, second) = (rig.next_session(queue), rig.next_session(queue));
    assert_eq!(session_of(&mut rig, first), None);
    sending(&mut rig, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut rig, first).as_deref(), Some("a"));
    assert_eq!(session_of(&mut rig, second), None);
    sending(&mut rig, queue, &[("a", "2")]);
    assert_eq!(session_of(&mut rig, second), None, "the session has a holder");
    sending(&mut rig, queue, &[("b", "3")]);
    assert_eq!(session_of(&mut rig, second).as_deref(), Some("b"));
}

#[test]
fn credit_granted_while_waiting_is_kept_for_the_session() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let link = rig.next_session(queue);
    rig.credit(link, 2);
    sending(&mut rig, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    assert_eq!(rig.bodies(link), ["1", "2"]);
}

#[test]
fn an_attach_that_waited_long_enough_is_refused() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let link = rig.next_session(queue);
    rig.pass(19_999);
    assert!(rig.inbox(link).refused.is_none());
    rig.pass(1);
    assert_eq!(rig.inbox(link).refused.as_ref().unwrap().condition(), "com.microsoft:timeout");
    sending(&mut rig, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut rig, link), None);
}

#[test]
fn a_waiting_attach_that_gives_up_takes_nothing() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let (first, second) = (rig.next_session(queue), rig.next_session(queue));
    rig.detach(first);
    sending(&mut rig, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut rig, first), None);
    assert_eq!(session_of(&mut rig, second).as_deref(), Some("a"));
}

#[test]
fn a_session_has_one_holder() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1")]);
    let link = rig.named_session(queue, "a").unwrap();
    let refused = rig.named_session(queue, "a").unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:session-cannot-be-locked", 410));
    let waiting = rig.next_session(queue);
    assert_eq!(session_of(&mut rig, waiting), None);
    rig.detach(link);
    assert_eq!(session_of(&mut rig, waiting).as_deref(), Some("a"));
}

#[test]
fn a_named_session_may_be_empty_and_even_nameless() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    for id in ["later", ""] {
        let link = rig.named_session(queue, id).unwrap();
        rig.credit(link, 1);
        sending(&mut rig, queue, &[(id, "x")]);
        assert_eq!(rig.bodies(link), ["x"], "{id:?}");
    }
    assert!(rig.named_session(queue, &"x".repeat(129)).is_err());
}

#[test]
fn letting_go_returns_what_was_out_in_order_and_counts_nothing() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    let link = rig.next_session(queue);
    rig.credit(link, 2);
    let received = rig.received(link);
    rig.detach(link);
    let again = rig.next_session(queue);
    rig.credit(again, 3);
    let deliveries = rig.received(again);
    let bodies: Vec<_> = deliveries.iter().map(|delivery| rig.body(delivery)).collect();
    assert_eq!(bodies, ["1", "2", "3"]);
    assert!(deliveries.iter().all(|delivery| delivery.delivery_count == 0));
    assert!(!rig.settle(queue, &received[0], &Outcome::Complete), "the old holder's locks are gone");
}

#[test]
fn a_session_lock_that_ends_is_told_to_its_holder_and_counts_what_was_out() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1"), ("a", "2")]);
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let out = rig.one(link);
    rig.pass(60_000);
    assert_eq!(rig.inbox(link).detached.as_ref().unwrap().condition(), "com.microsoft:session-lock-lost");
    assert!(!rig.settle(queue, &out, &Outcome::Complete));
    assert_eq!(rig.core.lock_lost(queue).condition(), "com.microsoft:session-lock-lost");
    let next = rig.next_session(queue);
    rig.credit(next, 2);
    let counts: Vec<_> = rig.received(next).iter().map(|delivery| delivery.delivery_count).collect();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn of_sessions_lost_together_the_longest_waiting_is_next() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    // "late" is held first and so ends first in any order but that of the messages.
    rig.named_session(queue, "late").unwrap();
    sending(&mut rig, queue, &[("early", "1"), ("late", "2")]);
    rig.named_session(queue, "early").unwrap();
    rig.pass(50_000);
    let waiting = rig.next_session(queue);
    rig.pass(10_000);
    assert_eq!(session_of(&mut rig, waiting).as_deref(), Some("early"));
}

#[test]
fn a_renewed_session_keeps_its_holder() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1")]);
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let delivery = rig.one(link);
    assert_eq!(delivery.locked_until, Timestamp(START.0 + 60_000));
    rig.pass(50_000);
    let until = rig.turn(|core, turn| core.renew_session(turn, queue, "a")).unwrap();
    assert_eq!(until, Timestamp(START.0 + 110_000));
    rig.pass(59_000);
    rig.complete(queue, &delivery);
    let lost = rig.turn(|core, turn| core.renew_session(turn, queue, "b")).unwrap_err();
    assert_eq!(lost.condition(), "com.microsoft:session-lock-lost");
    let refused = rig.turn(|core, turn| core.renew(turn, queue, &[delivery.token])).unwrap_err();
    assert_eq!(refused.condition(), "amqp:not-allowed");
}

#[test]
fn an_abandoned_message_of_a_session_comes_before_the_later_ones() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let delivery = rig.one(link);
    rig.abandon(queue, &delivery);
    rig.credit(link, 2);
    assert_eq!(rig.bodies(link), ["1", "2"]);
}

#[test]
fn a_poison_message_of_a_session_goes_and_the_next_flows() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| {
        queue.outlet.requires_session = true;
        queue.outlet.max_delivery_count = 2;
    });
    sending(&mut rig, queue, &[("a", "bad"), ("a", "good")]);
    for _ in 0..2 {
        let link = rig.next_session(queue);
        rig.credit(link, 1);
        assert_eq!(rig.bodies(link), ["bad"]);
        rig.pass(60_000);
    }
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    assert_eq!(rig.bodies(link), ["good"]);
    let buried = rig.receiver(dead_letters(queue), 1);
    assert_eq!(rig.bodies(buried), ["bad"], "dead letters need no session");
}

#[test]
fn session_state_belongs_to_the_holder_and_outlives_it() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let link = rig.named_session(queue, "a").unwrap();
    assert_eq!(rig.turn(|core, turn| core.session_state(turn, queue, "a")).unwrap(), None);
    rig.turn(|core, turn| core.set_session_state(turn, queue, "a", Some("one".into()))).unwrap();
    rig.turn(|core, turn| core.set_session_state(turn, queue, "a", Some("two".into()))).unwrap();
    rig.detach(link);
    let lost = rig.turn(|core, turn| core.session_state(turn, queue, "a")).unwrap_err();
    assert_eq!(lost.condition(), "com.microsoft:session-lock-lost");
    rig.restart();
    let link = rig.named_session(queue, "a").unwrap();
    let state = rig.turn(|core, turn| core.session_state(turn, queue, "a")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"two"[..]));
    assert_eq!(rig.counts("q").sessions, 1);
    rig.turn(|core, turn| core.set_session_state(turn, queue, "a", None)).unwrap();
    rig.detach(link);
    assert_eq!(rig.counts("q").sessions, 0, "nothing keeps the session");
    assert_eq!(rig.counts("q").bytes, 0);
    let large = rig.named_session(queue, "b").map(|_| bytes::Bytes::from(vec![0; 1025])).unwrap();
    let refused = rig.turn(|core, turn| core.set_session_state(turn, queue, "b", Some(large))).unwrap_err();
    assert_eq!(refused.condition(), "amqp:link:message-size-exceeded");
}

#[test]
fn a_session_with_only_deferred_messages_is_not_offered_as_next() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1")]);
    let link = rig.next_session(queue);
    rig.credit(link, 1);
    let delivery = rig.one(link);
    assert!(rig.settle(queue, &delivery, &defer()));
    rig.detach(link);
    let waiting = rig.next_session(queue);
    assert_eq!(session_of(&mut rig, waiting), None);
}

#[test]
fn receive_and_delete_works_within_a_session() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1"), ("a", "2")]);
    let filter = SessionFilter::Next { timeout: Duration::ZERO };
    let link = rig.try_attach(queue, Mode::ReceiveAndDelete, filter).unwrap().0;
    rig.credit(link, 5);
    assert_eq!(rig.bodies(link), ["1", "2"]);
    rig.detach(link);
    assert_eq!((rig.counts("q").active, rig.counts("q").sessions), (0, 0));
}

#[test]
fn a_fault_can_take_a_session_from_its_holder() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    sending(&mut rig, queue, &[("a", "1")]);
    let link = rig.next_session(queue);
    rig.turn(|core, turn| core.lose_session(turn, queue, "a")).unwrap();
    assert!(rig.inbox(link).detached.is_some());
    assert!(rig.turn(|core, turn| core.lose_session(turn, queue, "a")).is_err());
}
