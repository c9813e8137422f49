use broker::core::*;

use crate::rig::*;

#[test]
fn a_message_that_breaks_a_rule_is_refused_with_its_condition() {
    let mut rig = Rig::new();
    let plain = rig.queue("plain", |_| {}).entity;
    let sessions = rig.session_queue("sessions").entity;
    let disabled = rig.queue("disabled", |queue| queue.common.status = Status::SendDisabled).entity;
    let small = rig.queue("small", |queue| queue.inlet.max_message_size_in_kilobytes = Some(2)).entity;
    let long = "x".repeat(129);
    let key = |key: &str| Some(key.into());
    let large = |bytes: usize| message(&"x".repeat(bytes));
    let cases = [
        ("plain", plain, message(""), None),
        ("at the limit", plain, large(1024), None),
        ("over the limit", plain, large(1025), Some("amqp:link:message-size-exceeded")),
        ("the entity's own limit", small, large(2048), None),
        ("over its own limit", small, large(2049), Some("amqp:link:message-size-exceeded")),
        ("no session id", sessions, message(""), Some("amqp:not-allowed")),
        ("an empty session id", sessions, in_session("", ""), None),
        ("long message id", plain, with_id(&long), Some("com.microsoft:argument-error")),
        ("long session id", sessions, in_session(&long, ""), Some("com.microsoft:argument-error")),
        (
            "long key",
            plain,
            Incoming { partition_key: key(&long), ..message("") },
            Some("com.microsoft:argument-error"),
        ),
        (
            "key is not the session",
            plain,
            Incoming { partition_key: key("k"), ..in_session("s", "") },
            Some("amqp:not-allowed"),
        ),
        ("key is the session", plain, Incoming { partition_key: key("s"), ..in_session("s", "") }, None),
        ("disabled", disabled, message(""), Some("com.microsoft:entity-disabled")),
        ("missing", EntityId(99), message(""), Some("amqp:not-found")),
    ];
    for (name, entity, message, condition) in cases {
        let refused = rig.try_send(entity, &[message]).err();
        assert_eq!(refused.map(|error| error.condition()), condition, "{name}");
    }
}

#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut rig = Rig::new();
    let queue = rig.session_queue("q").entity;
    let batch = [in_session("a", "1"), message("no session"), in_session("a", "2")];
    assert!(rig.try_send(queue, &batch).is_err());
    assert_eq!(rig.counts("q").active, 0);
    let before = rig.journal.groups().len();
    let numbers = rig.try_send(queue, &[in_session("a", "1"), in_session("a", "2")]).unwrap();
    assert_eq!(numbers, [Some(SequenceNumber(1)), Some(SequenceNumber(2))]);
    assert_eq!(rig.journal.groups().len(), before + 1, "one group: a crash keeps all of it or none");
}

#[test]
fn when_the_journal_refuses_nothing_is_stored_and_nothing_remembered() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.inlet.requires_duplicate_detection = true);
    rig.journal.full = true;
    let refused = rig.try_send(queue.entity, &[with_id("a")]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
    rig.journal.full = false;
    assert_eq!(rig.send(queue.entity, with_id("a")), SequenceNumber(1), "not taken for a duplicate, no number lost");
}

#[test]
fn receivers_keep_getting_what_is_there_while_the_journal_is_full() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |_| {});
    rig.send_all(queue.entity, &["a", "b"]);
    rig.journal.full = true;
    let link = rig.receiver(queue, 1);
    assert_eq!(rig.bodies(link), ["a"]);
    let deleting = rig.deleting_receiver(queue, 1);
    assert!(rig.received(deleting).is_empty(), "what cannot be deleted is not sent either");
    rig.journal.full = false;
    rig.pass(1_000);
    assert_eq!(rig.bodies(deleting), ["b"], "and goes on when there is room");
}

#[test]
fn an_entity_that_is_full_refuses_until_there_is_room() {
    let mut rig = Rig::new();
    let queue = rig.queue("q", |queue| queue.inlet.max_size_in_megabytes = 1);
    let batch: Vec<_> = (0..1024).map(|_| message(&"x".repeat(1024))).collect();
    rig.try_send(queue.entity, &batch).unwrap();
    let refused = rig.try_send(queue.entity, &[message("one more")]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
    let link = rig.deleting_receiver(queue, 1);
    assert_eq!(rig.received(link).len(), 1);
    rig.send(queue.entity, message("one more"));
}

#[test]
fn a_message_without_session_ends_among_the_dead_letters_of_a_subscription_that_needs_one() {
    let mut rig = Rig::new();
    let topic = rig.topic("t", |_| {});
    let plain = rig.subscription("t", "plain", |_| {});
    let sessions = rig.subscription("t", "sessions", |subscription| subscription.outlet.requires_session = true);
    rig.try_send(topic, &[message("1"), in_session("s", "2"), message("3")]).unwrap();
    rig.restart();
    let link = rig.receiver(plain, 9);
    assert_eq!(rig.bodies(link), ["1", "2", "3"]);
    let link = rig.next_session(sessions);
    rig.credit(link, 9);
    assert_eq!(rig.bodies(link), ["2"]);
    let buried = rig.receiver(dead_letters(sessions), 9);
    let dead = rig.received(buried);
    assert_eq!(dead.iter().map(|delivery| rig.body(delivery)).collect::<Vec<_>>(), ["1", "3"]);
    assert!(dead[0].alterations.as_ref().unwrap().reason.is_some());
}
