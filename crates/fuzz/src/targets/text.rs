//! Text formats.

use atom_xml::{XmlElement, XmlWriter, duration};
use broker::core::Timestamp;
use broker::rules::{CompiledRule, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression};
use servicebus::ConnectionString;

pub(super) const ATOM_WORDS: &[&[u8]] = &[
    b"<entry>",
    b"</entry>",
    b"<content>",
    b"<![CDATA[",
    b"<!DOCTYPE a [<!ENTITY a \"b\">]>",
    b"&a;",
    b"&#0;",
    b"&#x110000;",
    b"<!--",
    b"P10675199DT2H48M5.4775807S",
    b"PT1M",
    b"true",
    b" xmlns:i=\"",
    b" i:type=\"SqlFilter\"",
    b"<SqlExpression>",
];

pub(super) fn atom_entries() -> Vec<Vec<u8>> {
    let entry = |inner: &str| {
        format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">{inner}</content></entry>"
        )
        .into_bytes()
    };
    vec![
        entry(
            "<QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\"><LockDuration>PT1M</LockDuration><RequiresSession>true</RequiresSession></QueueDescription>",
        ),
        entry(
            "<TopicDescription><DefaultMessageTimeToLive>P14D</DefaultMessageTimeToLive><EnablePartitioning>false</EnablePartitioning></TopicDescription>",
        ),
        entry(
            "<SubscriptionDescription><MaxDeliveryCount>10</MaxDeliveryCount><DefaultRuleDescription><Filter xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\" i:type=\"SqlFilter\"><SqlExpression>1=1</SqlExpression></Filter><Name>$Default</Name></DefaultRuleDescription></SubscriptionDescription>",
        ),
        entry(
            "<RuleDescription><Filter xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\" i:type=\"CorrelationFilter\"><Label>a</Label></Filter></RuleDescription>",
        ),
    ]
}

/// What is read can be written, and is then read as the same.
pub(super) fn parse_atom(data: &[u8]) {
    let _ = broker::atom::parse_entry(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = (duration::parse(text), duration::parse_bounded(text));
    }
    let Ok(element) = XmlElement::parse(data) else { return };
    let mut writer = XmlWriter::default();
    writer.tree(&element);
    let _ = XmlElement::parse(writer.into_text().as_bytes());
}

pub(super) const RULE_WORDS: &[&[u8]] = &[
    b"sys.Label",
    b"user.",
    b" AND ",
    b" OR ",
    b"NOT ",
    b" IS NULL",
    b" IN (",
    b" LIKE '",
    b" ESCAPE '",
    b"EXISTS(",
    b"newid()",
    b"p('",
    b"@a",
    b"((((((((",
    b"0x",
    b"1e9",
    b"SET a = ",
    b"REMOVE a;",
    b"''",
    b"]]",
];

pub(super) fn rule_expressions() -> Vec<Vec<u8>> {
    vec![
        b"sys.Label LIKE '%bus%' ESCAPE '!' OR user.tag NOT IN ('queue', 'topic')".to_vec(),
        b"(a + 1) * -2 % 3 >= 0x1F AND NOT EXISTS([b c]) AND \"d\" IS NOT NULL AND p('e') <> @a".to_vec(),
        b"SET quantity = quantity / 2; REMOVE color; SET sys.Label = 'a' + newid()".to_vec(),
    ]
}

pub(super) fn compile_rule(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let sql = SqlExpression { expression: text.to_owned(), parameters: vec![("@a".to_owned(), PropertyValue::Int(1))] };
    let rules = [(RuleFilter::Sql(sql.clone()), None), (RuleFilter::True, Some(RuleAction(sql)))];
    for (filter, action) in rules {
        let rule = RuleDescription { name: "r".to_owned(), filter, action };
        let _ = CompiledRule::compile(rule, Timestamp(0));
    }
}

pub(super) const JSON_WORDS: &[&[u8]] = &[
    b"\"UserConfig\":",
    b"\"Namespaces\":[",
    b"\"Queues\":[",
    b"\"Topics\":[",
    b"\"Subscriptions\":[",
    b"\"Name\":\"",
    b"\"Properties\":{",
    b"[[[[[[[[",
    b"//",
    b"/*",
    b"\\u0000",
    b"\"MaxDeliveryCount\":",
    b"1e999",
    b"-0",
    b"\xef\xbb\xbf",
];

pub(super) fn emulator_configs() -> Vec<Vec<u8>> {
    vec![
        br#"{ "UserConfig": { "Namespaces": [ { "Name": "sbemulatorns", "Queues": [ { "Name": "orders", "Properties": { "LockDuration": "PT1M", "MaxDeliveryCount": 10, "RequiresSession": true } } ], "Topics": [ { "Name": "events", "Subscriptions": [ { "Name": "read-models", "Rules": [] } ] } ] } ], "Logging": { "Type": "File" } } }"#.to_vec(),
    ]
}

pub(super) fn parse_emulator_config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(problems) = broker::emulator_config::parse(text)
    {
        assert!(!problems.to_string().is_empty());
    }
}

pub(super) const CONNECTION_WORDS: &[&[u8]] = &[
    b"Endpoint=sb://",
    b";SharedAccessKeyName=",
    b";SharedAccessKey=",
    b";EntityPath=",
    b"UseDevelopmentEmulator=true",
    b"==",
    b";;",
    b":99999",
    b"[::1]",
];

pub(super) fn connection_strings() -> Vec<Vec<u8>> {
    let texts = [
        "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=a2V5;EntityPath=events",
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=key;UseDevelopmentEmulator=true;",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(super) fn parse_connection_string(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(parsed) = ConnectionString::parse(text) {
        // The host is logged: a key must not become part of it.
        assert!(!parsed.host.contains('='));
    }
}
