//! One table per production of the documented grammar, on a message with properties of every type.

use std::sync::Arc;

use amqp::Message;
use amqp::codec::encode;
use amqp::message::{Header, MessageWriter, Properties, annotation};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::*;
use crate::core::{EntityId, Timestamp};

const NOW: Timestamp = Timestamp(1_800_000_000_000);
const ID: Uuid = Uuid::from_u128(7);

fn sample() -> Bytes {
    let mut buffer = BytesMut::new();
    MessageWriter::new(&mut buffer)
        .header(&Header { ttl: Some(60_000), ..Header::default() })
        .message_annotations(|map| {
            map.put_string(annotation::PARTITION_KEY, "key");
        })
        .properties(&Properties {
            message_id: Some("m1".into()),
            correlation_id: Some("c1".into()),
            to: Some("store"),
            subject: Some("service bus"),
            reply_to: Some("back"),
            content_type: Some("text/plain"),
            group_id: Some("s1"),
            reply_to_group_id: Some("rs"),
            ..Properties::default()
        })
        .application_properties(|map| {
            encode::string(map.string("Color"), "red");
            encode::string(map.string("HR-EmployeeID"), "e]7");
            encode::string(map.string("Contoso & Northwind"), "quoted");
            encode::string(map.string("and"), "a keyword");
            encode::int(map.string("quantity"), 10);
            encode::long(map.string("large"), 1 << 40);
            encode::ubyte(map.string("small"), 7);
            encode::double(map.string("price"), 2.5);
            encode::double(map.string("whole"), 10.0);
            encode::boolean(map.string("loud"), true);
            encode::uuid(map.string("guid"), ID);
            encode::timestamp(map.string("when"), 1_767_323_045_000);
            encode::null(map.string("nothing"));
            encode::binary(map.string("bytes"), b"x");
        })
        .data(b"body");
    buffer.freeze()
}

fn sql(expression: &str) -> SqlExpression {
    SqlExpression { expression: expression.to_owned(), parameters: Vec::new() }
}

fn compile(filter: RuleFilter, action: Option<&str>) -> Result<CompiledRule, RuleError> {
    let action = action.map(|action| RuleAction(sql(action)));
    CompiledRule::compile(RuleDescription { name: "r".into(), filter, action }, NOW)
}

fn evaluate(rule: &CompiledRule, message: Bytes) -> Result<bool, String> {
    let message = Message::parse(message).unwrap();
    let context = MessageContext::new(&message, NOW, Some(60_000));
    rule.matches(&context, &mut || ID).map_err(|error| error.to_string())
}

