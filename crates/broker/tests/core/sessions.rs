use std::time::Duration;

use broker::core::*;

use crate::fixture::*;

fn send_to_sessions(fixture: &mut CoreFixture, queue: QueueId, messages: &[(&str, &str)]) {
    for (session, body) in messages {
        fixture.send(queue.entity, in_session(session, body));
    }
}

fn session_of(fixture: &mut CoreFixture, link: CoreLinkId) -> Option<String> {
    fixture.events(link).attached.clone().map(|(session, _)| session)
}

#[test]
fn the_next_session_has_the_oldest_message() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("b", "1"), ("a", "2"), ("b", "3"), ("c", "4")]);
    let links = [(); 3].map(|()| fixture.next_session(queue));
    assert_eq!(links.map(|link| session_of(&mut fixture, link).unwrap()), ["b", "a", "c"]);
    fixture.credit(links[0], 10);
    assert_eq!(fixture.take_bodies(links[0]), ["1", "3"]);
}

#[test]
fn an_attach_waits_for_a_session_first_come_first_served() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let (first, second) = (fixture.next_session(queue), fixture.next_session(queue));
    assert_eq!(session_of(&mut fixture, first), None);
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut fixture, first).as_deref(), Some("a"));
    assert_eq!(session_of(&mut fixture, second), None);
    send_to_sessions(&mut fixture, queue, &[("a", "2")]);
    assert_eq!(session_of(&mut fixture, second), None, "the session has a holder");
    send_to_sessions(&mut fixture, queue, &[("b", "3")]);
    assert_eq!(session_of(&mut fixture, second).as_deref(), Some("b"));
}

#[test]
fn credit_granted_while_waiting_is_kept_for_the_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let link = fixture.next_session(queue);
    fixture.credit(link, 2);
    send_to_sessions(&mut fixture, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    assert_eq!(fixture.take_bodies(link), ["1", "2"]);
}

#[test]
fn a_waiting_attach_times_out() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let link = fixture.next_session(queue);
    fixture.advance(19_999);
    assert!(fixture.events(link).refused.is_none());
    fixture.advance(1);
    assert_eq!(fixture.events(link).refused.as_ref().unwrap().condition(), "com.microsoft:timeout");
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut fixture, link), None);
}

#[test]
fn a_detached_waiting_attach_gets_no_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let (first, second) = (fixture.next_session(queue), fixture.next_session(queue));
    fixture.detach(first);
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    assert_eq!(session_of(&mut fixture, first), None);
    assert_eq!(session_of(&mut fixture, second).as_deref(), Some("a"));
}

#[test]
fn a_session_has_one_holder() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    let link = fixture.named_session(queue, "a").unwrap();
    let refused = fixture.named_session(queue, "a").unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:session-cannot-be-locked", 410));
    let waiting = fixture.next_session(queue);
    assert_eq!(session_of(&mut fixture, waiting), None);
    fixture.detach(link);
    assert_eq!(session_of(&mut fixture, waiting).as_deref(), Some("a"));
}

#[test]
fn a_named_session_may_be_empty_or_have_an_empty_id() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    for id in ["later", ""] {
        let link = fixture.named_session(queue, id).unwrap();
        fixture.credit(link, 1);
        send_to_sessions(&mut fixture, queue, &[(id, "x")]);
        assert_eq!(fixture.take_bodies(link), ["x"], "{id:?}");
    }
    assert!(fixture.named_session(queue, &"x".repeat(129)).is_err());
}

#[test]
fn a_released_session_unlocks_messages_without_counting() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    let link = fixture.next_session(queue);
    fixture.credit(link, 2);
    let received = fixture.take_deliveries(link);
    fixture.detach(link);
    let again = fixture.next_session(queue);
    fixture.credit(again, 3);
    let deliveries = fixture.take_deliveries(again);
    let bodies: Vec<_> = deliveries.iter().map(|delivery| fixture.body(delivery)).collect();
    assert_eq!(bodies, ["1", "2", "3"]);
    assert!(deliveries.iter().all(|delivery| delivery.delivery_count == 0));
    assert!(!fixture.settle(queue, &received[0], &SettlementOutcome::Complete), "the old holder's locks are gone");
}

#[test]
fn an_expired_session_lock_detaches_and_counts_deliveries() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1"), ("a", "2")]);
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let out = fixture.receive_one(link);
    fixture.advance(60_000);
    assert_eq!(fixture.events(link).detached.as_ref().unwrap().condition(), "com.microsoft:session-lock-lost");
    assert!(!fixture.settle(queue, &out, &SettlementOutcome::Complete));
    assert_eq!(fixture.core.lock_lost_error(queue).condition(), "com.microsoft:session-lock-lost");
    let next = fixture.next_session(queue);
    fixture.credit(next, 2);
    let counts: Vec<_> = fixture.take_deliveries(next).iter().map(|delivery| delivery.delivery_count).collect();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn a_receiver_that_deletes_keeps_its_session_while_attached() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    let filter = SessionFilter::Named("a".into());
    let link = fixture.try_attach(queue, ReceiveMode::ReceiveAndDelete, filter).unwrap().0;
    fixture.credit(link, 2);
    fixture.advance(200_000);
    assert!(fixture.events(link).detached.is_none());
    assert_eq!(fixture.named_session(queue, "a").unwrap_err().condition(), "com.microsoft:session-cannot-be-locked");
    send_to_sessions(&mut fixture, queue, &[("a", "2")]);
    assert_eq!(fixture.take_bodies(link), ["1", "2"]);
    fixture.call(|core, call| core.detach(call, link));
    assert!(fixture.named_session(queue, "a").is_ok());
}

