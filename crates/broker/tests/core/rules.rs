//! Rules: which subscription gets a message, and what survives a restart.

use amqp::Message;
use amqp::codec::encode;
use amqp::message::{MessageWriter, Properties};
use broker::core::*;
use broker::journal::Journal;
use broker::rules::*;
use bytes::BytesMut;

use crate::fixture::*;

fn colored(color: &str, session: Option<&str>) -> IncomingMessage {
    let mut buffer = BytesMut::new();
    MessageWriter::new(&mut buffer)
        .properties(&Properties { message_id: Some("m".into()), group_id: session, ..Properties::default() })
        .application_properties(|map| {
            encode::string(map.string("color"), color);
            encode::int(map.string("quantity"), 10);
        })
        .data(color.as_bytes());
    IncomingMessage { body: buffer.freeze(), session_id: session.map(Into::into), ..IncomingMessage::default() }
}

fn rule(name: &str, filter: &str, action: Option<&str>) -> RuleDescription {
    let sql = |text: &str| SqlExpression { expression: text.into(), parameters: Vec::new() };
    RuleDescription {
        name: name.into(),
        filter: RuleFilter::Sql(sql(filter)),
        action: action.map(|action| RuleAction(sql(action))),
    }
}

fn label(name: &str, label: &str) -> RuleDescription {
    let filter = CorrelationFilter { label: Some(label.into()), ..CorrelationFilter::default() };
    RuleDescription { name: name.into(), filter: RuleFilter::Correlation(filter), action: None }
}

const S: &str = "t/Subscriptions/s";

fn add(fixture: &mut CoreFixture, rule: RuleDescription) -> Result<(), Error> {
    fixture.call(|core, call| core.add_rule(call, S, rule)).map(drop)
}

fn remove(fixture: &mut CoreFixture, name: &str) -> Result<(), Error> {
    fixture.call(|core, call| core.remove_rule(call, S, name))
}

/// A topic with the subscription `s`, which has only these rules.
fn with_rules(rules: Vec<RuleDescription>) -> (CoreFixture, EntityId, QueueId) {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let description = SubscriptionDescription {
        dead_lettering_on_filter_evaluation_exceptions: true,
        ..SubscriptionDescription::default()
    };
    let create = EntityDefinition::Subscription(description);
    let id = fixture.call(|core, call| core.create_with_rules(call, S, create, rules)).unwrap();
    (fixture, topic, QueueId::main(id))
}

fn names(fixture: &CoreFixture) -> Vec<String> {
    fixture.core.rules(S).unwrap().map(|rule| rule.description.name.clone()).collect()
}

/// The property `n` of the messages that a new receiver gets.
fn receive(fixture: &mut CoreFixture, queue: QueueId, property: &str) -> Vec<String> {
    let link = fixture.receiver(queue, 100);
    let deliveries = fixture.take_deliveries(link);
    let read = |delivery: &MessageDelivery| {
        let message = Message::parse(fixture.journal.read(delivery.location).unwrap().body).unwrap();
        message.application_property(property).map_or("none".to_owned(), |value| match value.as_integer() {
            Some(number) => number.to_string(),
            None => value.as_text().unwrap_or_default().to_owned(),
        })
    };
    let found = deliveries.iter().map(read).collect();
    for delivery in &deliveries {
        fixture.complete(queue, delivery);
    }
    fixture.detach(link);
    found
}

#[test]
fn only_selected_messages_reach_the_subscription() {
    let (mut fixture, topic, queue) = with_rules(vec![rule("red", "color = 'red'", None)]);
    for color in ["red", "blue", "red"] {
        fixture.send(topic, colored(color, None));
    }
    assert_eq!(receive(&mut fixture, queue, "color"), ["red", "red"]);
}

#[test]
fn a_new_subscription_takes_every_message() {
    let (mut fixture, topic, queue) = with_rules(Vec::new());
    assert_eq!(names(&fixture), ["$Default"]);
    fixture.send(topic, colored("red", None));
    remove(&mut fixture, "$default").unwrap();
    fixture.send(topic, colored("blue", None));
    assert_eq!(receive(&mut fixture, queue, "color"), ["red"], "without rules it takes nothing");
}

