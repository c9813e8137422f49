use broker::core::*;

use crate::fixture::*;

fn due(millis: u64, body: &str) -> IncomingMessage {
    IncomingMessage { scheduled_for: Some(Timestamp(START.0 + millis)), ..message(body) }
}

#[test]
fn a_due_message_gets_a_new_sequence_number() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let link = fixture.receiver(queue, 9);
    let scheduled = fixture.send(queue.entity, due(5_000, "later"));
    fixture.send_all(queue.entity, &["now"]);
    assert_eq!(fixture.take_bodies(link), ["now"]);
    assert_eq!(fixture.counts("q").scheduled, 1);
    fixture.advance(4_999);
    assert!(fixture.take_deliveries(link).is_empty());
    fixture.advance(1);
    let delivery = fixture.receive_one(link);
    assert_eq!(fixture.body(&delivery), "later");
    assert!(delivery.sequence > scheduled);
    assert_eq!(fixture.counts("q").scheduled, 0);
}

#[test]
fn a_past_scheduled_time_means_now() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send(queue.entity, due(0, "a"));
    assert_eq!(fixture.counts("q").active, 1);
}

#[test]
fn a_due_message_reaches_the_subscriptions_that_exist_then() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    fixture.send(topic, due(5_000, "a"));
    let (one, other) = (fixture.subscription("t", "one", |_| {}), fixture.subscription("t", "other", |_| {}));
    fixture.restart();
    fixture.advance(5_000);
    for subscription in [one, other] {
        let link = fixture.receive_and_delete_link(subscription, 1);
        assert_eq!(fixture.take_bodies(link), ["a"]);
    }
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_due_message_without_subscriptions_is_released() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    fixture.send(topic, due(5_000, "a"));
    fixture.advance(5_000);
    assert_eq!(fixture.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn scheduled_messages_are_cancelled_all_or_none() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    let (one, two) = (fixture.send(queue.entity, due(5_000, "1")), fixture.send(queue.entity, due(5_000, "2")));
    let cancel = |fixture: &mut CoreFixture, numbers: &[SequenceNumber]| {
        fixture.call(|core, call| core.cancel(call, queue.entity, numbers))
    };
    let refused = cancel(&mut fixture, &[one, SequenceNumber(99)]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:message-not-found", 404));
    assert_eq!(fixture.counts("q").scheduled, 2);
    cancel(&mut fixture, &[one, two, one]).unwrap();
    fixture.restart();
    fixture.advance(5_000);
    assert_eq!(fixture.counts("q"), EntityCounts::default());
    assert!(fixture.journal.references().all(|references| references == 0));
}

#[test]
fn time_to_live_starts_when_the_message_is_due() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send(queue.entity, IncomingMessage { time_to_live: Some(2_000), ..due(5_000, "a") });
    fixture.advance(6_500);
    assert_eq!(fixture.counts("q").active, 1);
    fixture.advance(1_000);
    assert_eq!(fixture.counts("q").active, 0);
}

#[test]
fn a_scheduled_duplicate_is_dropped() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.requires_duplicate_detection = true);
    let scheduled = IncomingMessage { message_id: Some("a".into()), ..due(5_000, "a") };
    fixture.send(queue.entity, scheduled);
    assert_eq!(fixture.try_send(queue.entity, &[with_id("a")]).unwrap(), [None]);
}

#[test]
fn scheduled_messages_are_enqueued_in_their_session() {
    let (mut fixture, queue) = CoreFixture::with_session_queue();
    let waiting = fixture.next_session(queue);
    fixture.send(queue.entity, IncomingMessage { session_id: Some("s".into()), ..due(5_000, "a") });
    assert!(fixture.events(waiting).attached.is_none());
    fixture.advance(5_000);
    assert_eq!(fixture.events(waiting).attached.as_ref().unwrap().0, "s");
}

#[test]
fn a_full_journal_delays_what_is_due() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send(queue.entity, due(5_000, "a"));
    fixture.journal.full = true;
    fixture.advance(6_000);
    assert_eq!(fixture.counts("q").scheduled, 1);
    fixture.journal.full = false;
    fixture.advance(1_000);
    assert_eq!(fixture.counts("q").active, 1);
}
