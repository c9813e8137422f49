use broker::core::*;

use crate::rig::*;

fn five_seconds(queue: &mut QueueDescription) {
    queue.outlet.lock_duration = std::time::Duration::from_secs(5);
}

#[test]
fn a_lock_that_ends_returns_the_message_one_failure_older() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", five_seconds);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let first = rig.one(link);
    assert_eq!(first.locked_until, Timestamp(START.0 + 5_000));
    rig.pass(4_999);
    rig.credit(link, 1);
    assert!(rig.received(link).is_empty());
    rig.pass(1);
    let again = rig.one(link);
    assert_eq!(again.delivery_count, 1);
    assert!(!rig.settle(queue, &first, &Outcome::Complete));
    assert_eq!(rig.core.lock_lost(queue).condition(), "com.microsoft:message-lock-lost");
    rig.complete(queue, &again);
}

#[test]
fn a_renewed_lock_lasts_its_full_time_again() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", five_seconds);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let delivery = rig.one(link);
    for round in 1..=3 {
        rig.pass(4_000);
        let until = rig.turn(|core, turn| core.renew(turn, queue, &[delivery.token])).unwrap();
        assert_eq!(until, [Timestamp(START.0 + round * 4_000 + 5_000)]);
    }
    rig.complete(queue, &delivery);
    let lost = rig.turn(|core, turn| core.renew(turn, queue, &[delivery.token])).unwrap_err();
    assert_eq!((lost.condition(), lost.status()), ("com.microsoft:message-lock-lost", 410));
}

#[test]
fn renewal_is_all_or_none() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", five_seconds);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 1);
    let delivery = rig.one(link);
    rig.pass(3_000);
    let tokens = [delivery.token, LockToken(1)];
    assert!(rig.turn(|core, turn| core.renew(turn, queue, &tokens)).is_err());
    rig.pass(2_000);
    assert!(!rig.settle(queue, &delivery, &Outcome::Complete), "it was not renewed");
}

#[test]
fn locks_outlive_their_link_and_are_settled_by_token_from_elsewhere() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", five_seconds);
    rig.send_all(queue.entity, &["a", "b"]);
    let link = rig.receiver(queue, 2);
    let received = rig.received(link);
    rig.detach(link);
    let other = rig.receiver(queue, 5);
    assert!(rig.received(other).is_empty());
    rig.complete(queue, &received[0]);
    rig.pass(5_000);
    assert_eq!(rig.bodies(other), ["b"]);
}

#[test]
fn lock_after_lock_running_out_ends_among_the_dead_letters() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| {
        five_seconds(queue);
        queue.outlet.max_delivery_count = 2;
    });
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 10);
    rig.pass(20_000);
    assert_eq!(rig.received(link).len(), 2);
    assert_eq!(rig.counts("q").dead_letter, 1);
}

#[test]
fn thousands_of_locks_that_end_together_end_in_pieces() {
    let mut rig = Rig::new();
    rig.core = Core::new(Limits { max_message_size: 1024, max_unsettled: 5_000, ..Limits::default() }, [7; 32]);
    let queue = rig.queue("q", five_seconds);
    let batch: Vec<_> = (0..1_000).map(|n| message(&n.to_string())).collect();
    rig.try_send(queue.entity, &batch).unwrap();
    let link = rig.receiver(queue, 1_000);
    let received = rig.received(link);
    rig.now = Timestamp(START.0 + 5_000);
    rig.turn(Core::tick);
    assert!(rig.core.next_deadline().unwrap() <= rig.now, "there is more to do");
    assert!(!rig.settle(queue, &received[999], &Outcome::Complete), "a lock past its time is lost all the same");
    rig.pass(0);
    rig.credit(link, 2_000);
    assert_eq!(rig.received(link).len(), 1_000);
}

#[test]
fn a_full_journal_does_not_keep_a_lock_alive() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", five_seconds);
    rig.send_all(queue.entity, &["a"]);
    let link = rig.receiver(queue, 2);
    rig.received(link);
    rig.journal.full = true;
    rig.pass(5_000);
    assert_eq!(rig.one(link).delivery_count, 1);
}
