use broker::core::*;

use crate::fixture::*;

fn five_seconds(queue: &mut QueueDescription) {
    queue.egress.lock_duration = std::time::Duration::from_secs(5);
}

#[test]
fn an_expired_lock_counts_a_failed_delivery() {
    let (mut fixture, queue) = CoreFixture::with_queue(five_seconds);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let first = fixture.receive_one(link);
    assert_eq!(first.locked_until, Timestamp(START.0 + 5_000));
    fixture.advance(4_999);
    fixture.credit(link, 1);
    assert!(fixture.take_deliveries(link).is_empty());
    fixture.advance(1);
    let again = fixture.receive_one(link);
    assert_eq!(again.delivery_count, 1);
    assert!(!fixture.settle(queue, &first, &SettlementOutcome::Complete));
    assert_eq!(fixture.core.lock_lost_error(queue).condition(), "com.microsoft:message-lock-lost");
    fixture.complete(queue, &again);
}

#[test]
fn a_renewed_lock_lasts_its_full_duration() {
    let (mut fixture, queue) = CoreFixture::with_queue(five_seconds);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let delivery = fixture.receive_one(link);
    for round in 1..=3 {
        fixture.advance(4_000);
        let until = fixture.call(|core, call| core.renew(call, queue, &[delivery.token])).unwrap();
        assert_eq!(until, [Timestamp(START.0 + round * 4_000 + 5_000)]);
    }
    fixture.complete(queue, &delivery);
    let lost = fixture.call(|core, call| core.renew(call, queue, &[delivery.token])).unwrap_err();
    assert_eq!((lost.condition(), lost.status()), ("com.microsoft:message-lock-lost", 410));
}

#[test]
fn renewal_is_all_or_none() {
    let (mut fixture, queue) = CoreFixture::with_queue(five_seconds);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 1);
    let delivery = fixture.receive_one(link);
    fixture.advance(3_000);
    let tokens = [delivery.token, LockToken(1)];
    assert!(fixture.call(|core, call| core.renew(call, queue, &tokens)).is_err());
    fixture.advance(2_000);
    assert!(!fixture.settle(queue, &delivery, &SettlementOutcome::Complete), "it was not renewed");
}

#[test]
fn locks_outlive_their_link_and_settle_by_token() {
    let (mut fixture, queue) = CoreFixture::with_queue(five_seconds);
    fixture.send_all(queue.entity, &["a", "b"]);
    let link = fixture.receiver(queue, 2);
    let received = fixture.take_deliveries(link);
    fixture.detach(link);
    let other = fixture.receiver(queue, 5);
    assert!(fixture.take_deliveries(other).is_empty());
    fixture.complete(queue, &received[0]);
    fixture.advance(5_000);
    assert_eq!(fixture.take_bodies(other), ["b"]);
}

#[test]
fn repeatedly_expired_locks_dead_letter_the_message() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| {
        five_seconds(queue);
        queue.egress.max_delivery_count = 2;
    });
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 10);
    fixture.advance(20_000);
    assert_eq!(fixture.take_deliveries(link).len(), 2);
    assert_eq!(fixture.counts("q").dead_letter, 1);
}

#[test]
fn thousands_of_locks_expire_in_limited_steps() {
    let mut fixture = CoreFixture::new();
    fixture.core =
        Core::new(BrokerLimits { max_message_size: 1024, max_unsettled: 5_000, ..BrokerLimits::default() }, [7; 32]);
    let queue = fixture.queue("q", five_seconds);
    let batch: Vec<_> = (0..1_000).map(|n| message(&n.to_string())).collect();
    fixture.try_send(queue.entity, &batch).unwrap();
    let link = fixture.receiver(queue, 1_000);
    let received = fixture.take_deliveries(link);
    fixture.now = Timestamp(START.0 + 5_000);
    fixture.call(Core::tick);
    assert!(fixture.core.next_deadline().unwrap() <= fixture.now, "there is more to do");
    assert!(
        !fixture.settle(queue, &received[999], &SettlementOutcome::Complete),
        "a lock past its time is lost all the same"
    );
    fixture.advance(0);
    fixture.credit(link, 2_000);
    assert_eq!(fixture.take_deliveries(link).len(), 1_000);
}

#[test]
fn a_full_journal_does_not_keep_a_lock_alive() {
    let (mut fixture, queue) = CoreFixture::with_queue(five_seconds);
    fixture.send_all(queue.entity, &["a"]);
    let link = fixture.receiver(queue, 2);
    fixture.take_deliveries(link);
    fixture.journal.full = true;
    fixture.advance(5_000);
    assert_eq!(fixture.receive_one(link).delivery_count, 1);
}