#[test]
fn rules_apply_from_when_they_are_added() {
    let (mut fixture, topic, queue) = with_rules(vec![rule("red", "color = 'red'", None)]);
    fixture.send(topic, colored("blue", None));
    add(&mut fixture, rule("blue", "color = 'blue'", None)).unwrap();
    fixture.send(topic, colored("blue", None));
    let replaced = rule("RED", "color = 'green'", None);
    fixture.call(|core, call| core.update_rule(call, S, replaced)).unwrap();
    fixture.send(topic, colored("red", None));
    assert_eq!(receive(&mut fixture, queue, "color"), ["blue"]);
    assert_eq!(names(&fixture), ["blue", "red"], "a name keeps its case");
}

#[test]
fn every_matching_action_makes_its_own_copy() {
    let (mut fixture, topic, queue) = with_rules(vec![
        rule("plain1", "color = 'red'", None),
        rule("plain2", "quantity = 10", None),
        rule("double", "color = 'red'", Some("SET quantity = quantity * 2")),
        rule("half", "quantity > 5", Some("SET quantity = quantity / 2")),
        rule("never", "color = 'blue'", Some("SET quantity = 0")),
    ]);
    let sequence = fixture.send(topic, colored("red", None));
    let next = fixture.send(topic, colored("red", None));
    assert_eq!(next.counter(), sequence.counter() + 3, "copies have sequence numbers of their own");
    assert_eq!(receive(&mut fixture, queue, "quantity"), ["10", "20", "5", "10", "20", "5"]);
    assert_eq!(count_references(&fixture.core, &fixture.journal).iter().sum::<i64>(), 0, "all bodies are freed");
}

#[test]
fn copies_survive_a_restart() {
    let (mut fixture, topic, queue) = with_rules(vec![rule("half", "quantity = 10", Some("SET quantity = 5"))]);
    fixture.send(topic, colored("red", None));
    fixture.restart();
    fixture.send(topic, colored("red", None));
    assert_eq!(receive(&mut fixture, queue, "RuleName"), ["half", "half"]);
    let references: Vec<_> = fixture.journal.references().collect();
    assert_eq!(references, count_references(&fixture.core, &fixture.journal));
}

#[test]
fn rules_survive_a_restart_and_a_snapshot() {
    let (mut fixture, topic, queue) = with_rules(vec![rule("red", "color = 'red'", None)]);
    add(&mut fixture, label("l", "x")).unwrap();
    add(&mut fixture, rule("gone", "color = 'blue'", None)).unwrap();
    remove(&mut fixture, "gone").unwrap();
    let mut snapshot = Vec::new();
    let mut cursor = SnapshotCursor::new(fixture.now);
    while fixture.core.write_snapshot(&mut cursor, 1, |record| snapshot.push(record.to_vec())) {}
    for (records, from) in [(Vec::new(), 0), (snapshot, fixture.journal.groups().len())] {
        fixture.recover(&records, from);
        assert_eq!(names(&fixture), ["l", "red"]);
        let filters = fixture.core.entity("t").unwrap().filters;
        assert_eq!(filters, FilterCounts { sql: 1, correlation: 1 });
    }
    fixture.send(topic, colored("blue", None));
    fixture.send(topic, colored("red", None));
    assert_eq!(receive(&mut fixture, queue, "color"), ["red"]);
}

#[test]
fn a_scheduled_message_meets_the_rules_of_its_time() {
    let (mut fixture, topic, queue) = with_rules(vec![rule("blue", "color = 'blue'", None)]);
    let due = Timestamp(fixture.now.0 + 1_000);
    fixture.send(topic, IncomingMessage { scheduled_for: Some(due), ..colored("red", None) });
    add(&mut fixture, rule("red", "color = 'red'", Some("SET quantity = 1"))).unwrap();
    add(&mut fixture, rule("plain", "color = 'red'", None)).unwrap();
    fixture.advance(1_000);
    fixture.restart();
    let next = fixture.send(topic, colored("green", None));
    assert_eq!(next.counter(), 4, "after the scheduled, the activated and the copy");
    assert_eq!(receive(&mut fixture, queue, "quantity"), ["10", "1"]);
}

