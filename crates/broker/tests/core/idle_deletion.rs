//! `AutoDeleteOnIdle`.

use std::time::Duration;

use broker::core::*;
use broker::rules::{RuleDescription, RuleFilter};

use crate::fixture::*;

const MINUTE: u64 = 60_000;
const IDLE: Option<Duration> = Some(Duration::from_secs(600));

fn exists(fixture: &CoreFixture, path: &str) -> bool {
    fixture.core.entity(path).is_ok()
}

/// A fixture with the queue `q`, which is deleted after ten idle minutes.
fn idle_queue() -> (CoreFixture, QueueId) {
    CoreFixture::with_queue(|queue| queue.common.auto_delete_on_idle = IDLE)
}

#[test]
fn a_queue_that_nobody_uses_is_deleted_with_its_messages() {
    let (mut fixture, queue) = idle_queue();
    fixture.queue("other", |_| {});
    fixture.send_all(queue.entity, &["a", "b"]);
    fixture.advance(10 * MINUTE - 1);
    assert!(exists(&fixture, "q"), "a moment is left");
    fixture.advance(1);
    assert!(!exists(&fixture, "q"));
    assert!(exists(&fixture, "other"), "others are never deleted");
    // Nothing holds the bodies, and the deletion is in the journal.
    assert!(fixture.journal.references().all(|references| references == 0));
    fixture.restart();
    assert!(!exists(&fixture, "q"));
}

#[test]
fn every_use_of_a_queue_begins_the_time_again() {
    type Use = fn(&mut CoreFixture, QueueId);
    let uses: [(&str, Use); 5] = [
        ("a send", |fixture, queue| fixture.send_all(queue.entity, &["x"])),
        ("a peek", |fixture, queue| {
            fixture.call(|core, call| core.peek(call, queue, None, SequenceNumber(0), 1)).unwrap();
        }),
        ("a receiver that comes and goes", |fixture, queue| {
            let link = fixture.receiver(queue, 1);
            fixture.detach(link);
        }),
        ("an update", |fixture, _| {
            let mut description = QueueDescription::default();
            description.common.auto_delete_on_idle = IDLE;
            fixture.call(|core, call| core.update(call, "q", EntityDefinition::Queue(description))).unwrap();
        }),
        ("a read of its sessions' state", |fixture, queue| {
            // Refused, and a request all the same.
            let _ = fixture.call(|core, call| core.session_state(call, queue, "s"));
        }),
    ];
    for (name, use_queue) in uses {
        let (mut fixture, queue) = idle_queue();
        fixture.advance(9 * MINUTE);
        use_queue(&mut fixture, queue);
        fixture.advance(9 * MINUTE);
        assert!(exists(&fixture, "q"), "{name}");
        fixture.advance(MINUTE);
        assert!(!exists(&fixture, "q"), "{name}");
    }
}

#[test]
fn an_attached_receiver_or_a_scheduled_message_is_a_use() {
    let (mut fixture, queue) = idle_queue();
    let link = fixture.receiver(queue, 1);
    fixture.advance(60 * MINUTE);
    assert!(exists(&fixture, "q"), "a receiver waits");
    fixture.detach(link);
    let due_at = fixture.now.after(Duration::from_secs(3_600));
    fixture.send(queue.entity, IncomingMessage { scheduled_for: Some(due_at), ..message("later") });
    fixture.advance(59 * MINUTE);
    assert!(exists(&fixture, "q"), "a message is scheduled");
    fixture.advance(12 * MINUTE);
    assert!(!exists(&fixture, "q"));
}

#[test]
fn subscriptions_are_idle_without_receives_topics_without_both() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |topic| topic.common.auto_delete_on_idle = IDLE);
    fixture.subscription("t", "idle", |subscription| subscription.common.auto_delete_on_idle = IDLE);
    let used = fixture.subscription("t", "used", |_| {});
    for _ in 0..3 {
        fixture.send_all(topic, &["x"]);
        fixture.advance(4 * MINUTE);
    }
    assert!(!exists(&fixture, "t/Subscriptions/idle"), "messages to the topic do not count");
    assert!(exists(&fixture, "t"));
    fixture.call(|core, call| core.peek(call, used, None, SequenceNumber(0), 1)).unwrap();
    fixture.advance(9 * MINUTE);
    assert!(exists(&fixture, "t"), "a use of its subscription counts");
    let rule = RuleDescription { name: "r".into(), filter: RuleFilter::True, action: None };
    fixture.call(|core, call| core.add_rule(call, "t/Subscriptions/used", rule)).unwrap();
    fixture.advance(9 * MINUTE);
    assert!(exists(&fixture, "t"), "a change of a rule counts");
    fixture.advance(MINUTE);
    assert!(!exists(&fixture, "t") && !exists(&fixture, "t/Subscriptions/used"), "with its subscriptions");
}

#[test]
fn forwarding_is_a_use_of_both_ends() {
    let mut fixture = CoreFixture::new();
    fixture.queue("to", |queue| queue.common.auto_delete_on_idle = IDLE);
    let topic = fixture.topic("t", |_| {});
    fixture.subscription("t", "from", |subscription| {
        subscription.common.auto_delete_on_idle = IDLE;
        subscription.egress.forward_to = Some("to".into());
    });
    for _ in 0..4 {
        fixture.send_all(topic, &["x"]);
        fixture.advance(6 * MINUTE);
    }
    assert!(exists(&fixture, "t/Subscriptions/from"), "as if it had a receiver");
    assert!(exists(&fixture, "to"), "messages arrive");
    fixture.advance(5 * MINUTE);
    assert!(exists(&fixture, "t/Subscriptions/from") && !exists(&fixture, "to"), "nothing arrives any more");
}

#[test]
fn after_a_restart_the_idle_time_begins_again() {
    let (mut fixture, _) = idle_queue();
    fixture.advance(9 * MINUTE);
    fixture.restart();
    fixture.advance(9 * MINUTE);
    assert!(exists(&fixture, "q"), "uses before the stop are not stored");
    fixture.advance(MINUTE);
    assert!(!exists(&fixture, "q"));
}

#[test]
fn less_than_five_minutes_is_refused() {
    let mut description = QueueDescription::default();
    description.common.auto_delete_on_idle = Some(Duration::from_secs(299));
    let created = CoreFixture::new().call(|core, call| core.create(call, "q", EntityDefinition::Queue(description)));
    assert_eq!(created.unwrap_err().to_string(), "The value for 'AutoDeleteOnIdle' must be at least 5 minutes.");
}
