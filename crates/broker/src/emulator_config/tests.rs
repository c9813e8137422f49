//! Valid files, and the exact text of every problem.

use std::time::Duration;

use super::*;
use crate::core::EntityStatus;
use crate::rules::{CorrelationFilter, PropertyValue, RuleAction, RuleFilter, SqlExpression};

fn problems(text: &str) -> Vec<String> {
    parse(text).expect_err("a mistake is made").iter().map(ToString::to_string).collect()
}

/// A file with these queues and topics, which start at lines 4 and 7.
fn file(queues: &str, topics: &str) -> String {
    format!(
        "{{ \"UserConfig\": {{ \"Namespaces\": [ {{\n\"Name\": \"sbemulatorns\",\n\"Queues\": [\n{queues}\n],\n\"Topics\": [\n{topics}\n]\n}} ], \
         \"Logging\": {{ \"Type\": \"File\" }} }} }}"
    )
}

#[test]
fn a_file_as_the_emulator_takes_it() {
    let text = r#"{
      // Comments of either kind, and trailing commas.
      "UserConfig": {
        "Namespaces": [ {
          "Name": "sbemulatorns",
          "Queues": [ {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3, /* not ten */
              "RequiresDuplicateDetection": true,
              "RequiresSession": true,
            }
          } ],
          "Topics": [ {
            "Name": "topic.1",
            "Properties": { "EnablePartitioning": true, "Status": "SendDisabled", "UserMetadata": null },
            "Subscriptions": [
              { "Name": "subscription.1", "Properties": { "MaxDeliveryCount": 2000, "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S" },
                "Rules": [ { "Name": "all", "Properties": { "FilterType": "Sql", "SqlFilter": { "SqlExpression": "1 = 1" } } } ] },
              { "Name": "subscription.2", "Properties": null, "Rules": [] },
            ],
          } ],
        } ],
        "Logging": { "Type": "Console", "Anything": ["goes"] },
      },
    }"#;
    let config = parse(&format!("\u{feff}{text}")).unwrap();
    assert_eq!(config.namespace, "sbemulatorns");
    let paths: Vec<_> = config.entities.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        ["queue.1", "topic.1", "topic.1/Subscriptions/subscription.1", "topic.1/Subscriptions/subscription.2"]
    );
    let mut first = queue();
    first.common.default_message_time_to_live = Some(Duration::from_secs(3600));
    first.ingress.duplicate_detection_window = Duration::from_secs(20);
    first.ingress.requires_duplicate_detection = true;
    first.egress.dead_lettering_on_message_expiration = true;
    first.egress.max_delivery_count = 3;
    first.egress.requires_session = true;
    assert_eq!(config.entities[0].1, EntityDefinition::Queue(first));
    let mut second = topic();
    second.ingress.enable_partitioning = true;
    second.common.status = EntityStatus::SendDisabled;
    assert_eq!(config.entities[1].1, EntityDefinition::Topic(second));
    let mut third = subscription();
    third.egress.max_delivery_count = 2000;
    assert_eq!(config.entities[2].1, EntityDefinition::Subscription(third));
    assert_eq!(config.entities[3].1, EntityDefinition::Subscription(subscription()));
}

#[test]
fn the_same_file_can_be_written_in_yaml() {
    let text = r#"
# The keys are those of the official emulator.
UserConfig:
  Namespaces:
    - Name: sbemulatorns
      Queues:
        - Name: queue.1
          Properties: { LockDuration: PT30S, MaxDeliveryCount: 3, RequiresSession: true, ForwardTo: "" }
        - Name: '2'
      Topics:
        - Name: topic.1
          Properties: ~
          Subscriptions:
            - Name: "é"
              Rules:
                - Name: red
                  Properties:
                    FilterType: Sql
                    SqlFilter: { SqlExpression: "color = 'red'" }
"#;
    let json = r#"{ "UserConfig": { "Namespaces": [ { "Name": "sbemulatorns",
        "Queues": [
            { "Name": "queue.1", "Properties": { "LockDuration": "PT30S", "MaxDeliveryCount": 3, "RequiresSession": true, "ForwardTo": "" } },
            { "Name": "2" } ],
        "Topics": [ { "Name": "topic.1", "Subscriptions": [ { "Name": "é", "Rules": [
            { "Name": "red", "Properties": { "FilterType": "Sql", "SqlFilter": { "SqlExpression": "color = 'red'" } } } ] } ] } ] } ] } }"#;
    assert_eq!(parse(text).unwrap(), parse(json).unwrap());
}

