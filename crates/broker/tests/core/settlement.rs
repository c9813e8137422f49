use broker::core::*;
use bytes::Bytes;

use crate::fixture::*;

fn property(name: &str, value: &'static str) -> PropertyUpdates {
    vec![(name.into(), Bytes::from_static(value.as_bytes()))]
}

/// Outcome; the delivery count if it is redelivered; messages left; dead letters.
#[test]
fn each_outcome_does_what_it_says() {
    let cases = [
        ("complete", SettlementOutcome::Complete, None, 0, 0),
        ("abandon", abandon(), Some(1), 1, 0),
        ("release", SettlementOutcome::Release, Some(0), 1, 0),
        ("defer", defer(), None, 1, 0),
        ("dead-letter", dead_letter("bad"), None, 0, 1),
    ];
    for (name, outcome, served_again, active, dead) in cases {
        let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
        fixture.send_all(queue.entity, &["a"]);
        let link = fixture.receiver(queue, 5);
        let first = fixture.receive_one(link);
        assert!(fixture.settle(queue, &first, &outcome), "{name}");
        let again = fixture.take_deliveries(link).pop();
        assert_eq!(again.as_ref().map(|delivery| delivery.delivery_count), served_again, "{name}");
        assert!(again.is_none_or(|again| again.token != first.token && again.sequence == first.sequence), "{name}");
        let counts = fixture.counts("q");
        assert_eq!((counts.active, counts.dead_letter), (active, dead), "{name}");
        assert!(!fixture.settle(queue, &first, &SettlementOutcome::Complete), "{name}: a delivery is settled once");
    }
}

#[test]
fn abandoned_messages_are_delivered_before_new_ones() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b", "c"]);
    let link = fixture.receiver(queue, 2);
    let received = fixture.take_deliveries(link);
    fixture.abandon(queue, &received[1]);
    fixture.abandon(queue, &received[0]);
    fixture.credit(link, 3);
    assert_eq!(fixture.take_bodies(link), ["a", "b", "c"]);
}

#[test]
fn abandoning_and_deferring_may_set_properties() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 9);
    let first = fixture.receive_one(link);
    assert!(fixture.settle(queue, &first, &SettlementOutcome::Abandon { properties: property("k", "1") }));
    let second = fixture.receive_one(link);
    assert_eq!(second.overrides.as_ref().unwrap().properties, property("k", "1"));
    assert!(fixture.settle(queue, &second, &SettlementOutcome::Abandon { properties: property("k", "2") }));
    let third = fixture.receive_one(link);
    assert_eq!(third.overrides.as_ref().unwrap().properties, property("k", "2"));
    fixture.abandon(queue, &third);
    assert_eq!(fixture.receive_one(link).overrides.unwrap().properties, property("k", "2"), "they stay");
}

#[test]
fn a_dead_letter_keeps_its_body_its_count_and_its_reason() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["spare", "a"]);
    let link = fixture.receiver(queue, 9);
    let received = fixture.take_deliveries(link);
    fixture.abandon(queue, &received[1]);
    let second = fixture.receive_one(link);
    let outcome = SettlementOutcome::DeadLetter {
        reason: Some("bad".into()),
        description: Some("worse".into()),
        properties: property("k", "1"),
    };
    assert!(fixture.settle(queue, &second, &outcome));
    let dead_letter_link = fixture.receiver(dead_letters(queue), 1);
    let dead = fixture.receive_one(dead_letter_link);
    assert_eq!((fixture.body(&dead).as_str(), dead.delivery_count), ("a", 1));
    let overrides = dead.overrides.clone().unwrap();
    assert_eq!((overrides.reason.as_deref(), overrides.description.as_deref()), (Some("bad"), Some("worse")));
    assert_eq!(
        (overrides.enqueued_sequence, overrides.properties.clone()),
        (Some(second.sequence), property("k", "1"))
    );
    fixture.complete(dead_letters(queue), &dead);
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_dead_letter_cannot_be_dead_lettered_again() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.egress.max_delivery_count = 1);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let first = fixture.receive_one(link);
    assert!(fixture.settle(queue, &first, &dead_letter("bad")));
    let queue = dead_letters(queue);
    let dead_letter_link = fixture.receiver(queue, 1);
    let dead = fixture.receive_one(dead_letter_link);
    let again = dead_letter("again");
    let refused = fixture.call(|core, call| core.settle(call, queue, &[dead.token], &again)).unwrap_err();
    assert_eq!(refused.condition(), "amqp:not-allowed");
    fixture.complete(queue, &dead);
    assert_eq!(fixture.counts("q").dead_letter, 0);
}

