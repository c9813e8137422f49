use broker::core::*;

use crate::fixture::*;

#[test]
fn invalid_messages_are_refused_with_their_condition() {
    let mut fixture = CoreFixture::new();
    let plain = fixture.queue("plain", |_| {}).entity;
    let sessions = fixture.session_queue("sessions").entity;
    let disabled = fixture.queue("disabled", |queue| queue.common.status = EntityStatus::SendDisabled).entity;
    let small = fixture.queue("small", |queue| queue.ingress.max_message_size_in_kilobytes = Some(2)).entity;
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
            IncomingMessage { partition_key: key(&long), ..message("") },
            Some("com.microsoft:argument-error"),
        ),
        (
            "key is not the session",
            plain,
            IncomingMessage { partition_key: key("k"), ..in_session("s", "") },
            Some("amqp:not-allowed"),
        ),
        ("key is the session", plain, IncomingMessage { partition_key: key("s"), ..in_session("s", "") }, None),
        ("disabled", disabled, message(""), Some("com.microsoft:entity-disabled")),
        ("missing", EntityId(99), message(""), Some("amqp:not-found")),
    ];
    for (name, entity, message, condition) in cases {
        let refused = fixture.try_send(entity, &[message]).err();
        assert_eq!(refused.map(|error| error.condition()), condition, "{name}");
    }
}

#[test]
fn a_batch_is_stored_completely_or_not_at_all() {
    let mut fixture = CoreFixture::new();
    let queue = fixture.session_queue("q").entity;
    let batch = [in_session("a", "1"), message("no session"), in_session("a", "2")];
    assert!(fixture.try_send(queue, &batch).is_err());
    assert_eq!(fixture.counts("q").active, 0);
    let before = fixture.journal.groups().len();
    let numbers = fixture.try_send(queue, &[in_session("a", "1"), in_session("a", "2")]).unwrap();
    assert_eq!(numbers, [Some(SequenceNumber(1)), Some(SequenceNumber(2))]);
    assert_eq!(fixture.journal.groups().len(), before + 1, "one group: a crash keeps all of it or none");
}

#[test]
fn a_refused_append_stores_nothing_and_remembers_no_id() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.requires_duplicate_detection = true);
    fixture.journal.full = true;
    let refused = fixture.try_send(queue.entity, &[with_id("a")]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
    fixture.journal.full = false;
    assert_eq!(
        fixture.send(queue.entity, with_id("a")),
        SequenceNumber(1),
        "not taken for a duplicate, no number lost"
    );
}

#[test]
fn deliveries_continue_while_the_journal_is_full() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    fixture.send_all(queue.entity, &["a", "b"]);
    fixture.journal.full = true;
    let link = fixture.receiver(queue, 1);
    assert_eq!(fixture.take_bodies(link), ["a"]);
    let deleting = fixture.receive_and_delete_link(queue, 1);
    assert!(fixture.take_deliveries(deleting).is_empty(), "what cannot be deleted is not sent either");
    fixture.journal.full = false;
    fixture.advance(1_000);
    assert_eq!(fixture.take_bodies(deleting), ["b"], "and goes on when there is room");
}

#[test]
fn a_full_entity_refuses_until_messages_are_consumed() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.max_size_in_megabytes = 1);
    let kilobyte = "x".repeat(1024);
    let batch: Vec<_> = (0..862).map(|_| message(&kilobyte)).collect();
    fixture.try_send(queue.entity, &batch).unwrap();
    let refused = fixture.try_send(queue.entity, &[message(&kilobyte)]).unwrap_err();
    assert_eq!((refused.condition(), refused.status()), ("amqp:resource-limit-exceeded", 403));
    let link = fixture.receive_and_delete_link(queue, 1);
    assert_eq!(fixture.take_deliveries(link).len(), 1);
    fixture.send(queue.entity, message(&kilobyte));
}

#[test]
fn empty_messages_count_against_the_quota() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| queue.ingress.max_size_in_megabytes = 1);
    let batch: Vec<_> = (0..1000).map(|_| message("")).collect();
    let accepted = std::iter::from_fn(|| fixture.try_send(queue.entity, &batch).ok()).take(20).count();
    assert_eq!(accepted, 5, "a message counts as 192 bytes and its own");
    let later =
        fixture.try_send(queue.entity, &[IncomingMessage { scheduled_for: Some(Timestamp(u64::MAX)), ..message("") }]);
    assert!(later.is_ok());
    fixture.restart();
    assert_eq!(fixture.counts("q").bytes, 5_001 * 192, "also after a restart, and for scheduled messages");
}

#[test]
fn session_states_count_against_the_quota() {
    let (mut fixture, queue) = CoreFixture::with_queue(|queue| {
        queue.egress.requires_session = true;
        queue.ingress.max_size_in_megabytes = 1;
    });
    let state = || Some(bytes::Bytes::from(vec![7; 1024]));
    let set = |fixture: &mut CoreFixture, number: u32| {
        let session = format!("s-{number}");
        let link = fixture.named_session(queue, &session).unwrap();
        let result = fixture.call(|core, call| core.set_session_state(call, queue, &session, state()));
        fixture.detach(link);
        result
    };
    let accepted = (0..2_000).take_while(|number| set(&mut fixture, *number).is_ok()).count();
    assert_eq!(accepted, 862);
    let refused = set(&mut fixture, 2_000).unwrap_err();
    assert_eq!(refused.condition(), "amqp:resource-limit-exceeded");
}

#[test]
fn a_message_without_session_id_is_dead_lettered_if_required() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let plain = fixture.subscription("t", "plain", |_| {});
    let sessions = fixture.subscription("t", "sessions", |subscription| subscription.egress.requires_session = true);
    fixture.try_send(topic, &[message("1"), in_session("s", "2"), message("3")]).unwrap();
    fixture.restart();
    let link = fixture.receiver(plain, 9);
    assert_eq!(fixture.take_bodies(link), ["1", "2", "3"]);
    let link = fixture.next_session(sessions);
    fixture.credit(link, 9);
    assert_eq!(fixture.take_bodies(link), ["2"]);
    let dead_letter_link = fixture.receiver(dead_letters(sessions), 9);
    let dead = fixture.take_deliveries(dead_letter_link);
    assert_eq!(dead.iter().map(|delivery| fixture.body(delivery)).collect::<Vec<_>>(), ["1", "3"]);
    assert!(dead[0].overrides.as_ref().unwrap().reason.is_some());
}