#[test]
fn of_sessions_expired_together_the_oldest_message_is_next() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    // "late" is locked first, so its lock expires first; only the order of the messages puts "early" before it.
    fixture.named_session(queue, "late").unwrap();
    send_to_sessions(&mut fixture, queue, &[("early", "1"), ("late", "2")]);
    fixture.named_session(queue, "early").unwrap();
    fixture.advance(50_000);
    let waiting = fixture.next_session(queue);
    fixture.advance(10_000);
    assert_eq!(session_of(&mut fixture, waiting).as_deref(), Some("early"));
}

#[test]
fn a_renewed_session_keeps_its_holder() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    assert_eq!(delivery.locked_until, Timestamp(START.0 + 60_000));
    fixture.advance(50_000);
    let until = fixture.call(|core, call| core.renew_session(call, queue, "a")).unwrap();
    assert_eq!(until, Timestamp(START.0 + 110_000));
    fixture.advance(59_000);
    fixture.complete(queue, &delivery);
    let lost = fixture.call(|core, call| core.renew_session(call, queue, "b")).unwrap_err();
    assert_eq!(lost.condition(), "com.microsoft:session-lock-lost");
    let refused = fixture.call(|core, call| core.renew(call, queue, &[delivery.token])).unwrap_err();
    assert_eq!(refused.condition(), "amqp:not-allowed");
}

#[test]
fn an_abandoned_message_is_redelivered_before_later_ones() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1"), ("a", "2"), ("a", "3")]);
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    fixture.abandon(queue, &delivery);
    fixture.credit(link, 2);
    assert_eq!(fixture.take_bodies(link), ["1", "2"]);
}

#[test]
fn a_poison_message_is_dead_lettered_and_the_next_delivered() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| {
        queue.egress.requires_session = true;
        queue.egress.max_delivery_count = 2;
    });
    send_to_sessions(&mut fixture, queue, &[("a", "bad"), ("a", "good")]);
    for _ in 0..2 {
        let link = fixture.next_session(queue);
        fixture.credit(link, 1);
        assert_eq!(fixture.take_bodies(link), ["bad"]);
        fixture.advance(60_000);
    }
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    assert_eq!(fixture.take_bodies(link), ["good"]);
    let dead_letter_link = fixture.receiver(dead_letters(queue), 1);
    assert_eq!(fixture.take_bodies(dead_letter_link), ["bad"], "dead letters need no session");
}

#[test]
fn session_state_needs_the_lock_and_survives_it() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let link = fixture.named_session(queue, "a").unwrap();
    assert_eq!(fixture.call(|core, call| core.session_state(call, queue, "a")).unwrap(), None);
    fixture.call(|core, call| core.set_session_state(call, queue, "a", Some("one".into()))).unwrap();
    fixture.call(|core, call| core.set_session_state(call, queue, "a", Some("two".into()))).unwrap();
    fixture.detach(link);
    let lost = fixture.call(|core, call| core.session_state(call, queue, "a")).unwrap_err();
    assert_eq!(lost.condition(), "com.microsoft:session-lock-lost");
    fixture.restart();
    let link = fixture.named_session(queue, "a").unwrap();
    let state = fixture.call(|core, call| core.session_state(call, queue, "a")).unwrap();
    assert_eq!(state.as_deref(), Some(&b"two"[..]));
    assert_eq!(fixture.counts("q").sessions, 1);
    fixture.call(|core, call| core.set_session_state(call, queue, "a", None)).unwrap();
    fixture.detach(link);
    assert_eq!(fixture.counts("q").sessions, 0, "nothing keeps the session");
    assert_eq!(fixture.counts("q").bytes, 0);
    let large = fixture.named_session(queue, "b").map(|_| bytes::Bytes::from(vec![0; 1025])).unwrap();
    let refused = fixture.call(|core, call| core.set_session_state(call, queue, "b", Some(large))).unwrap_err();
    assert_eq!(refused.condition(), "amqp:link:message-size-exceeded");
}

#[test]
fn a_session_with_only_deferred_messages_is_not_offered_as_next() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    let link = fixture.next_session(queue);
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    assert!(fixture.settle(queue, &delivery, &defer()));
    fixture.detach(link);
    let waiting = fixture.next_session(queue);
    assert_eq!(session_of(&mut fixture, waiting), None);
}

#[test]
fn receive_and_delete_works_within_a_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1"), ("a", "2")]);
    let filter = SessionFilter::Next { timeout: Duration::ZERO };
    let link = fixture.try_attach(queue, ReceiveMode::ReceiveAndDelete, filter).unwrap().0;
    fixture.credit(link, 5);
    assert_eq!(fixture.take_bodies(link), ["1", "2"]);
    fixture.detach(link);
    assert_eq!((fixture.counts("q").active, fixture.counts("q").sessions), (0, 0));
}

#[test]
fn a_test_fault_can_expire_a_session_lock() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    send_to_sessions(&mut fixture, queue, &[("a", "1")]);
    let link = fixture.next_session(queue);
    fixture.call(|core, call| core.expire_session_lock(call, queue, "a")).unwrap();
    assert!(fixture.events(link).detached.is_some());
    assert!(fixture.call(|core, call| core.expire_session_lock(call, queue, "a")).is_err());
}