#[test]
fn a_problem_in_yaml_has_its_position() {
    let file = |queue: &str| format!("UserConfig:\n  Namespaces:\n  - Name: ns\n    Queues:\n    - {queue}\n");
    let cases = [
        (file("Name: 5"), format!("5:13: {Q}.Name is 5: expected a string")),
        (file("{Name: q, Properties: {LockDuration: PT6M}}"), {
            format!("5:44: {Q}.Properties.LockDuration is PT6M: must be between 5 seconds and 5 minutes")
        }),
        (file("{Name: é, Nam: x}"), format!("5:17: {Q}.Nam is unknown: did you mean `Name`?")),
        (file("{Name: q, Name: r}"), format!("5:17: {Q}.Name is given twice")),
        ("a: [".to_owned(), "1:5: not YAML: while parsing a node, did not find expected node content".to_owned()),
        ("a: &x 1\nb: *x".to_owned(), "2:4: aliases are not supported: write the value itself".to_owned()),
        ("a: !t 1".to_owned(), "1:4: tags are not supported: write the value itself".to_owned()),
        ("a: 1\n---\nb: 2".to_owned(), "a second YAML document starts here".to_owned()),
        ("# nothing".to_owned(), "1:1: the file is empty".to_owned()),
        ("- ".repeat(100), "nests deeper than 32 levels".to_owned()),
    ];
    for (text, expected) in cases {
        let found = problems(&text);
        assert!(found.last().is_some_and(|line| line.ends_with(&expected)), "{text:?}: {found:?}");
    }
}

#[test]
fn every_property_of_every_kind_can_be_set() {
    for (kind, names) in [("queue", &QUEUE[..]), ("topic", &TOPIC[..]), ("subscription", &SUBSCRIPTION[..])] {
        for name in names {
            let mut description = match kind {
                "queue" => EntityDefinition::Queue(queue()),
                "topic" => EntityDefinition::Topic(topic()),
                _ => EntityDefinition::Subscription(subscription()),
            };
            let before = description.clone();
            let set = ["true", "false", "77", "\"PT7M\"", "\"Disabled\""].iter().any(|value| {
                let parsed = jsonc_parser::parse_to_ast(value, &Default::default(), &SYNTAX).unwrap();
                properties::set(&mut description, name, &parsed.value.unwrap()).is_ok() && description != before
            });
            assert!(set, "{name} of a {kind}");
        }
    }
}

const Q: &str = "UserConfig.Namespaces[0].Queues[0]";
const T: &str = "UserConfig.Namespaces[0].Topics[0]";

