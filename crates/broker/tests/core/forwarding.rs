//! Forwarding of messages and dead letters: where they go, what goes with them, and that a crash changes nothing.

use amqp::message::{MessageWriter, Properties};
use broker::core::*;
use broker::journal::Journal;
use broker::rules::{RuleDescription, RuleFilter, SqlExpression};
use bytes::BytesMut;

use crate::fixture::*;

fn forwarding(fixture: &mut CoreFixture, path: &str, to: &str) -> QueueId {
    fixture.queue(path, |queue| queue.egress.forward_to = Some(to.to_owned()))
}

/// What a plain receiver gets.
fn bodies(fixture: &mut CoreFixture, queue: QueueId) -> Vec<String> {
    let link = fixture.receiver(queue, 100);
    let found = fixture.take_bodies(link);
    fixture.detach(link);
    fixture.advance(60_000);
    found
}

fn transfer_dead_letters(queue: QueueId) -> QueueId {
    QueueId::transfer_dead_letter(queue.entity)
}

/// Sets `ForwardTo` of an existing queue.
fn forward_queue(fixture: &mut CoreFixture, path: &str, to: Option<&str>) -> Result<(), Error> {
    let EntityDefinition::Queue(mut queue) = fixture.core.entity(path).unwrap().description.clone() else {
        panic!("{path} is a queue")
    };
    queue.egress.forward_to = to.map(str::to_owned);
    fixture.call(|core, call| core.update(call, path, EntityDefinition::Queue(queue)))
}

fn with_message_id(id: &str) -> IncomingMessage {
    let mut buffer = BytesMut::new();
    let properties = Properties { message_id: Some(id.into()), ..Properties::default() };
    MessageWriter::new(&mut buffer).properties(&properties).data(b"body");
    IncomingMessage { body: buffer.freeze(), message_id: Some(id.into()), ..IncomingMessage::default() }
}

