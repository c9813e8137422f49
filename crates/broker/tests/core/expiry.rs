use std::time::Duration;

use broker::core::*;

use crate::rig::*;

#[test]
fn a_message_lives_no_longer_than_it_or_its_entity_says() {
    let day = 86_400_000;
    // (message's own, queue's default, lives at least, gone at the latest), in milliseconds
    let cases = [
        (Some(1_000), None, 999, 1_250),
        (None, Some(2_000), 1_999, 2_250),
        (Some(1_000), Some(5_000), 999, 1_250),
        (Some(day), Some(2_000), 1_999, 2_250),
    ];
    for (own, default, lives, gone) in cases {
        let mut rig = Rig::new();
        let queue = rig.queue("q", |queue| {
            queue.common.default_message_time_to_live = default.map(Duration::from_millis);
        });
        rig.send(queue.entity, Incoming { time_to_live: own, ..message("a") });
        rig.pass(lives);
        assert_eq!(rig.counts("q").active, 1, "{own:?} {default:?}");
        rig.pass(gone - lives);
        assert_eq!(rig.counts("q"), Counts::default(), "{own:?} {default:?}");
        assert!(rig.journal.references().all(|references| references == 0));
        rig.restart();
        assert_eq!(rig.counts("q").active, 0);
    }
}

#[test]
fn an_expired_message_becomes_a_dead_letter_where_asked_for() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.outlet.dead_lettering_on_message_expiration = true);
    rig.send(queue.entity, lasting(1_000, "a"));
    rig.pass(2_000);
    let buried = rig.receiver(dead_letters(queue), 1);
    let dead = rig.one(buried);
    assert_eq!(dead.alterations.as_ref().unwrap().reason.as_deref(), Some("TTLExpiredException"));
    rig.pass(86_400_000);
    assert_eq!(rig.counts("q").dead_letter, 1, "dead letters do not expire");
}

#[test]
fn a_locked_message_expires_when_it_comes_back() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send(queue.entity, lasting(1_000, "a"));
    rig.send(queue.entity, lasting(1_000, "b"));
    let link = rig.receiver(queue, 2);
    let received = rig.received(link);
    rig.pass(5_000);
    rig.complete(queue, &received[0]);
    rig.abandon(queue, &received[1]);
    rig.credit(link, 2);
    assert!(rig.received(link).is_empty());
    assert_eq!(rig.counts("q").active, 0);
}

#[test]
fn deferred_messages_and_those_of_sessions_expire_too() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    rig.send(queue.entity, Incoming { time_to_live: Some(1_000), ..in_session("a", "1") });
    rig.send(queue.entity, Incoming { time_to_live: Some(9_000), ..in_session("b", "2") });
    let link = rig.named_session(queue, "b").unwrap();
    rig.credit(link, 1);
    let delivery = rig.one(link);
    assert!(rig.settle(queue, &delivery, &defer()));
    rig.pass(2_000);
    assert_eq!(rig.counts("q").sessions, 1, "an empty session is gone");
    let waiting = rig.next_session(queue);
    assert!(rig.inbox(waiting).attached.is_none());
    rig.pass(8_000);
    assert_eq!(rig.counts("q").active, 0);
}

#[test]
fn a_subscription_may_allow_less_than_its_topic() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |topic| topic.common.default_message_time_to_live = Some(Duration::from_secs(10)));
    rig.subscription("t", "short", |s| s.common.default_message_time_to_live = Some(Duration::from_secs(2)));
    rig.subscription("t", "long", |s| s.common.default_message_time_to_live = Some(Duration::from_secs(60)));
    rig.send_all(topic, &["a"]);
    rig.restart();
    rig.pass(3_000);
    assert_eq!(rig.counts("t/subscriptions/short").active, 0);
    assert_eq!(rig.counts("t/subscriptions/long").active, 1);
    rig.pass(8_000);
    assert_eq!(rig.counts("t/subscriptions/long").active, 0);
}

#[test]
fn messages_that_cannot_leave_a_full_journal_leave_later() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.outlet.dead_lettering_on_message_expiration = true);
    for _ in 0..300 {
        rig.send(queue.entity, lasting(1_000, "a"));
    }
    rig.journal.full = true;
    rig.pass(3_000);
    let link = rig.receiver(queue, 1);
    assert!(rig.received(link).is_empty(), "what is past its time is not delivered either");
    assert_eq!(rig.counts("q").active, 300);
    rig.journal.full = false;
    rig.pass(2_000);
    assert_eq!((rig.counts("q").active, rig.counts("q").dead_letter), (0, 300));
}