fn queue_problem(properties: &str) -> String {
    let found = problems(&file(&format!("{{ \"Name\": \"q\", \"Properties\": {{ {properties} }} }}"), ""));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn a_property_problem_has_its_position_value_and_valid_values() {
    let duration = "expected an ISO 8601 duration, such as \"PT30S\", \"PT1M\" or \"P1DT12H\"";
    let cases = [
        ("\"LockDuration\": \"PT6M\"", "LockDuration is \"PT6M\": must be between 5 seconds and 5 minutes"),
        ("\"LockDuration\": \"a minute\"", &format!("LockDuration is \"a minute\": {duration}")),
        ("\"LockDuration\": 60", &format!("LockDuration is 60: {duration}")),
        ("\"DefaultMessageTimeToLive\": \"PT0S\"", "DefaultMessageTimeToLive is \"PT0S\": must be at least 1 second"),
        (
            "\"DuplicateDetectionHistoryTimeWindow\": \"P8D\"",
            "DuplicateDetectionHistoryTimeWindow is \"P8D\": must be between 20 seconds and 7 days",
        ),
        ("\"AutoDeleteOnIdle\": \"PT1M\"", "AutoDeleteOnIdle is \"PT1M\": must be at least 5 minutes"),
        ("\"MaxDeliveryCount\": 0", "MaxDeliveryCount is 0: must be between 1 and 2000"),
        ("\"MaxDeliveryCount\": 99999", "MaxDeliveryCount is 99999: must be between 1 and 2000"),
        ("\"MaxDeliveryCount\": -1", "MaxDeliveryCount is -1: expected an integer"),
        ("\"MaxDeliveryCount\": 3.5", "MaxDeliveryCount is 3.5: expected an integer"),
        ("\"MaxDeliveryCount\": \"ten\"", "MaxDeliveryCount is \"ten\": expected an integer"),
        ("\"MaxSizeInMegabytes\": 0", "MaxSizeInMegabytes is 0: must be between 1 and 81920"),
        ("\"RequiresSession\": \"true\"", "RequiresSession is \"true\": expected true or false"),
        ("\"UserMetadata\": {}", "UserMetadata is an object: expected a string"),
        (
            "\"Status\": \"Asleep\"",
            "Status is \"Asleep\": expected \"Active\", \"Disabled\", \"SendDisabled\" or \"ReceiveDisabled\"",
        ),
    ];
    for (properties, expected) in cases {
        let column = 32 + properties.find(": ").unwrap() + 2;
        assert_eq!(queue_problem(properties), format!("4:{column}: {Q}.Properties.{expected}"));
    }
    assert_eq!(
        queue_problem("\"lockduration\": 1"),
        format!("4:32: {Q}.Properties.lockduration is unknown: did you mean `LockDuration`?")
    );
    assert_eq!(
        queue_problem("\"LockDuratoin\": 1"),
        format!("4:32: {Q}.Properties.LockDuratoin is unknown: did you mean `LockDuration`?")
    );
    assert_eq!(
        queue_problem("\"RequiresSession\": true, \"RequiresSession\": true"),
        format!("4:57: {Q}.Properties.RequiresSession is given twice")
    );
}

#[test]
fn a_structure_problem_has_its_position() {
    let cases = [
        (file("{ \"Properties\": {} }", ""), format!("4:1: {Q}.Name is missing")),
        (file("{ \"Name\": 5 }", ""), format!("4:11: {Q}.Name is 5: expected a string")),
        (
            file("{ \"Name\": \"a b\" }", ""),
            format!("4:11: {Q}.Name is \"a b\": may hold letters, digits, '.', '-', '_', '~' and '/'"),
        ),
        (file("\"q\"", ""), format!("4:1: {Q} is \"q\": expected an object")),
        (
            file("{ \"Name\": \"q\", \"Properties\": [] }", ""),
            format!("4:30: {Q}.Properties is an array: expected an object"),
        ),
        (
            file("{ \"Name\": \"q\", \"Subscriptions\": [] }", ""),
            format!("4:16: {Q}.Subscriptions is unknown: expected one of Name, Properties"),
        ),
        (
            file("{ \"Name\": \"q\" }, { \"Name\": \"Q\" }", ""),
            "4:28: UserConfig.Namespaces[0].Queues[1].Name is \"Q\": the name is already used (names are case-insensitive)"
                .to_owned(),
        ),
        (
            file("{ \"Name\": \"x\" }", "{ \"Name\": \"x\" }"),
            format!("7:11: {T}.Name is \"x\": the name is already used (names are case-insensitive)"),
        ),
        (
            file("", "{ \"Name\": \"t\", \"Properties\": { \"LockDuration\": \"PT1M\" } }"),
            format!("7:32: {T}.Properties.LockDuration is unknown: expected one of {}", TOPIC.join(", ")),
        ),
        (
            file("", "{ \"Name\": \"t\", \"Subscriptions\": [ { \"Name\": \"s\" }, { \"Name\": \"S\" } ] }"),
            format!("7:62: {T}.Subscriptions[1].Name is \"S\": the name is already used (names are case-insensitive)"),
        ),
        (
            file("", "{ \"Name\": \"t\", \"Subscriptions\": [ { \"Name\": \"a/b\" } ] }"),
            format!("7:45: {T}.Subscriptions[0].Name is \"a/b\": may hold letters, digits, '.', '-', '_' and '$'"),
        ),
        ("{}".to_owned(), "1:1: UserConfig is missing".to_owned()),
        ("[]".to_owned(), "1:1: the file is an array: expected an object".to_owned()),
        (
            "{ \"UserConfig\": { \"Namespaces\": [] } }".to_owned(),
            "1:19: UserConfig.Namespaces has 0 namespaces: expected exactly one".to_owned(),
        ),
        (
            "{ \"UserConfig\": { \"Namespaces\": [ { \"Name\": \"a\", \"Queues\": {} } ] } }".to_owned(),
            "1:60: UserConfig.Namespaces[0].Queues is an object: expected an array".to_owned(),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problems(&text), [expected], "{text}");
    }
}

#[test]
fn rules_are_read_and_replace_the_default_rule() {
    let config = parse(&file(
        "",
        r#"{ "Name": "t", "Subscriptions": [ { "Name": "s", "Rules": [
            { "Name": "red", "Properties": { "FilterType": "Correlation", "CorrelationFilter": {
                "Label": "red", "ContentType": null, "Properties": { "n": 1, "x": 1.5, "b": true, "s": "t" } } } },
            { "Name": "half", "Properties": { "FilterType": "Sql", "SqlFilter": { "SqlExpression": "a > 1" },
                "Action": { "SqlExpression": "SET a = a / 2" } } }
        ] }, { "Name": "plain" } ] }"#,
    ))
    .unwrap();
    let properties = [
        ("n", PropertyValue::Long(1)),
        ("x", PropertyValue::Double(1.5)),
        ("b", PropertyValue::Boolean(true)),
        ("s", PropertyValue::String("t".into())),
    ];
    let correlation = CorrelationFilter {
        label: Some("red".into()),
        properties: properties.map(|(name, value)| (name.to_owned(), value)).into(),
        ..CorrelationFilter::default()
    };
    let sql = |text: &str| SqlExpression { expression: text.into(), parameters: Vec::new() };
    let expected = vec![
        RuleDescription { name: "red".into(), filter: RuleFilter::Correlation(correlation), action: None },
        RuleDescription {
            name: "half".into(),
            filter: RuleFilter::Sql(sql("a > 1")),
            action: Some(RuleAction(sql("SET a = a / 2"))),
        },
    ];
    assert_eq!(config.rules, HashMap::from([("t/Subscriptions/s".to_owned(), expected)]));
}