#[test]
fn messages_are_forwarded_in_order() {
    let mut fixture = CoreFixture::new();
    let to = fixture.queue("to", |_| {});
    let from = forwarding(&mut fixture, "from", "sb://any.host:5672/TO");
    fixture.send_all(to.entity, &["0"]);
    fixture.try_send(from.entity, &["1", "2", "3"].map(message)).unwrap();
    assert_eq!(fixture.counts("from").transfer, 3);
    fixture.advance(0);
    assert_eq!(fixture.counts("from"), EntityCounts::default());
    let link = fixture.receiver(to, 10);
    let delivery = fixture.take_deliveries(link);
    assert_eq!(delivery.iter().map(|delivery| delivery.sequence.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(delivery.iter().map(|delivery| fixture.body(delivery)).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let envelope = StoredEnvelope::decode(&fixture.journal.read(delivery[3].location).unwrap().meta).unwrap();
    assert_eq!(envelope.sequence.0, 3, "the first sequence number is kept");
}

#[test]
fn a_subscription_forwards_its_copy_to_a_topic() {
    let mut fixture = CoreFixture::new();
    fixture.topic("all", |_| {});
    let (one, two) = (fixture.subscription("all", "one", |_| {}), fixture.subscription("all", "two", |_| {}));
    let topic = fixture.topic("t", |_| {});
    let own = fixture.subscription("t", "own", |_| {});
    fixture.subscription("t", "forwarding", |s| s.egress.forward_to = Some("all".into()));
    fixture.send_all(topic, &["a"]);
    fixture.advance(0);
    for queue in [own, one, two] {
        assert_eq!(bodies(&mut fixture, queue), ["a"]);
    }
    let references: Vec<i64> = fixture.journal.references().collect();
    assert_eq!(references, [3], "one body for three queues");
    assert_eq!(count_references(&fixture.core, &fixture.journal), [3]);
}

#[test]
fn a_fifth_hop_ends_in_the_transfer_dead_letter_queue() {
    let mut fixture = CoreFixture::new();
    let end = fixture.queue("q5", |_| {});
    for n in (0..5).rev() {
        forwarding(&mut fixture, &format!("q{n}"), &format!("q{}", n + 1));
    }
    let [first, second] = ["q0", "q1"].map(|path| fixture.core.resolve_receive_address(path).unwrap());
    fixture.send_all(first.entity, &["five hops"]);
    fixture.send_all(second.entity, &["four hops"]);
    fixture.advance(0);
    assert_eq!(bodies(&mut fixture, end), ["four hops"]);
    let last = fixture.core.resolve_receive_address("q4/$Transfer/$DeadLetterQueue").unwrap();
    let link = fixture.receiver(last, 10);
    let dead = fixture.receive_one(link);
    assert_eq!(dead.overrides.as_ref().unwrap().reason.as_deref(), Some("MaxTransferHopCountExceeded"));
    assert_eq!(fixture.counts("q4").transfer_dead_letter, 1);
}

/// Creates a subscription that forwards, with a filter that could end a loop.
fn filtered(fixture: &mut CoreFixture, topic: &str, to: &str) -> Result<EntityId, Error> {
    let mut subscription = SubscriptionDescription::default();
    subscription.egress.forward_to = Some(to.to_owned());
    let rule = RuleDescription {
        name: "any".into(),
        filter: RuleFilter::Sql(SqlExpression { expression: "stop IS NULL".into(), parameters: Vec::new() }),
        action: None,
    };
    let (path, description) = (format!("{topic}/Subscriptions/s"), EntityDefinition::Subscription(subscription));
    fixture.call(|core, call| core.create_with_rules(call, &path, description, vec![rule]))
}

#[test]
fn a_loop_through_filters_ends_by_itself() {
    let mut fixture = CoreFixture::new();
    let (a, b) = (fixture.topic("a", |_| {}), fixture.topic("b", |_| {}));
    let from_a = filtered(&mut fixture, "a", "b").unwrap();
    let from_b = filtered(&mut fixture, "b", "a").unwrap();
    fixture.send_all(a, &["round and round"]);
    fixture.advance(0);
    for path in ["a/Subscriptions/s", "b/Subscriptions/s"] {
        assert_eq!(fixture.counts(path).transfer, 0, "{path}");
    }
    assert_eq!(bodies(&mut fixture, QueueId::transfer_dead_letter(from_a)), ["round and round"]);
    assert!(from_a != from_b && a != b);
}

#[test]
fn a_loop_is_refused() {
    let mut fixture = CoreFixture::new();
    fixture.queue("a", |_| {});
    forwarding(&mut fixture, "b", "a");
    forwarding(&mut fixture, "c", "sb://any.host/B");
    fixture.topic("t", |_| {});
    fixture.subscription("t", "s", |s| s.egress.forward_to = Some("c".into()));
    for to in ["b", "B", "c", "t"] {
        let error = forward_queue(&mut fixture, "a", Some(to)).unwrap_err();
        assert_eq!((error.status(), error.condition()), (400, "amqp:not-allowed"), "{to}");
        assert!(error.to_string().starts_with("Auto forwarding from 'a' to "), "{error}");
    }
    // A queue that others forward to comes back as one that forwards.
    fixture.call(|core, call| core.delete(call, "a")).unwrap();
    let mut again = QueueDescription::default();
    again.egress.forward_to = Some("c".into());
    let again = EntityDefinition::Queue(again);
    assert!(fixture.call(|core, call| core.create(call, "a", again)).is_err());
    fixture.queue("other", |queue| queue.egress.forward_to = Some("b".into()));
}

/// SDKs send all properties back with an update.
#[test]
fn a_lost_destination_does_not_refuse_other_updates() {
    let mut fixture = CoreFixture::new();
    fixture.queue("a", |_| {});
    forwarding(&mut fixture, "b", "a");
    fixture.call(|core, call| core.delete(call, "a")).unwrap();
    let mut description = QueueDescription::default();
    description.egress.forward_to = Some("a".into());
    description.egress.lock_duration = std::time::Duration::from_secs(5);
    let update = EntityDefinition::Queue(description.clone());
    fixture.call(|core, call| core.update(call, "b", update)).unwrap();
    description.egress.forward_to = Some("missing".into());
    let update = EntityDefinition::Queue(description);
    assert!(fixture.call(|core, call| core.update(call, "b", update)).is_err());
}

/// The service accepts it: the SDK's own suite sets it.
#[test]
fn an_entity_that_forwards_to_itself_ends_after_four_hops() {
    let (mut fixture, queue) = CoreFixture::with_queue(|_| {});
    forward_queue(&mut fixture, "q", Some("q")).unwrap();
    let topic = fixture.topic("t", |_| {});
    let subscription = fixture.subscription("t", "s", |s| s.egress.forward_to = Some("t".into()));
    fixture.send_all(queue.entity, &["alone"]);
    fixture.send_all(topic, &["alone too"]);
    for _ in 0..5 {
        fixture.advance(0);
    }
    assert_eq!(bodies(&mut fixture, transfer_dead_letters(queue)), ["alone"]);
    assert_eq!(bodies(&mut fixture, transfer_dead_letters(subscription)), ["alone too"]);
}

/// While the disk is full, the broker tries again once a second, however many messages wait.
#[test]
fn a_journal_that_refuses_is_not_asked_all_the_time() {
    let mut fixture = CoreFixture::new();
    fixture.queue("to", |_| {});
    let from = fixture.queue("from", |_| {});
    for _ in 0..6 {
        fixture.try_send(from.entity, &vec![message("m"); 100]).unwrap();
    }
    forward_queue(&mut fixture, "from", Some("to")).unwrap();
    fixture.journal.full = true;
    fixture.call(|core, call| core.tick(call));
    assert_eq!(fixture.core.next_deadline(), Some(Timestamp(fixture.now.0 + 1_000)));
    fixture.journal.full = false;
    fixture.advance(1_000);
    for _ in 0..3 {
        fixture.call(|core, call| core.tick(call));
    }
    assert_eq!((fixture.counts("from").transfer, fixture.counts("to").active), (0, 600));
}

#[test]
fn an_entity_to_forward_to_must_exist() {
    let mut fixture = CoreFixture::new();
    fixture.topic("t", |_| {});
    fixture.subscription("t", "s", |_| {});
    fixture.queue("q", |_| {});
    for missing in ["nothing", "t/Subscriptions/s", ""] {
        let error = forward_queue(&mut fixture, "q", Some(missing)).unwrap_err();
        assert_eq!(error.status(), 400);
        assert!(error.to_string().starts_with("SubCode=40400. The auto forwarding destination entity"), "{error}");
    }
    let mut description = QueueDescription::default();
    description.egress.forward_dead_lettered_messages_to = Some("nothing".into());
    let create = EntityDefinition::Queue(description);
    assert!(fixture.call(|core, call| core.create(call, "new", create)).is_err());
}

#[test]
fn a_queue_that_forwards_has_no_receivers() {
    let mut fixture = CoreFixture::new();
    fixture.queue("to", |_| {});
    let from = fixture.queue("from", |_| {});
    let link = fixture.receiver(from, 1);
    forward_queue(&mut fixture, "from", Some("to")).unwrap();
    assert_eq!(fixture.events(link).detached.as_ref().unwrap().condition(), "amqp:not-allowed");
    let refused = fixture.try_attach(from, ReceiveMode::PeekLock, SessionFilter::None).unwrap_err();
    assert_eq!(refused.condition(), "amqp:not-allowed");
}

#[test]
fn forwarding_begins_and_ends_with_an_update() {
    let mut fixture = CoreFixture::new();
    let (from, to) = (fixture.queue("from", |_| {}), fixture.queue("to", |_| {}));
    fixture.send_all(from.entity, &["before"]);
    forward_queue(&mut fixture, "from", Some("to")).unwrap();
    fixture.advance(0);
    forward_queue(&mut fixture, "from", None).unwrap();
    fixture.send_all(from.entity, &["after"]);
    fixture.advance(0);
    assert_eq!((bodies(&mut fixture, to), bodies(&mut fixture, from)), (vec!["before".into()], vec!["after".into()]));
}

#[test]
fn dead_letters_are_forwarded_with_reason_and_source() {
    let mut fixture = CoreFixture::new();
    let to = fixture.queue("to", |_| {});
    let from = fixture.queue("from", |queue| {
        queue.egress.forward_dead_lettered_messages_to = Some("to".into());
        queue.egress.dead_lettering_on_message_expiration = true;
    });
    fixture.send(from.entity, with_time_to_live(1_000, "expires"));
    fixture.advance(1_500);
    fixture.send_all(from.entity, &["rejected"]);
    let link = fixture.receiver(from, 1);
    let delivery = fixture.receive_one(link);
    assert!(fixture.settle(from, &delivery, &dead_letter("bad")));
    fixture.advance(3_000);
    let link = fixture.receiver(to, 10);
    let received = fixture.take_deliveries(link);
    let overrides: Vec<_> = received.iter().map(|delivery| delivery.overrides.clone().unwrap()).collect();
    let reasons: Vec<_> = overrides.iter().map(|overrides| overrides.reason.as_deref().unwrap()).collect();
    assert_eq!(reasons, ["TTLExpiredException", "bad"], "neither expires again");
    assert!(overrides.iter().all(|overrides| overrides.dead_letter_source.as_deref() == Some("from")));
    fixture.restart();
    let link = fixture.receiver(to, 10);
    let again = fixture.take_deliveries(link);
    assert_eq!(again.iter().map(|delivery| delivery.overrides.clone().unwrap()).collect::<Vec<_>>(), overrides);
}

#[test]
fn a_refusal_of_the_destination_is_kept_with_its_reason() {
    let mut fixture = CoreFixture::new();
    fixture.session_queue("sessions");
    let gone = fixture.queue("gone", |_| {});
    let to_sessions = forwarding(&mut fixture, "to-sessions", "sessions");
    let to_gone = forwarding(&mut fixture, "to-gone", "gone");
    fixture.call(|core, call| core.delete(call, "gone")).unwrap();
    fixture.send_all(to_sessions.entity, &["no session"]);
    fixture.send_all(to_gone.entity, &["no queue"]);
    fixture.advance(0);
    for (queue, reason) in [(to_sessions, "amqp:not-allowed"), (to_gone, "amqp:not-found")] {
        let link = fixture.receiver(transfer_dead_letters(queue), 1);
        let dead = fixture.receive_one(link);
        assert_eq!(dead.overrides.unwrap().reason.as_deref(), Some(reason));
    }
    assert!(fixture.core.entity("gone").is_err() && gone.entity.0 > 0);
}

#[test]
fn the_destination_detects_duplicates() {
    let mut fixture = CoreFixture::new();
    let to = fixture.queue("to", |queue| queue.ingress.requires_duplicate_detection = true);
    let from = forwarding(&mut fixture, "from", "to");
    for _ in 0..2 {
        fixture.send(from.entity, with_message_id("m"));
        fixture.advance(0);
    }
    fixture.restart();
    fixture.send(from.entity, with_message_id("m"));
    fixture.advance(0);
    assert_eq!((fixture.counts("to").active, fixture.counts("from").transfer), (1, 0));
    assert_eq!(count_references(&fixture.core, &fixture.journal), fixture.journal.references().collect::<Vec<_>>());
    assert_eq!(to.subqueue, Subqueue::Main);
}

#[test]
fn sessions_go_with_the_message() {
    let mut fixture = CoreFixture::new();
    let to = fixture.session_queue("to");
    let from = fixture.queue("from", |queue| {
        queue.egress.requires_session = true;
        queue.egress.forward_to = Some("to".into());
    });
    for (session, body) in [("a", "1"), ("b", "2"), ("a", "3")] {
        fixture.send(from.entity, in_session(session, body));
    }
    fixture.advance(0);
    assert_eq!(fixture.counts("from"), EntityCounts::default());
    let link = fixture.named_session(to, "a").unwrap();
    fixture.credit(link, 10);
    assert_eq!(fixture.take_bodies(link), ["1", "3"]);
}

/// Whatever the journal holds when the process dies, each message is in exactly one place afterwards.
#[test]
fn a_crash_at_any_record_neither_loses_nor_doubles() {
    let mut fixture = CoreFixture::new();
    let dead = fixture.queue("dead", |_| {});
    let end = fixture.queue("end", |_| {});
    let middle = fixture.queue("middle", |queue| {
        queue.egress.forward_to = Some("end".into());
        queue.egress.forward_dead_lettered_messages_to = Some("dead".into());
    });
    fixture.topic("t", |_| {});
    for name in ["one", "two"] {
        fixture.subscription("t", name, |s| s.egress.forward_to = Some("middle".into()));
    }
    let before = fixture.journal.groups().len();
    let topic = fixture.core.resolve_send_address("t").unwrap();
    fixture.send_all(topic, &["a", "b"]);
    fixture.advance(0);
    let groups = fixture.journal.groups().to_vec();
    for cut in before + 1..=groups.len() {
        let sent = groups[before..cut].iter().flatten().filter(|entry| entry.body.is_some()).count() as u64;
        let mut crashed = CoreFixture::new();
        crashed.journal = fixture.journal.clone();
        crashed.core = recover(1, &[], &groups[..cut], crashed.now);
        crashed.advance(0);
        assert_eq!(crashed.counts("end").active, 2 * sent, "cut at {cut}");
        for path in ["middle", "t/Subscriptions/one", "t/Subscriptions/two", "dead"] {
            assert_eq!(crashed.counts(path), EntityCounts::default(), "{path}, cut at {cut}");
        }
    }
    assert!(middle != end && dead != end);
}