fn filter(expression: &str) -> CompiledRule {
    compile(RuleFilter::Sql(sql(expression)), None).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// Every expression with whether it selects the sample.
fn check(cases: &[(&str, bool)]) {
    for (expression, expected) in cases {
        assert_eq!(evaluate(&filter(expression), sample()), Ok(*expected), "{expression}");
    }
}

fn refuse(cases: &[(&str, usize, &str)]) {
    for (expression, position, text) in cases {
        let error = compile(RuleFilter::Sql(sql(expression)), None).unwrap_err();
        let expected = RuleError::Syntax { part: "filter", position: *position, text: (*text).to_owned() };
        assert_eq!(error, expected, "{expression}");
    }
}

#[test]
fn comparisons_follow_the_types() {
    check(&[
        ("color = 'red'", true),
        ("color = 'Red'", false),
        ("color <> 'blue'", true),
        ("color != 'red'", false),
        ("color > 'blue'", true),
        ("quantity = 10", true),
        ("quantity > 9.5", true),
        ("quantity >= 10", true),
        ("quantity < 10", false),
        ("quantity <= 10", true),
        ("10 = quantity", true),
        ("whole = 10", true),
        ("quantity = whole", true),
        ("large = 1099511627776", true),
        ("small = 0x07", true),
        ("price = 2.5", true),
        ("price = 25E-1", true),
        ("price = .25e1", true),
        ("quantity = -10", false),
        ("loud = TRUE", true),
        ("loud <> false", true),
        ("loud > FALSE", false),
        ("quantity = '10'", false),
        ("quantity <> '10'", false),
        ("bytes = 'x'", false),
        ("1 = 1", true),
        ("1 = 0", false),
    ]);
}

#[test]
fn logic_has_three_values() {
    // `missing = 1` is unknown.
    check(&[
        ("NOT color = 'blue'", true),
        ("NOT NOT color = 'red'", true),
        ("NOT missing = 1", false),
        ("missing = 1 OR color = 'red'", true),
        ("missing = 1 OR color = 'blue'", false),
        ("NOT (missing = 1 OR color = 'blue')", false),
        ("missing = 1 AND color = 'red'", false),
        ("NOT (missing = 1 AND color = 'blue')", true),
        ("NOT (missing = 1 AND color = 'red')", false),
        ("color = 'blue' AND color = 'red' OR quantity = 10", true),
        ("color = 'blue' AND (color = 'red' OR quantity = 10)", false),
        ("NOT color = 'blue' AND quantity = 10", true),
        ("missing <> 1", false),
        ("missing = NULL", false),
    ]);
}

#[test]
fn null_and_existence_are_told_apart() {
    check(&[
        ("missing IS NULL", true),
        ("missing IS NOT NULL", false),
        ("nothing IS NULL", true),
        ("color IS NOT NULL", true),
        ("EXISTS(color)", true),
        ("EXISTS(nothing)", true),
        ("EXISTS(missing)", false),
        ("NOT EXISTS(missing)", true),
        ("exists ( user.COLOR )", true),
        ("EXISTS(sys.CorrelationId)", true),
        ("sys.LockToken IS NULL", true),
    ]);
}

#[test]
fn lists_and_patterns_select() {
    check(&[
        ("color IN ('blue', 'red')", true),
        ("color IN ('blue')", false),
        ("color NOT IN ('blue')", true),
        ("quantity IN (1, 5 + 5)", true),
        ("missing IN (1)", false),
        ("missing NOT IN (1)", false),
        ("color NOT IN ('blue', missing)", false),
        ("sys.Label LIKE '%bus%'", true),
        ("color LIKE 'r_d'", true),
        ("color NOT LIKE 'b%'", true),
        ("missing LIKE '%'", false),
        ("missing NOT LIKE '%'", false),
        ("'ABC%' LIKE 'ABC\\%' ESCAPE '\\'", true),
        ("'ABCD' LIKE 'ABC\\%' ESCAPE '\\'", false),
        ("color LIKE 'r' + '%'", true),
        ("'50%' LIKE '50' + '!' + '%' ESCAPE '!'", true),
    ]);
}

#[test]
fn arithmetic_binds_like_in_csharp() {
    check(&[
        ("quantity + 2 * 3 = 16", true),
        ("(quantity + 2) * 3 = 36", true),
        ("quantity - 2 - 3 = 5", true),
        ("quantity / 4 = 2", true),
        ("quantity / 4.0 = 2.5", true),
        ("quantity % 4 = 2", true),
        ("-quantity = -10", true),
        ("+quantity = 10", true),
        ("- -quantity = 10", true),
        ("quantity + price = 12.5", true),
        ("color + '-' + quantity = 'red-10'", true),
        ("missing + 1 = 1", false),
        ("missing + 1 <> 1", false),
        ("-missing = 1", false),
        ("sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive", true),
    ]);
}

#[test]
fn names_have_scopes_quotes_and_no_case() {
    check(&[
        ("COLOR = 'red'", true),
        ("user.Color = 'red'", true),
        ("USER.color = 'red'", true),
        ("[Color] = 'red'", true),
        ("[HR-EmployeeID] = 'e]7'", true),
        ("user.[HR-EmployeeID] = 'e]7'", true),
        ("\"Contoso & Northwind\" = 'quoted'", true),
        ("[and] = 'a keyword'", true),
        ("[a]]b] IS NULL AND \"a\"\"b\" IS NULL", true),
        ("Label IS NULL", true),
        ("'it''s' = 'it''s'", true),
    ]);
}

#[test]
fn system_properties_are_read() {
    check(&[
        ("sys.MessageId = 'm1'", true),
        ("sys.messageid = 'm1'", true),
        ("sys.CorrelationId = 'c1'", true),
        ("sys.To = 'store' AND sys.ReplyTo = 'back'", true),
        ("sys.Label = sys.Subject", true),
        ("sys.ContentType = 'text/plain'", true),
        ("sys.SessionId = 's1' AND sys.ReplyToSessionId = 'rs'", true),
        ("sys.PartitionKey = 'key'", true),
        ("sys.Size > 100 AND sys.DeliveryCount = 0", true),
        ("sys.[Label] LIKE 'service%'", true),
    ]);
}

#[test]
fn functions_are_evaluated() {
    check(&[
        ("property('color') = 'red'", true),
        ("p('Col' + 'or') = 'red'", true),
        ("p('sys.Label') = 'service bus'", true),
        ("P('user.color') = 'red'", true),
        ("p('missing') = 'red'", false),
        ("newid() = guid", true),
        ("NEWID() <> guid", false),
        ("p = 1", false),
    ]);
}

#[test]
fn parameters_have_their_types() {
    let values = [
        ("@text", PropertyValue::String("red".into()), "color = @text", true),
        ("int", PropertyValue::Int(10), "quantity = @int", true),
        ("@long", PropertyValue::Long(1 << 40), "large = @LONG", true),
        ("@double", PropertyValue::Double(2.5), "price = @double", true),
        ("@flag", PropertyValue::Boolean(true), "loud = @flag", true),
        ("@time", PropertyValue::DateTime("2026-01-02T03:04:05Z".into()), "when = @time", true),
        ("@time", PropertyValue::DateTime("2026-01-02T04:04:05.000+01:00".into()), "when = @time", true),
        ("@time", PropertyValue::DateTime("2026-01-02T03:04:06".into()), "when < @time", true),
        ("@span", PropertyValue::Duration("PT1M".into()), "sys.TimeToLive = @span", true),
    ];
    for (name, value, expression, expected) in values {
        let filter = SqlExpression { parameters: vec![(name.into(), value)], ..sql(expression) };
        let rule = compile(RuleFilter::Sql(filter), None).unwrap();
        assert_eq!(evaluate(&rule, sample()), Ok(expected), "{expression}");
    }
    let wrong = [("@t", PropertyValue::DateTime("soon".into())), ("@t", PropertyValue::Duration("long".into()))];
    for (name, value) in wrong {
        let filter = SqlExpression { parameters: vec![(name.into(), value)], ..sql("a = @t") };
        assert_eq!(compile(RuleFilter::Sql(filter), None), Err(RuleError::Value { name: "@t".into() }));
    }
}

#[test]
fn errors_name_the_position_and_what_is_expected() {
    refuse(&[
        ("", 1, "the expression ends here: expected a value"),
        ("color", 1, "expected a condition, such as a comparison, and found a value"),
        ("color = ", 9, "the expression ends here: expected a value"),
        ("color = 'red", 9, "a string has no end: expected `'`"),
        ("[color = 1", 1, "a name has no end: expected `]`"),
        ("[] = 1", 1, "a name is empty"),
        ("a = 1 b = 2", 7, "expected an operator or the end"),
        ("(a = 1", 7, "expected `)`"),
        ("a = 1 AND b", 11, "expected a condition, such as a comparison, and found a value"),
        ("(a = 1) + 1 = 2", 1, "expected a value and found a condition"),
        ("a = (b = 1)", 5, "expected a value and found a condition"),
        ("a NOT 1", 7, "expected `IN` or `LIKE` after `NOT`"),
        ("a IS 1", 6, "expected `NULL`"),
        ("a + 1 IS NULL", 1, "`IS NULL` takes a property"),
        ("a IN ()", 7, "`)` is not expected here"),
        ("a LIKE 'x' ESCAPE 'ab'", 12, "`ESCAPE` takes one character"),
        ("EXISTS(1)", 8, "expected the name of a property"),
        ("and = 1", 1, "a keyword is no name: write it as `[name]`"),
        ("sys.Nothing = 1", 5, "system property `Nothing` does not exist"),
        ("other.a = 1", 1, "`other` is no scope: expected `sys` or `user`"),
        ("now() = 1", 1, "function `now` does not exist"),
        ("a = @missing", 5, "parameter `@missing` has no value"),
        ("a = @", 6, "expected the name of a parameter after `@`"),
        ("a = 1x", 5, "`1x` is not a valid number"),
        ("a = 99999999999999999999", 5, "`99999999999999999999` is not a valid number"),
        ("a = 1e999", 5, "`1e999` is not a valid number"),
        ("a = ?", 5, "`?` is not expected here"),
        ("ä = 'ü' ! b", 9, "`!` is not expected here"),
    ]);
}

#[test]
fn nesting_and_length_are_limited() {
    let nested = |depth: usize| format!("{}a = 1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(compile(RuleFilter::Sql(sql(&nested(50))), None).is_ok());
    for deep in [nested(51), format!("{}a = 1", "NOT ".repeat(200)), format!("a = {}1", "-".repeat(900))] {
        let error = compile(RuleFilter::Sql(sql(&deep)), None).unwrap_err().to_string();
        assert!(error.ends_with("more than 50 levels are nested here"), "{error}");
    }
    let long = |length: usize| format!("a = '{}'", "x".repeat(length - 6));
    assert!(compile(RuleFilter::Sql(sql(&long(1024))), None).is_ok());
    let error = compile(RuleFilter::Sql(sql(&long(1025))), None);
    assert_eq!(error, Err(RuleError::TooLong { part: "filter", length: 1025 }));
    assert!(compile(RuleFilter::Sql(sql(&format!("1{} = 1", "+1".repeat(500)))), None).is_ok(), "flat is no nesting");
}

#[test]
fn what_cannot_be_computed_is_an_evaluation_error() {
    for (expression, error) in [
        ("quantity / 0 = 1", "an integer is divided by zero"),
        ("large * large = 1", "the result of an integer operation is out of range"),
        ("color - 1 = 1", "operator `-` does not take values of these types"),
        ("-color = 'x'", "operator `-` does not take values of these types"),
        ("quantity LIKE '1%'", "`LIKE` takes strings, and an escape of one character"),
        ("p(1) = 1", "`property()` takes the name of a property as a string"),
        ("p('sys.Nothing') = 1", "system property does not exist"),
    ] {
        assert_eq!(evaluate(&filter(expression), sample()), Err(error.to_owned()), "{expression}");
    }
}

#[test]
fn a_correlation_filter_needs_every_property() {
    let matching = CorrelationFilter {
        correlation_id: Some("c1".into()),
        message_id: Some("m1".into()),
        to: Some("store".into()),
        reply_to: Some("back".into()),
        label: Some("service bus".into()),
        session_id: Some("s1".into()),
        reply_to_session_id: Some("rs".into()),
        content_type: Some("text/plain".into()),
        properties: vec![
            ("COLOR".into(), PropertyValue::String("red".into())),
            ("quantity".into(), PropertyValue::Long(10)),
            ("loud".into(), PropertyValue::Boolean(true)),
            ("price".into(), PropertyValue::Double(2.5)),
            ("when".into(), PropertyValue::DateTime("2026-01-02T03:04:05Z".into())),
        ],
    };
    let selects = |filter: CorrelationFilter| {
        evaluate(&compile(RuleFilter::Correlation(filter), None).unwrap(), sample()).unwrap()
    };
    assert!(selects(matching.clone()));
    let changes: [fn(&mut CorrelationFilter); 11] = [
        |filter| filter.correlation_id = Some("C1".into()),
        |filter| filter.message_id = Some("m2".into()),
        |filter| filter.to = Some("x".into()),
        |filter| filter.reply_to = Some("x".into()),
        |filter| filter.label = Some("x".into()),
        |filter| filter.session_id = Some("x".into()),
        |filter| filter.reply_to_session_id = Some("x".into()),
        |filter| filter.content_type = Some("x".into()),
        |filter| filter.properties[0].1 = PropertyValue::String("Red".into()),
        |filter| filter.properties[1].1 = PropertyValue::String("10".into()),
        |filter| filter.properties.push(("missing".into(), PropertyValue::Int(1))),
    ];
    for change in changes {
        let mut other = matching.clone();
        change(&mut other);
        assert!(!selects(other.clone()), "{other:?}");
    }
    let empty = compile(RuleFilter::Correlation(CorrelationFilter::default()), None);
    assert_eq!(empty, Err(RuleError::EmptyCorrelation));
}

fn change(action: &str) -> (Message, Option<Box<str>>, Option<u64>) {
    let rule = compile(RuleFilter::True, Some(action)).unwrap_or_else(|error| panic!("{action}: {error}"));
    let message = Message::parse(sample()).unwrap();
    let context = MessageContext::new(&message, NOW, Some(60_000));
    let changed = rule.change(&context, &mut || ID).unwrap().unwrap();
    (Message::parse(changed.body).unwrap(), changed.session_id, changed.time_to_live)
}

#[test]
fn an_action_sets_and_removes_user_properties() {
    let (copy, ..) =
        change("SET quantity = quantity / 2; SET New = 'a' + 'b'; REMOVE color SET id = newid(), SET n = NULL");
    let property = |name: &str| copy.application_property(name).map(|value| value.to_value().unwrap());
    assert_eq!(property("quantity"), Some(amqp::Value::Int(5)), "the type stays");
    assert_eq!(property("New"), Some("ab".into()));
    assert_eq!(property("Color"), None);
    assert_eq!(property("id"), Some(ID.into()));
    assert_eq!(property("n"), Some(amqp::Value::Null));
    assert_eq!(property("RuleName"), Some("r".into()));
    assert_eq!(property("price"), Some(2.5.into()), "the others stay");
    assert_eq!(copy.data().next().as_deref(), Some(&b"body"[..]));
}

#[test]
fn a_statement_sees_the_changes_before_it() {
    let (copy, ..) = change("SET a = 1; SET a = a + 1; SET A = a * 10; SET color = missing");
    assert_eq!(copy.application_property("a").unwrap().as_integer(), Some(20));
    assert!(copy.application_property("A").is_none(), "names have no case");
    assert!(copy.application_property("Color").unwrap().is_null());
}

#[test]
fn an_action_sets_system_properties() {
    let (copy, session, ttl) = change(
        "SET sys.Label = 'new'; SET sys.CorrelationId = newid(); SET sys.SessionId = 's' + 2; REMOVE sys.ReplyTo; \
         SET sys.TimeToLive = 'PT5S'; SET sys.PartitionKey = 's2'; SET sys.MessageId = 7",
    );
    let properties = copy.properties().unwrap();
    assert_eq!((properties.subject, properties.reply_to, properties.to), (Some("new"), None, Some("store")));
    assert_eq!(properties.correlation_id.unwrap().to_string(), ID.to_string());
    assert_eq!(properties.message_id.unwrap().to_string(), "7");
    assert_eq!((properties.group_id, session.as_deref()), (Some("s2"), Some("s2")));
    assert_eq!((copy.header().unwrap().ttl, ttl), (Some(5_000), Some(5_000)));
    assert_eq!(copy.partition_key(), Some("s2"));
}

#[test]
fn invalid_actions_are_refused() {
    let many = "SET a = 1;".repeat(33);
    for (action, position, text) in [
        ("", 1, "expected `SET` or `REMOVE`"),
        ("DELETE a", 1, "expected `SET` or `REMOVE`"),
        ("SET a", 6, "expected `=`"),
        ("SET a = ", 9, "the expression ends here: expected a value"),
        ("SET a = b = 1", 11, "expected `SET` or `REMOVE`"),
        ("SET sys.Nothing = 1", 9, "system property `Nothing` does not exist"),
        ("SET sys.SequenceNumber = 1", 5, "this system property cannot be changed"),
        ("REMOVE sys.EnqueuedTimeUtc", 8, "this system property cannot be changed"),
        ("REMOVE 'a'", 8, "expected the name of a property"),
        (&many, 321, "an action has at most 32 statements"),
    ] {
        let expected = RuleError::Syntax { part: "action", position, text: text.to_owned() };
        assert_eq!(compile(RuleFilter::True, Some(action)), Err(expected), "{action}");
    }
}

#[test]
fn rule_names_are_checked() {
    let named = |name: &str| {
        CompiledRule::compile(RuleDescription { name: name.to_owned(), ..RuleDescription::default_rule() }, NOW)
    };
    for valid in ["$Default", "a b", "ä", &"x".repeat(50)] {
        assert!(named(valid).is_ok(), "{valid}");
    }
    for invalid in ["", "a/b", "a?b", "a\nb", &"x".repeat(51)] {
        assert_eq!(named(invalid).err(), Some(RuleError::Name), "{invalid}");
    }
}

#[test]
fn a_rule_is_stored_without_loss() {
    let rule = RuleDescription {
        name: "r".into(),
        filter: RuleFilter::Correlation(CorrelationFilter {
            label: Some("l".into()),
            properties: vec![
                ("double".into(), PropertyValue::Double(0.1 + 0.2)),
                ("infinite".into(), PropertyValue::Double(f64::INFINITY)),
                ("long".into(), PropertyValue::Long(i64::MIN)),
                ("when".into(), PropertyValue::DateTime("2026-01-02T03:04:05Z".into())),
            ],
            ..CorrelationFilter::default()
        }),
        action: Some(RuleAction(SqlExpression {
            parameters: vec![("@p".into(), PropertyValue::Int(1))],
            ..sql("SET a = @p")
        })),
    };
    let json = serde_json::to_vec(&rule).unwrap();
    assert_eq!(serde_json::from_slice::<RuleDescription>(&json).unwrap(), rule);
}

fn rule_set(rules: &[(&str, RuleFilter, Option<&str>)]) -> RuleSet {
    let mut set = RuleSet::default();
    for (name, filter, action) in rules {
        let action = action.map(|action| RuleAction(sql(action)));
        let description = RuleDescription { name: (*name).into(), filter: filter.clone(), action };
        set.insert(Arc::new(CompiledRule::compile(description, NOW).unwrap()));
    }
    set
}

fn select(sets: &[RuleSet]) -> MatchedRules {
    let index = RuleIndex::new(sets.iter().enumerate().map(|(id, set)| (EntityId(id as u32), set)));
    let message = Message::parse(sample()).unwrap();
    index.matches(&MessageContext::new(&message, NOW, None), &mut || ID)
}

/// Every kind of filter, whether it is looked up or evaluated, gives the same result.
#[test]
fn the_index_finds_exactly_the_rules_that_match() {
    let by_sql = |expression: &str| RuleFilter::Sql(sql(expression));
    let labelled = |label: &str| {
        RuleFilter::Correlation(CorrelationFilter { label: Some(label.into()), ..CorrelationFilter::default() })
    };
    let cases = [
        (RuleFilter::True, true),
        (RuleFilter::False, false),
        (by_sql("color = 'red'"), true),
        (by_sql("color = 'blue'"), false),
        (by_sql("'red' = Color"), true),
        (by_sql("color = 'red' AND quantity = 10"), true),
        (by_sql("color = 'red' AND quantity = 11"), false),
        (by_sql("color = 'red' OR quantity = 11"), true),
        (by_sql("whole = 10"), true),
        (by_sql("loud = TRUE"), true),
        (by_sql("loud = FALSE"), false),
        (by_sql("large = 1099511627776"), true),
        (by_sql("sys.Label = 'service bus'"), true),
        (by_sql("price = 2.5"), true),
        (by_sql("missing = NULL"), false),
        (by_sql("NOT color = 'red'"), false),
        (labelled("service bus"), true),
        (labelled("other"), false),
    ];
    let sets: Vec<_> = cases.iter().map(|(filter, _)| rule_set(&[("r", filter.clone(), None)])).collect();
    let expected: Vec<_> =
        (0..).map(EntityId).zip(&cases).filter(|(_, (_, selected))| *selected).map(|(id, _)| id).collect();
    assert_eq!(select(&sets).subscriptions, expected);
}

#[test]
fn rules_without_actions_make_one_copy_and_each_action_its_own() {
    let all = RuleFilter::Sql(sql("color = 'red'"));
    let sets = [rule_set(&[
        ("a1", all.clone(), Some("SET n = 1")),
        ("a2", RuleFilter::True, Some("SET n = 2")),
        ("p1", all.clone(), None),
        ("p2", RuleFilter::Sql(sql("quantity > 1")), None),
        ("p3", all, None),
    ])];
    let matched = select(&sets);
    assert_eq!(matched.subscriptions, [EntityId(0)]);
    let names = matched.copies.iter().map(|copy| {
        let copy = Message::parse(copy.message.body.clone()).unwrap();
        copy.application_property("RuleName").unwrap().as_str().unwrap().to_owned()
    });
    assert_eq!(names.collect::<Vec<_>>(), ["a1", "a2"]);
}

#[test]
fn a_failing_rule_is_reported_once_and_stops_no_other() {
    let failing = RuleFilter::Sql(sql("quantity / 0 = 1"));
    let sets = [rule_set(&[
        ("f1", failing.clone(), None),
        ("f2", failing, None),
        ("p", RuleFilter::Sql(sql("color = 'red'")), None),
    ])];
    let matched = select(&sets);
    assert_eq!(matched.subscriptions, [EntityId(0)]);
    assert_eq!(matched.failures, [(EntityId(0), "Rule 'f1': an integer is divided by zero".to_owned())]);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(a|sys|'x'|1|\\(|\\)|=|<|AND|OR|NOT|IN|LIKE|\\.|,|;|SET|-|\\+| |é|\\[|\\]){0,40}") {
        let rule = compile(RuleFilter::Sql(sql(&text)), Some(&text));
        if let Ok(rule) = rule {
            let _ = evaluate(&rule, sample());
        }
        if let Ok(rule) = compile(RuleFilter::Sql(sql(&text)), None) {
            let _ = evaluate(&rule, sample());
        }
    }
}