#[test]
fn an_invalid_rule_is_refused() {
    let with = |rule: &str| {
        problems(&file(
            "",
            &format!("{{ \"Name\": \"t\", \"Subscriptions\": [ {{ \"Name\": \"s\", \"Rules\": [\n{rule}\n] }} ] }}"),
        ))
    };
    let rule = format!("{T}.Subscriptions[0].Rules[0]");
    let cases = [
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Sql\", \"SqlFilter\": { \"SqlExpression\": \"a = \" } } }",
            format!(
                "8:1: {rule} cannot be created: the filter has an error at character 5: the expression ends here: expected a value"
            ),
        ),
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Correlation\", \"CorrelationFilter\": { \"Properties\": {} } } }",
            format!("8:1: {rule} cannot be created: a correlation filter needs at least one property"),
        ),
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Sql\", \"SqlFilter\": { \"SqlExpression\": \"1=1\" }, \"Action\": { \"SqlExpression\": \"SET 1\" } } }",
            format!(
                "8:1: {rule} cannot be created: the action has an error at character 5: expected the name of a property"
            ),
        ),
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Lua\" } }",
            format!("8:46: {rule}.Properties.FilterType is \"Lua\": expected \"Sql\" or \"Correlation\""),
        ),
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Sql\" } }",
            format!("8:30: {rule}.Properties.SqlFilter is missing"),
        ),
        (
            "{ \"Name\": \"r\", \"Properties\": { \"FilterType\": \"Correlation\", \"CorrelationFilter\": { \"Label\": 5 } } }",
            format!("8:93: {rule}.Properties.CorrelationFilter.Label is 5: expected a string"),
        ),
        ("{ \"Name\": \"r\" }", format!("8:1: {rule}.Properties is missing")),
    ];
    for (text, expected) in cases {
        assert_eq!(with(text), [expected], "{text}");
    }
}

#[test]
fn a_syntax_problem_has_its_position() {
    let cases = [
        ("", "1:1: the file is empty"),
        ("// only a comment\n", "1:1: the file is empty"),
        ("{\n  \"UserConfig\": {\n", "2:17: unterminated object"),
        ("{ \"a\": 1 \"b\": 2 }", "1:9: expected comma"),
        ("{ 'a': 1 }", "1:3: single-quoted strings are not allowed"),
        ("{ a: 1 }", "1:3: expected string for object property"),
        ("{} {}", "1:4: text cannot contain more than one JSON value"),
        ("{ \"ä\": x }", "1:8: unexpected word"),
        ("/* never ends", "1:1: unterminated comment block"),
    ];
    for (text, expected) in cases {
        assert_eq!(problems(text), [expected], "{text:?}");
    }
    assert_eq!(problems(&"[".repeat(100_000)).len(), 1, "and nothing breaks");
}

#[test]
fn all_problems_of_a_file_are_reported_in_order() {
    let text = file(
        "{ \"Name\": \"a\", \"Properties\": { \"LockDuration\": \"PT1S\", \"MaxDeliveryCount\": 0, \"Shiny\": true } },\n{ \"Nam\": \"b\" }",
        "{ \"Name\": \"a b\", \"Subscriptions\": [ { \"Name\": \"\" }, { \"Name\": \"s\", \"Properties\": { \"LockDuration\": \"x\" } } ] }",
    );
    let found = problems(&text);
    let places: Vec<_> = found.iter().map(|line| line.split(" is ").next().unwrap()).collect();
    let topic = "UserConfig.Namespaces[0].Topics[0]";
    let expected = [
        format!("4:48: {Q}.Properties.LockDuration"),
        format!("4:76: {Q}.Properties.MaxDeliveryCount"),
        format!("4:79: {Q}.Properties.Shiny"),
        "5:1: UserConfig.Namespaces[0].Queues[1].Name".to_owned(),
        "5:3: UserConfig.Namespaces[0].Queues[1].Nam".to_owned(),
        format!("8:11: {topic}.Name"),
        format!("8:47: {topic}.Subscriptions[0].Name"),
        format!("8:100: {topic}.Subscriptions[1].Properties.LockDuration"),
    ];
    assert_eq!(places, expected, "{found:#?}");
    let shown = parse(&text).unwrap_err().to_string();
    assert_eq!(shown.lines().count(), 8, "a line each");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\[\\]{},:\"a-c0-9é \n/*-]{0,40}") {
        let _ = parse(&text);
    }
}
