use std::time::Duration;

use broker::core::*;

use crate::fixture::*;

#[test]
fn the_shorter_time_to_live_of_message_and_entity_applies() {
    let day = 86_400_000;
    // (message's time to live, queue's default, alive at, expired at), in milliseconds
    let cases = [
        (Some(1_000), None, 999, 1_250),
        (None, Some(2_000), 1_999, 2_250),
        (Some(1_000), Some(5_000), 999, 1_250),
        (Some(day), Some(2_000), 1_999, 2_250),
    ];
    for (own, default, lives, gone) in cases {
        let (mut fixture, queue) = CoreFixture::with_queue(|queue| {
            queue.common.default_message_time_to_live = default.map(Duration::from_millis);
        });
        fixture.send(queue.entity, IncomingMessage { time_to_live: own, ..message("a") });
        fixture.advance(lives);
        assert_eq!(fixture.counts("q").active, 1, "{own:?} {default:?}");
        fixture.advance(gone - lives);
        assert_eq!(fixture.counts("q"), EntityCounts::default(), "{own:?} {default:?}");
        assert!(fixture.journal.references().all(|references| references == 0));
        fixture.restart();
        assert_eq!(fixture.counts("q").active, 0);
    }
}

#[test]
fn an_expired_message_is_dead_lettered_if_configured() {
    let (mut fixture, queue) =
        CoreFixture::with_queue(|queue| queue.egress.dead_lettering_on_message_expiration = true);
    fixture.send(queue.entity, with_time_to_live(1_000, "a"));
    fixture.advance(2_000);
    let dead_letter_link = fixture.receiver(dead_letters(queue), 1);
    let dead = fixture.receive_one(dead_letter_link);
    assert_eq!(dead.overrides.as_ref().unwrap().reason.as_deref(), Some("TTLExpiredException"));
    fixture.advance(86_400_000);
    assert_eq!(fixture.counts("q").dead_letter, 1, "dead letters do not expire");
}

#[test]
fn a_locked_message_expires_when_unlocked() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send(queue.entity, with_time_to_live(1_000, "a"));
    fixture.send(queue.entity, with_time_to_live(1_000, "b"));
    let link = fixture.receiver(queue, 2);
    let received = fixture.take_deliveries(link);
    fixture.advance(5_000);
    fixture.complete(queue, &received[0]);
    fixture.abandon(queue, &received[1]);
    fixture.credit(link, 2);
    assert!(fixture.take_deliveries(link).is_empty());
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn deferred_and_session_messages_expire() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    fixture.send(queue.entity, IncomingMessage { time_to_live: Some(1_000), ..in_session("a", "1") });
    fixture.send(queue.entity, IncomingMessage { time_to_live: Some(9_000), ..in_session("b", "2") });
    let link = fixture.named_session(queue, "b").unwrap();
    fixture.credit(link, 1);
    let delivery = fixture.receive_one(link);
    assert!(fixture.settle(queue, &delivery, &defer()));
    fixture.advance(2_000);
    assert_eq!(fixture.counts("q").sessions, 1, "an empty session is gone");
    let waiting = fixture.next_session(queue);
    assert!(fixture.events(waiting).attached.is_none());
    fixture.advance(8_000);
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn a_subscription_can_shorten_the_time_to_live() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |topic| topic.common.default_message_time_to_live = Some(Duration::from_secs(10)));
    fixture.subscription("t", "short", |s| s.common.default_message_time_to_live = Some(Duration::from_secs(2)));
    fixture.subscription("t", "long", |s| s.common.default_message_time_to_live = Some(Duration::from_secs(60)));
    fixture.send_all(topic, &["a"]);
    fixture.restart();
    fixture.advance(3_000);
    assert_eq!(fixture.counts("t/subscriptions/short").active, 0);
    assert_eq!(fixture.counts("t/subscriptions/long").active, 1);
    fixture.advance(8_000);
    assert_eq!(fixture.counts("t/subscriptions/long").active, 0);
}

#[test]
fn expired_messages_leave_after_the_journal_has_space() {
    let (mut fixture, queue) =
        CoreFixture::with_queue(|queue| queue.egress.dead_lettering_on_message_expiration = true);
    for _ in 0..300 {
        fixture.send(queue.entity, with_time_to_live(1_000, "a"));
    }
    fixture.journal.full = true;
    fixture.advance(3_000);
    let link = fixture.receiver(queue, 1);
    assert!(fixture.take_deliveries(link).is_empty(), "what is past its time is not delivered either");
    assert_eq!(fixture.counts("q").active, 300);
    fixture.journal.full = false;
    fixture.advance(2_000);
    assert_eq!((fixture.counts("q").active, fixture.counts("q").dead_letter), (0, 300));
}
