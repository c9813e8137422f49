//! Messages per second that the core routes to a topic with 1,000 rules, by kind of rule. No disk, no network.

use std::time::Instant;

use amqp::codec::encode;
use amqp::message::{MessageWriter, Properties};
use broker::core::*;
use broker::journal::VolatileJournal;
use broker::rules::{CorrelationFilter, RuleDescription, RuleFilter, SqlExpression};
use bytes::BytesMut;

const RULES: usize = 1_000;
const MESSAGES: usize = 5_000;

fn sql(text: String) -> RuleFilter {
    RuleFilter::Sql(SqlExpression { expression: text, parameters: Vec::new() })
}

fn correlation(number: usize) -> RuleFilter {
    let label = Some(format!("label-{number}"));
    RuleFilter::Correlation(CorrelationFilter { label, ..CorrelationFilter::default() })
}

fn message(number: usize) -> IncomingMessage {
    let mut buffer = BytesMut::new();
    let (id, label) = (format!("m{number}"), format!("label-{}", number % RULES));
    MessageWriter::new(&mut buffer)
        .properties(&Properties {
            message_id: Some(id.as_str().into()),
            subject: Some(&label),
            ..Properties::default()
        })
        .application_properties(|map| {
            encode::string(map.string("color"), "red");
            encode::long(map.string("number"), (number % RULES) as i64);
            encode::string(map.string("tenant"), "contoso");
        })
        .data(&[0; 1024]);
    IncomingMessage { body: buffer.freeze(), ..IncomingMessage::default() }
}

/// Creates `subscriptions`, spreads the rules over them, and sends.
fn measure(name: &str, subscriptions: usize, rules: usize, filter: impl Fn(usize) -> RuleFilter) {
    let mut core = Core::new(BrokerLimits::default(), [1; 32]);
    let mut journal = VolatileJournal::default();
    let mut effects = Vec::new();
    let mut call = CallContext { now: Timestamp(1_800_000_000_000), journal: &mut journal, effects: &mut effects };
    let mut description = TopicDescription::default();
    description.ingress.max_size_in_megabytes = 5_120;
    let topic = core.create(&mut call, "t", EntityDefinition::Topic(description)).expect("a topic");
    for number in 0..subscriptions {
        let path = format!("t/Subscriptions/s{number}");
        let description = EntityDefinition::Subscription(SubscriptionDescription::default());
        let own = (0..rules).filter(|rule| rule % subscriptions == number);
        let own = own.map(|rule| RuleDescription { name: format!("r{rule}"), filter: filter(rule), action: None });
        core.create_with_rules(&mut call, &path, description, own.collect()).expect("a subscription");
    }
    let messages: Vec<_> = (0..MESSAGES).map(message).collect();
    // The first message builds the index.
    core.send(&mut call, topic, &messages[..1]).expect("sent");
    let started = Instant::now();
    for message in &messages {
        core.send(&mut call, topic, std::slice::from_ref(message)).expect("sent");
    }
    let each = started.elapsed() / MESSAGES as u32;
    let stored: u64 = core.subscriptions("t").expect("a topic").map(|view| view.counts.active).sum();
    println!("{name:<50} {each:>12.1?} per message, {stored} stored");
}

fn main() {
    measure("no rules, 1 subscription", 1, 0, correlation);
    measure("1,000 correlation filters, 1 subscription", 1, RULES, correlation);
    measure("1,000 correlation filters, 1,000 subscriptions", RULES, RULES, correlation);
    measure("1,000 SQL `number = n AND color = 'red'`", 1, RULES, |n| sql(format!("number = {n} AND color = 'red'")));
    measure("1,000 SQL, 1,000 subscriptions", RULES, RULES, |n| sql(format!("number = {n} AND color = 'red'")));
    measure("1,000 SQL `number + 0 = n` (each evaluated)", 1, RULES, |n| sql(format!("number + 0 = {n}")));
    measure("1,000 SQL `sys.Label LIKE '%-n'` (each evaluated)", 1, RULES, |n| sql(format!("sys.Label LIKE '%-{n}'")));
}