#[test]
fn an_action_can_choose_the_session() {
    let mut fixture = CoreFixture::new();
    let topic = fixture.topic("t", |_| {});
    let queue = fixture.subscription("t", "s", |subscription| subscription.egress.requires_session = true);
    add(&mut fixture, rule("by-color", "EXISTS(color)", Some("SET sys.SessionId = color"))).unwrap();
    remove(&mut fixture, "$Default").unwrap();
    fixture.send(topic, colored("red", Some("old")));
    let link = fixture.next_session(queue);
    assert_eq!(fixture.events(link).attached.as_ref().unwrap().0, "red");
}

#[test]
fn a_failing_filter_dead_letters_if_the_subscription_says_so() {
    let failing = rule("broken", "quantity / 0 = 1", None);
    let (mut fixture, topic, queue) = with_rules(vec![failing, rule("red", "color = 'red'", None)]);
    fixture.subscription("t", "drops", |subscription| {
        subscription.dead_lettering_on_filter_evaluation_exceptions = false;
    });
    let failing = rule("broken", "quantity / 0 = 1", None);
    fixture.call(|core, call| core.add_rule(call, "t/Subscriptions/drops", failing)).unwrap();
    fixture.call(|core, call| core.remove_rule(call, "t/Subscriptions/drops", "$Default")).unwrap();
    fixture.send(topic, colored("blue", None));
    fixture.send(topic, colored("red", None));
    assert_eq!(receive(&mut fixture, queue, "color"), ["red"]);
    let dead = fixture.receiver(dead_letters(queue), 9);
    let deliveries = fixture.take_deliveries(dead);
    let overrides = deliveries[0].overrides.as_ref().unwrap();
    assert_eq!(deliveries.len(), 2);
    assert_eq!(overrides.reason.as_deref(), Some("FilterEvaluationException"));
    assert_eq!(overrides.description.as_deref(), Some("Rule 'broken': an integer is divided by zero"));
    assert_eq!(fixture.counts("t/Subscriptions/drops"), EntityCounts::default());
}

#[test]
fn rules_that_cannot_be_are_refused() {
    let (mut fixture, ..) = with_rules(Vec::new());
    add(&mut fixture, label("l", "x")).unwrap();
    let refusals = [
        (add(&mut fixture, label("L", "y")), "com.microsoft:entity-already-exists", 409),
        (add(&mut fixture, rule("r", "a", None)), "com.microsoft:argument-error", 400),
        (add(&mut fixture, rule("a/b", "a = 1", None)), "com.microsoft:argument-error", 400),
        (remove(&mut fixture, "none"), "amqp:not-found", 404),
        (fixture.call(|core, call| core.update_rule(call, S, label("none", "x"))).map(drop), "amqp:not-found", 404),
        (fixture.call(|core, call| core.add_rule(call, "t", label("x", "x"))).map(drop), "amqp:not-allowed", 400),
    ];
    for (result, condition, status) in refusals {
        let error = result.unwrap_err();
        assert_eq!((error.condition(), error.status()), (condition, status), "{error}");
    }
    let queue = EntityDefinition::Queue(QueueDescription::default());
    assert!(fixture.call(|core, call| core.create_with_rules(call, "q", queue, vec![label("l", "x")])).is_err());
}

#[test]
fn a_topic_has_at_most_2000_sql_filters() {
    let (mut fixture, ..) = with_rules(Vec::new());
    fixture.subscription("t", "other", |_| {});
    // The default rules of the two subscriptions count too.
    for number in 0..1_998 {
        let path = if number % 2 == 0 { S } else { "t/Subscriptions/other" };
        let rule = rule(&format!("r{number}"), "a = 1", None);
        fixture.call(|core, call| core.add_rule(call, path, rule)).unwrap();
    }
    let error = add(&mut fixture, rule("more", "a = 1", None)).unwrap_err();
    assert_eq!((error.condition(), error.status()), ("amqp:resource-limit-exceeded", 403));
    add(&mut fixture, label("l", "x")).unwrap();
    fixture.call(|core, call| core.delete(call, "t/Subscriptions/other")).unwrap();
    add(&mut fixture, rule("more", "a = 1", None)).unwrap();
}
