//! Bodies recorded from the official SDKs (`fixtures/`), and responses as the service formats them.

use std::time::Duration;

use super::*;
use crate::core::{
    CommonEntityProperties, EntityCounts, EntityDefinition, EntityStatus, QueueDescription, ReceiveProperties,
    SendProperties, SubscriptionDescription, Timestamp, TopicDescription,
};
use crate::rules::{
    CompiledRule, CorrelationFilter, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression,
};

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("fixtures/", $name, ".xml"))
    };
}

fn properties(body: &[u8]) -> EntityProperties {
    match parse_entry(body).expect("an SDK's body is understood") {
        EntryContent::Queue(submitted)
        | EntryContent::Topic(submitted)
        | EntryContent::Subscription { submitted, .. } => submitted.into_new(),
        EntryContent::Rule(rule) => panic!("a rule: {rule:?}"),
    }
}

fn rule(body: &[u8]) -> RuleDescription {
    match parse_entry(body).expect("an SDK's body is understood") {
        EntryContent::Rule(rule) => *rule,
        other => panic!("not a rule: {other:?}"),
    }
}

fn sender_rule() -> AuthorizationRule {
    AuthorizationRule {
        claim_type: Some("SharedAccessKey".into()),
        claim_value: Some("None".into()),
        rights: vec![AccessRight::Send, AccessRight::Listen],
        created_time: None,
        modified_time: None,
        key_name: Some("sender".into()),
        primary_key: Some("cHJpbWFyeQ==".into()),
        secondary_key: Some("c2Vjb25kYXJ5".into()),
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn context() -> RequestContext {
    RequestContext {
        base: "http://localhost:5300".into(),
        version: ApiVersion::default(),
        namespace: NamespaceInfo {
            name: "sbemulatorns".into(),
            created_at: Timestamp(1_000),
            modified_at: Timestamp(2_000),
            tier: crate::ServiceTier::Standard,
            max_message_size_in_kilobytes: 256,
        },
    }
}

fn entity(path: &str, properties: EntityProperties) -> AdminEntity {
    let address = match path.split_once("/Subscriptions/") {
        Some((topic, name)) => EntityAddress::Subscription { topic: topic.into(), name: name.into() },
        None => EntityAddress::Entity(path.into()),
    };
    let runtime = RuntimeProperties {
        created_at: Timestamp(1_000),
        updated_at: Timestamp(2_500),
        ..RuntimeProperties::default()
    };
    AdminEntity { address, properties, runtime }
}

#[test]
fn an_empty_description_is_all_defaults_of_the_service() {
    let EntityDefinition::Queue(queue) = properties(fixture!("python-queue-empty")).description else {
        panic!("a queue")
    };
    let common = CommonEntityProperties { enable_batched_operations: true, ..CommonEntityProperties::default() };
    let expected =
        QueueDescription { common, ingress: SendProperties::default(), egress: ReceiveProperties::default() };
    assert_eq!(queue, expected);
}

#[test]
fn a_queue_as_python_describes_it() {
    let read = properties(fixture!("python-queue-full"));
    let expected = QueueDescription {
        common: CommonEntityProperties {
            default_message_time_to_live: Some(secs(3 * 3600)),
            auto_delete_on_idle: Some(secs(600)),
            enable_batched_operations: false,
            user_metadata: Some("five < six & \"so on\"".into()),
            ..CommonEntityProperties::default()
        },
        ingress: SendProperties {
            max_size_in_megabytes: 2048,
            max_message_size_in_kilobytes: Some(2048),
            requires_duplicate_detection: true,
            duplicate_detection_window: secs(720),
            enable_partitioning: true,
        },
        egress: ReceiveProperties {
            lock_duration: secs(42),
            requires_session: true,
            max_delivery_count: 7,
            dead_lettering_on_message_expiration: true,
            forward_to: Some("sb://localhost:5300/elsewhere".into()),
            forward_dead_lettered_messages_to: Some("sb://localhost:5300/graveyard".into()),
        },
    };
    assert_eq!(read.description, EntityDefinition::Queue(expected));
    let authorization = AuthorizationRule {
        created_time: Some("2026-01-02T03:04:05.000Z".into()),
        modified_time: Some("2026-01-02T03:04:06.000Z".into()),
        ..sender_rule()
    };
    let passive = StoredOnlyProperties {
        enable_express: true,
        filtering_messages_before_publishing: false,
        authorization_rules: vec![authorization],
    };
    assert_eq!(read.passive, passive);
}

#[test]
fn a_queue_as_javascript_describes_it() {
    let read = properties(fixture!("javascript-queue-full"));
    let EntityDefinition::Queue(queue) = read.description else { panic!("a queue") };
    assert_eq!(queue.common.status, EntityStatus::ReceiveDisabled);
    assert_eq!((queue.egress.lock_duration, queue.egress.max_delivery_count), (secs(45), 8));
    assert_eq!(queue.common.default_message_time_to_live, Some(secs(2 * 86_400)));
    assert_eq!(read.passive.authorization_rules, [sender_rule()]);
    assert!(read.passive.enable_express);
}

#[test]
fn a_topic_as_either_describes_it() {
    for (body, window, days) in
        [(&fixture!("python-topic-full")[..], 300, 14), (&fixture!("javascript-topic-full")[..], 60, 2)]
    {
        let read = properties(body);
        let EntityDefinition::Topic(TopicDescription { common, ingress, support_ordering }) = read.description else {
            panic!("a topic")
        };
        assert!(support_ordering && ingress.requires_duplicate_detection && ingress.enable_partitioning);
        assert_eq!(ingress.duplicate_detection_window, secs(window));
        assert_eq!(common.default_message_time_to_live, Some(secs(days * 86_400)));
        assert_eq!(common.user_metadata.as_deref(), Some("m"));
    }
}

#[test]
fn a_subscription_with_its_default_rule() {
    let EntityDefinition::Subscription(python) = properties(fixture!("python-subscription-full")).description else {
        panic!("a subscription")
    };
    let expected = SubscriptionDescription {
        common: CommonEntityProperties {
            default_message_time_to_live: Some(secs(660)),
            auto_delete_on_idle: Some(secs(600)),
            enable_batched_operations: false,
            user_metadata: Some("u".into()),
            ..CommonEntityProperties::default()
        },
        egress: ReceiveProperties {
            lock_duration: secs(13),
            requires_session: true,
            max_delivery_count: 2000,
            dead_lettering_on_message_expiration: true,
            forward_to: Some("sb://localhost:5300/q".into()),
            forward_dead_lettered_messages_to: Some("sb://localhost:5300/g".into()),
        },
        dead_lettering_on_filter_evaluation_exceptions: false,
    };
    assert_eq!(python, expected);

    let EntryContent::Subscription { default_rule, .. } =
        parse_entry(fixture!("javascript-subscription-default-rule")).unwrap()
    else {
        panic!("a subscription")
    };
    let rule = default_rule.expect("a first rule");
    let filter = CorrelationFilter {
        label: Some("red".into()),
        properties: vec![
            ("size".into(), PropertyValue::Double(3.0)),
            ("when".into(), PropertyValue::DateTime("2026-01-02T03:04:05.000Z".into())),
            ("loud".into(), PropertyValue::Boolean(true)),
            ("tint".into(), PropertyValue::String("dark".into())),
        ],
        ..CorrelationFilter::default()
    };
    assert_eq!((rule.name.as_str(), &rule.filter), ("only-red", &RuleFilter::Correlation(filter)));
    assert_eq!(rule.action, Some(RuleAction(SqlExpression { expression: "SET a='b'".into(), parameters: vec![] })));
}

#[test]
fn rules_as_the_sdks_describe_them() {
    let correlation = rule(fixture!("python-rule-correlation"));
    let RuleFilter::Correlation(filter) = &correlation.filter else { panic!("a correlation") };
    assert_eq!(filter.reply_to_session_id.as_deref(), Some("rs"));
    let expected = [
        ("key_string", PropertyValue::String("str1".into())),
        ("key_int", PropertyValue::Int(2)),
        ("key_long", PropertyValue::Long(2_147_483_650)),
        ("key_bool", PropertyValue::Boolean(false)),
        ("key_double", PropertyValue::Double(1.5)),
        ("key_datetime", PropertyValue::DateTime("2020-07-05T11:12:13".into())),
        ("key_duration", PropertyValue::Duration("P1DT2H3M".into())),
    ];
    assert_eq!(filter.properties, expected.map(|(key, value)| (key.to_owned(), value)));
    let sql = SqlExpression {
        expression: "Priority = @p1".into(),
        parameters: vec![("@p1".into(), PropertyValue::String("str1".into()))],
    };
    assert_eq!(rule(fixture!("python-rule-sql")).filter, RuleFilter::Sql(sql));
    assert_eq!(rule(fixture!("python-rule-true")).filter, RuleFilter::True);
    assert_eq!(rule(fixture!("python-rule-false")).filter, RuleFilter::False);
    assert_eq!(rule(fixture!("javascript-rule-sql")).name, "r");
}

#[test]
fn a_round_trip_keeps_everything() {
    for (path, body) in [
        ("q", &fixture!("python-queue-full")[..]),
        ("a/b", &fixture!("javascript-queue-full")[..]),
        ("t", &fixture!("python-topic-full")[..]),
        ("t/Subscriptions/s", &fixture!("python-subscription-full")[..]),
    ] {
        let sent = properties(body);
        let answer = entity_entry(&context(), &entity(path, sent.clone()));
        let mut read = properties(answer.as_bytes());
        // The size that is shown covers all partitions.
        if let EntityDefinition::Queue(QueueDescription { ingress, .. })
        | EntityDefinition::Topic(TopicDescription { ingress, .. }) = &mut read.description
            && ingress.enable_partitioning
        {
            ingress.max_size_in_megabytes /= 16;
        }
        assert_eq!(read, sent, "{path}");
    }
    let subscription = EntityAddress::Subscription { topic: "t".into(), name: "s".into() };
    for body in [
        &fixture!("python-rule-correlation")[..],
        &fixture!("python-rule-sql")[..],
        &fixture!("python-rule-true")[..],
        &fixture!("python-rule-false")[..],
        &fixture!("javascript-rule-sql")[..],
    ] {
        let sent = rule(body);
        let answer = rule_entry(&context(), &subscription, &sent, Timestamp(0));
        assert_eq!(rule(answer.as_bytes()), sent);
    }
}

#[test]
fn an_entry_is_formatted_like_the_service() {
    let mut queue = entity("orders", properties(fixture!("python-queue-empty")));
    queue.runtime.counts =
        EntityCounts { active: 3, dead_letter: 1, scheduled: 2, bytes: 4096, ..EntityCounts::default() };
    let expected = concat!(
        r#"<entry xmlns="http://www.w3.org/2005/Atom"><id>http://localhost:5300/orders?api-version=2024-05</id>"#,
        r#"<title type="text">orders</title><published>1970-01-01T00:00:01.000Z</published>"#,
        r#"<updated>1970-01-01T00:00:02.500Z</updated><author><name>sbemulatorns</name></author>"#,
        r#"<link rel="self" href="http://localhost:5300/orders?api-version=2024-05"></link><content type="application/xml">"#,
        r#"<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" "#,
        r#"xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT1M</LockDuration>"#,
        r#"<MaxSizeInMegabytes>1024</MaxSizeInMegabytes><RequiresDuplicateDetection>false</RequiresDuplicateDetection>"#,
        r#"<RequiresSession>false</RequiresSession>"#,
        r#"<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"#,
        r#"<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>"#,
        r#"<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>"#,
        r#"<MaxDeliveryCount>10</MaxDeliveryCount><EnableBatchedOperations>true</EnableBatchedOperations>"#,
        r#"<SizeInBytes>4096</SizeInBytes><MessageCount>6</MessageCount><IsAnonymousAccessible>false</IsAnonymousAccessible>"#,
        r#"<AuthorizationRules></AuthorizationRules><Status>Active</Status><CreatedAt>1970-01-01T00:00:01.000Z</CreatedAt>"#,
        r#"<UpdatedAt>1970-01-01T00:00:02.500Z</UpdatedAt><AccessedAt>0001-01-01T00:00:00Z</AccessedAt>"#,
        r#"<SupportOrdering>true</SupportOrdering>"#,
        r#"<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">"#,
        r#"<d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount><d2p1:DeadLetterMessageCount>1</d2p1:DeadLetterMessageCount>"#,
        r#"<d2p1:ScheduledMessageCount>2</d2p1:ScheduledMessageCount><d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>"#,
        r#"<d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount></CountDetails>"#,
        r#"<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>"#,
        r#"<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><EnableExpress>false</EnableExpress>"#,
        r#"<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes></QueueDescription></content></entry>"#,
    );
    assert_eq!(entity_entry(&context(), &queue), expected);
}

#[test]
fn an_older_client_gets_no_newer_properties() {
    let queue = entity("orders", properties(fixture!("python-queue-full")));
    let older = RequestContext { version: ApiVersion::parse("2017-04").unwrap(), ..context() };
    assert!(!entity_entry(&older, &queue).contains("MaxMessageSizeInKilobytes"));
    assert!(entity_entry(&context(), &queue).contains("<MaxMessageSizeInKilobytes>2048<"));
    for text in ["", "latest", "2021-5", "2021-050", "21-05-01"] {
        assert_eq!(ApiVersion::parse(text), None, "{text}");
    }
}

#[test]
fn a_feed_links_its_next_page_only_if_there_is_one() {
    let queues = [entity("a", properties(fixture!("python-queue-empty")))];
    let page = FeedPage { title: "Queues", path: "$Resources/queues", skip: 2, top: 1, more: true };
    let text = page.of_entities(&context(), &queues);
    assert!(text.contains(
        r#"<link rel="next" href="http://localhost:5300/$Resources/queues?$skip=3&amp;$top=1&amp;api-version=2024-05">"#
    ));
    assert!(text.contains(r#"<updated>1970-01-01T00:00:02.500Z</updated>"#));
    let last = FeedPage { more: false, ..page };
    assert!(!last.of_entities(&context(), &queues).contains("next"));
    let empty = last.of_entities(&context(), &[]);
    assert!(empty.ends_with("</link></feed>") && empty.contains("<updated>1970-01-01T00:00:02.000Z</updated>"));
}

#[test]
fn the_default_rule_is_formatted_like_the_service() {
    let subscription = EntityAddress::Subscription { topic: "t".into(), name: "s".into() };
    let page = FeedPage { title: "Rules", path: "t/Subscriptions/s/Rules", skip: 0, top: 100, more: false };
    let rule = CompiledRule::compile(RuleDescription::default_rule(), Timestamp(0)).unwrap();
    let text = page.of_rules(&context(), &subscription, &[rule.into()]);
    assert!(text.contains(concat!(
        r#"<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter>"#,
        r#"<Action i:type="EmptyRuleAction"></Action><CreatedAt>1970-01-01T00:00:00.000Z</CreatedAt><Name>$Default</Name>"#,
    )));
    assert!(text.contains("<id>http://localhost:5300/t/Subscriptions/s/Rules/$Default?api-version=2024-05</id>"));
}

#[test]
fn an_update_replaces_all_but_immutable_properties() {
    let EntryContent::Queue(update) = parse_entry(fixture!("python-queue-empty")).unwrap() else { panic!("a queue") };
    let current = properties(fixture!("python-queue-full")).description;
    let EntityDefinition::Queue(queue) = update.into_update(&current).description else { panic!("a queue") };
    assert!(
        queue.egress.requires_session
            && queue.ingress.requires_duplicate_detection
            && queue.ingress.enable_partitioning
    );
    assert_eq!((queue.egress.max_delivery_count, queue.egress.forward_to), (10, None));
}

#[test]
fn errors_name_the_invalid_element() {
    let queue =
        |inside: &str| format!("<entry><content><QueueDescription>{inside}</QueueDescription></content></entry>");
    let rules = "<AuthorizationRule/>".repeat(13);
    let cases = [
        ("<entry".to_owned(), "body is not well-formed XML"),
        ("<entry/>".to_owned(), "body is not an Atom entry with a description"),
        (
            "<feed><content><QueueDescription/></content></feed>".to_owned(),
            "body is not an Atom entry with a description",
        ),
        ("<entry><content><RelayDescription/></content></entry>".to_owned(), "unknown description `RelayDescription`"),
        (
            queue("<LockDuration>one minute</LockDuration>"),
            "`LockDuration` is `one minute`: expected an ISO 8601 duration, such as PT30S, PT1M or P1DT12H",
        ),
        (
            queue("<LockDuration/>"),
            "`LockDuration` is ``: expected an ISO 8601 duration, such as PT30S, PT1M or P1DT12H",
        ),
        (queue("<RequiresSession>perhaps</RequiresSession>"), "`RequiresSession` is `perhaps`: expected true or false"),
        (
            queue("<MaxDeliveryCount>-1</MaxDeliveryCount>"),
            "`MaxDeliveryCount` is `-1`: expected an integer in the property's range",
        ),
        (
            queue("<MaxDeliveryCount>70000</MaxDeliveryCount>"),
            "`MaxDeliveryCount` is `70000`: expected an integer in the property's range",
        ),
        (
            queue("<Status>Asleep</Status>"),
            "`Status` is `Asleep`: expected Active, Disabled, SendDisabled or ReceiveDisabled",
        ),
        (
            queue(
                "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>All</AccessRights></Rights></AuthorizationRule></AuthorizationRules>",
            ),
            "`AccessRights` is `All`: expected Manage, Send or Listen",
        ),
        (
            queue(&format!("<AuthorizationRules>{rules}</AuthorizationRules>")),
            "`AuthorizationRules` has 13 rules: at most 12 are allowed",
        ),
        (
            "<entry><content><RuleDescription><Filter type='LuaFilter'/></RuleDescription></content></entry>"
                .to_owned(),
            "`Filter` is `LuaFilter`: expected TrueFilter, FalseFilter, SqlFilter or CorrelationFilter",
        ),
        (
            "<entry><content><RuleDescription><Filter type='SqlFilter'/></RuleDescription></content></entry>"
                .to_owned(),
            "`SqlExpression` is missing",
        ),
    ];
    for (body, message) in cases {
        assert_eq!(parse_entry(body.as_bytes()).unwrap_err().to_string(), message, "{body}");
    }
}

#[test]
fn unknown_and_read_only_elements_are_ignored() {
    let body = b"<entry><id>x</id><content><QueueDescription><Shiny>1</Shiny><MessageCount>nine</MessageCount>
        <CreatedAt>yesterday</CreatedAt></QueueDescription></content></entry>";
    assert_eq!(properties(body), properties(fixture!("python-queue-empty")));
}

#[test]
fn keys_stay_out_of_logs() {
    let shown = format!("{:?}", properties(fixture!("python-queue-full")));
    assert!(shown.contains("sender") && !shown.contains("cHJpbWFyeQ") && !shown.contains("c2Vjb25kYXJ5"));
}
