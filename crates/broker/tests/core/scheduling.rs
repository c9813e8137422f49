use broker::core::*;

use crate::rig::*;

fn due(millis: u64, body: &str) -> Incoming {
    Incoming { scheduled_for: Some(Timestamp(START.0 + millis)), ..message(body) }
}

#[test]
fn a_scheduled_message_is_there_when_due_under_a_new_number() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    let link = rig.receiver(queue, 9);
    let scheduled = rig.send(queue.entity, due(5_000, "later"));
    rig.send_all(queue.entity, &["now"]);
    assert_eq!(rig.bodies(link), ["now"]);
    assert_eq!(rig.counts("q").scheduled, 1);
    rig.pass(4_999);
    assert!(rig.received(link).is_empty());
    rig.pass(1);
    let delivery = rig.one(link);
    assert_eq!(rig.body(&delivery), "later");
    assert!(delivery.sequence > scheduled);
    assert_eq!(rig.counts("q").scheduled, 0);
}

#[test]
fn a_time_that_has_passed_means_now() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send(queue.entity, due(0, "a"));
    assert_eq!(rig.counts("q").active, 1);
}

#[test]
fn a_scheduled_message_of_a_topic_reaches_the_subscriptions_there_are_when_it_is_due() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    rig.send(topic, due(5_000, "a"));
    let (one, other) = (rig.subscription("t", "one", |_| {}), rig.subscription("t", "other", |_| {}));
    rig.restart();
    rig.pass(5_000);
    for subscription in [one, other] {
        let link = rig.deleting_receiver(subscription, 1);
        assert_eq!(rig.bodies(link), ["a"]);
    }
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn one_that_nobody_takes_is_gone() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    rig.send(topic, due(5_000, "a"));
    rig.pass(5_000);
    assert_eq!(rig.journal.references().collect::<Vec<_>>(), [0]);
}

#[test]
fn scheduled_messages_are_called_off_all_or_none() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    let (one, two) = (rig.send(queue.entity, due(5_000, "1")), rig.send(queue.entity, due(5_000, "2")));
    let cancel =
        |rig: &mut Rig, numbers: &[SequenceNumber]| rig.turn(|core, turn| core.cancel(turn, queue.entity, numbers));
    let refused = cancel(&mut rig, &[one, SequenceNumber(99)]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("com.microsoft:message-not-found", 404));
    assert_eq!(rig.counts("q").scheduled, 2);
    cancel(&mut rig, &[one, two, one]).unwrap();
    rig.restart();
    rig.pass(5_000);
    assert_eq!(rig.counts("q"), Counts::default());
    assert!(rig.journal.references().all(|references| references == 0));
}

#[test]
fn its_time_to_live_begins_when_it_is_due() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send(queue.entity, Incoming { time_to_live: Some(2_000), ..due(5_000, "a") });
    rig.pass(6_500);
    assert_eq!(rig.counts("q").active, 1);
    rig.pass(1_000);
    assert_eq!(rig.counts("q").active, 0);
}

#[test]
fn a_scheduled_duplicate_is_dropped() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.inlet.requires_duplicate_detection = true);
    let scheduled = Incoming { message_id: Some("a".into()), ..due(5_000, "a") };
    rig.send(queue.entity, scheduled);
    assert_eq!(rig.try_send(queue.entity, &[with_id("a")]).unwrap(), [None]);
}

#[test]
fn scheduled_messages_of_a_session_join_it() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q");
    let waiting = rig.next_session(queue);
    rig.send(queue.entity, Incoming { session_id: Some("s".into()), ..due(5_000, "a") });
    assert!(rig.inbox(waiting).attached.is_none());
    rig.pass(5_000);
    assert_eq!(rig.inbox(waiting).attached.as_ref().unwrap().0, "s");
}

#[test]
fn a_full_journal_delays_what_is_due() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send(queue.entity, due(5_000, "a"));
    rig.journal.full = true;
    rig.pass(6_000);
    assert_eq!(rig.counts("q").scheduled, 1);
    rig.journal.full = false;
    rig.pass(1_000);
    assert_eq!(rig.counts("q").active, 1);
}
