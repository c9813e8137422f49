use broker::core::*;
use bytes::Bytes;

use crate::rig::*;

fn property(name: &str, value: &'static str) -> Properties {
    vec![(name.into(), Bytes::from_static(value.as_bytes()))]
}

/// Outcome, then: is it served again, with which count, how many are left here and among the dead letters.
#[test]
fn each_outcome_does_what_it_says() {
    let cases = [
        ("complete", Outcome::Complete, None, 0, 0),
        ("abandon", abandon(), Some(1), 1, 0),
        ("release", Outcome::Release, Some(0), 1, 0),
        ("defer", defer(), None, 1, 0),
        ("dead-letter", dead_letter("bad"), None, 0, 1),
    ];
    for (name, outcome, served_again, active, dead) in cases {
        let mut rig = Rig::new();
        let queue = rig.queue("q", |_| {});
        rig.send_all(queue.entity, &["a"]);
        let link = rig.receiver(queue, 5);
        let first = rig.one(link);
        assert!(rig.settle(queue, &first, &outcome), "{name}");
        let again = rig.received(link).pop();
        assert_eq!(again.as_ref().map(|delivery| delivery.delivery_count), served_again, "{name}");
        assert!(again.is_none_or(|again| again.token != first.token && again.sequence == first.sequence), "{name}");
        let counts = rig.counts("q");
        assert_eq!((counts.active, counts.dead_letter), (active, dead), "{name}");
        assert!(!rig.settle(queue, &first, &Outcome::Complete), "{name}: a delivery is settled once");
    }
}

#[test]
fn what_was_abandoned_is_served_before_what_never_was() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a", "b", "c"]);
    let link = rig.receiver(queue, 2);
    let received = rig.received(link);
    rig.abandon(queue, &received[1]);
    rig.abandon(queue, &received[0]);
    rig.credit(link, 3);
    assert_eq!(rig.bodies(link), ["a", "b", "c"]);
}

#[test]
fn abandoning_and_deferring_may_set_properties() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 9);
    let first = rig.one(link);
    assert!(rig.settle(queue, &first, &Outcome::Abandon { properties: property("k", "1") }));
    let second = rig.one(link);
    assert_eq!(second.alterations.as_ref().unwrap().properties, property("k", "1"));
    assert!(rig.settle(queue, &second, &Outcome::Abandon { properties: property("k", "2") }));
    let third = rig.one(link);
    assert_eq!(third.alterations.as_ref().unwrap().properties, property("k", "2"));
    rig.abandon(queue, &third);
    assert_eq!(rig.one(link).alterations.unwrap().properties, property("k", "2"), "they stay");
}

#[test]
fn a_dead_letter_keeps_its_body_its_count_and_its_reason() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["spare", "a"]);
    let link = rig.receiver(queue, 9);
    let received = rig.received(link);
    rig.abandon(queue, &received[1]);
    let second = rig.one(link);
    let outcome = Outcome::DeadLetter {
        reason: Some("bad".into()),
        description: Some("worse".into()),
        properties: property("k", "1"),
    };
    assert!(rig.settle(queue, &second, &outcome));
    let buried = rig.receiver(dead_letters(queue), 1);
    let dead = rig.one(buried);
    assert_eq!((rig.body(&dead).as_str(), dead.delivery_count), ("a", 1));
    let alterations = dead.alterations.clone().unwrap();
    assert_eq!((alterations.reason.as_deref(), alterations.description.as_deref()), (Some("bad"), Some("worse")));
    assert_eq!(
        (alterations.enqueued_sequence, alterations.properties.clone()),
        (Some(second.sequence), property("k", "1"))
    );
    rig.complete(dead_letters(queue), &dead);
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_dead_letter_cannot_die_again() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.outlet.max_delivery_count = 1);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let first = rig.one(link);
    assert!(rig.settle(queue, &first, &dead_letter("bad")));
    let buried = rig.receiver(dead_letters(queue), 50);
    for _ in 0..20 {
        let dead = rig.one(buried);
        assert!(rig.settle(dead_letters(queue), &dead, &dead_letter("again")));
    }
    assert_eq!(rig.counts("q").dead_letter, 1);
}

#[test]
fn too_many_attempts_make_a_dead_letter() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.outlet.max_delivery_count = 3);
    rig.send_all(queue.entity, &["a", "b"]);
    let link = rig.receiver(queue, 1);
    for count in 0..3 {
        let delivery = rig.one(link);
        assert_eq!((rig.body(&delivery).as_str(), delivery.delivery_count), ("a", count));
        rig.abandon(queue, &delivery);
        rig.credit(link, 1);
    }
    assert_eq!(rig.bodies(link), ["b"]);
    let buried = rig.receiver(dead_letters(queue), 1);
    let dead = rig.one(buried);
    assert_eq!(dead.alterations.unwrap().reason.as_deref(), Some("MaxDeliveryCountExceeded"));
}

#[test]
fn the_last_attempt_makes_a_dead_letter_even_when_nobody_asks_for_more() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.outlet.max_delivery_count = 1);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let delivery = rig.one(link);
    rig.abandon(queue, &delivery);
    assert_eq!(rig.counts("q").dead_letter, 1);
}

#[test]
fn a_range_is_settled_in_one_record_and_names_what_was_lost() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    (0..10).for_each(|n| rig.send_all(queue.entity, &[&n.to_string()]));
    let link = rig.receiver(queue, 10);
    let tokens: Vec<_> = rig.received(link).iter().map(|delivery| delivery.token).collect();
    rig.turn(|core, turn| core.settle(turn, queue, &tokens[3..4], &Outcome::Complete)).unwrap();
    let before = rig.journal.groups().len();
    let lost = rig.turn(|core, turn| core.settle(turn, queue, &tokens, &Outcome::Complete)).unwrap();
    assert_eq!(lost, tokens[3..4]);
    let new = &rig.journal.groups()[before..];
    assert_eq!((new.len(), new[0].len()), (1, 1));
    assert_eq!(rig.counts("q").active, 0);
}

#[test]
fn a_token_named_twice_is_settled_once() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    for outcome in [Outcome::Complete, abandon(), Outcome::Release, defer(), dead_letter("x")] {
        rig.send_all(queue.entity, &["a"]);
        let link = rig.receiver(queue, 1);
        let token = rig.one(link).token;
        rig.turn(|core, turn| core.settle(turn, queue, &[token, token], &outcome)).unwrap();
        rig.detach(link);
        let clean = rig.deleting_receiver(queue, 5);
        rig.detach(clean);
    }
}

#[test]
fn when_the_journal_refuses_nothing_is_settled() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let delivery = rig.one(link);
    rig.journal.full = true;
    for outcome in [Outcome::Complete, abandon(), defer(), dead_letter("x")] {
        let refused = rig.turn(|core, turn| core.settle(turn, queue, &[delivery.token], &outcome));
        assert_eq!(refused.unwrap_err().condition(), "amqp:resource-limit-exceeded");
    }
    rig.journal.full = false;
    rig.complete(queue, &delivery);
}