#[test]
fn deliveries_from_a_dead_letter_queue_are_not_counted() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let first = fixture.receive_one(link);
    assert!(fixture.settle(queue, &first, &dead_letter("bad")));
    let queue = dead_letters(queue);
    let link = fixture.receiver(queue, 50);
    let dead = fixture.receive_one(link);
    fixture.abandon(queue, &dead);
    assert_eq!(fixture.receive_one(link).delivery_count, 0, "abandoned");
    fixture.advance(60_000);
    let dead = fixture.receive_one(link);
    assert_eq!(dead.delivery_count, 0, "its lock expired");
    assert!(fixture.settle(queue, &dead, &defer()));
    let numbers = [dead.sequence];
    let fetched =
        fixture.call(|core, call| core.receive_deferred(call, queue, None, &numbers, ReceiveMode::PeekLock)).unwrap();
    assert_eq!(fetched[0].delivery_count, 0, "deferred");
}

#[test]
fn a_deferral_counts_but_does_not_dead_letter() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.egress.max_delivery_count = 1);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let first = fixture.receive_one(link);
    assert!(fixture.settle(queue, &first, &defer()));
    assert_eq!(fixture.counts("q").dead_letter, 0);
    let numbers = [first.sequence];
    let fetched =
        fixture.call(|core, call| core.receive_deferred(call, queue, None, &numbers, ReceiveMode::PeekLock)).unwrap();
    assert_eq!(fetched[0].delivery_count, 1);
    fixture.abandon(queue, &fetched[0]);
    assert_eq!(fixture.counts("q").dead_letter, 1);
}

#[test]
fn too_many_failed_deliveries_dead_letter_the_message() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.egress.max_delivery_count = 3);
    fixture.send_all(queue.entity, &["a", "b"]);
    let link = fixture.receiver(queue, 1);
    for count in 0..3 {
        let delivery = fixture.receive_one(link);
        assert_eq!((fixture.body(&delivery).as_str(), delivery.delivery_count), ("a", count));
        fixture.abandon(queue, &delivery);
        fixture.credit(link, 1);
    }
    assert_eq!(fixture.take_bodies(link), ["b"]);
    let dead_letter_link = fixture.receiver(dead_letters(queue), 1);
    let dead = fixture.receive_one(dead_letter_link);
    assert_eq!(dead.overrides.unwrap().reason.as_deref(), Some("MaxDeliveryCountExceeded"));
}

#[test]
fn the_last_failed_delivery_dead_letters_without_more_credit() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.egress.max_delivery_count = 1);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let delivery = fixture.receive_one(link);
    fixture.abandon(queue, &delivery);
    assert_eq!(fixture.counts("q").dead_letter, 1);
}

#[test]
fn a_range_is_settled_in_one_record_and_lost_locks_reported() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    (0..10).for_each(|n| fixture.send_all(queue.entity, &[&n.to_string()]));
    let link = fixture.receiver(queue, 10);
    let tokens: Vec<_> = fixture.take_deliveries(link).iter().map(|delivery| delivery.token).collect();
    fixture.call(|core, call| core.settle(call, queue, &tokens[3..4], &SettlementOutcome::Complete)).unwrap();
    let before = fixture.journal.groups().len();
    let lost = fixture.call(|core, call| core.settle(call, queue, &tokens, &SettlementOutcome::Complete)).unwrap();
    assert_eq!(lost, tokens[3..4]);
    let new = &fixture.journal.groups()[before..];
    assert_eq!((new.len(), new[0].len()), (1, 1));
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn a_repeated_token_is_settled_once() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    for outcome in [SettlementOutcome::Complete, abandon(), SettlementOutcome::Release, defer(), dead_letter("x")] {
        fixture.send_all(queue.entity, &["a"]);
        let link = fixture.receiver(queue, 1);
        let token = fixture.receive_one(link).token;
        fixture.call(|core, call| core.settle(call, queue, &[token, token], &outcome)).unwrap();
        fixture.detach(link);
        let clean = fixture.receive_and_delete_link(queue, 5);
        fixture.detach(clean);
    }
}

#[test]
fn a_refused_append_settles_nothing() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let delivery = fixture.receive_one(link);
    fixture.journal.full = true;
    for outcome in [SettlementOutcome::Complete, abandon(), defer(), dead_letter("x")] {
        let refused = fixture.call(|core, call| core.settle(call, queue, &[delivery.token], &outcome));
        assert_eq!(refused.unwrap_err().condition(), "amqp:resource-limit-exceeded");
    }
    fixture.journal.full = false;
    fixture.complete(queue, &delivery);
}
