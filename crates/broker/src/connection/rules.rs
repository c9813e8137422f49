//! Rules in `$management` requests and responses.

use amqp::{Map, Value};

use crate::rules::{
    CompiledRule, CorrelationFilter, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression, parse_time,
};

// Descriptors. Those of the filters are one digit shorter than the others, as in the SDKs.
const RULE_DESCRIPTION: u64 = 0x0137_0000_0004;
const EMPTY_ACTION: u64 = 0x0137_0000_0005;
const SQL_ACTION: u64 = 0x0137_0000_0006;
const SQL_FILTER: u64 = 0x0013_7000_0006;
const TRUE_FILTER: u64 = 0x0013_7000_0007;
const FALSE_FILTER: u64 = 0x0013_7000_0008;
const CORRELATION_FILTER: u64 = 0x0013_7000_0009;

/// The only level that the service still supports.
const COMPATIBILITY_LEVEL: i32 = 20;

/// Decodes the rule of an `add-rule` request. An error names the field that is wrong.
pub(super) fn decode_rule(name: &str, description: &Map) -> Result<RuleDescription, &'static str> {
    let sql = |name: &'static str| match description.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => decode_sql(value).map(Some).ok_or(name),
    };
    let filter = match (sql("sql-filter")?, description.get("correlation-filter")) {
        (Some(sql), _) => RuleFilter::Sql(sql),
        (None, Some(Value::Map(filter))) => RuleFilter::Correlation(decode_correlation(filter)?),
        (None, Some(_)) => return Err("correlation-filter"),
        (None, None) if description.get("false-filter").is_some() => RuleFilter::False,
        (None, None) => RuleFilter::True,
    };
    Ok(RuleDescription { name: name.to_owned(), filter, action: sql("sql-rule-action")?.map(RuleAction) })
}

fn decode_sql(value: &Value) -> Option<SqlExpression> {
    let expression = value.as_map()?.get("expression")?.as_text()?;
    Some(SqlExpression { expression: expression.to_owned(), parameters: Vec::new() })
}

fn decode_correlation(filter: &Map) -> Result<CorrelationFilter, &'static str> {
    let text = |name: &'static str| match filter.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_text().map(|text| Some(text.to_owned())).ok_or(name),
    };
    let properties = match filter.get("properties") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Map(properties)) => {
            let pairs = properties.iter().map(|(name, value)| Some((name.as_text()?.to_owned(), decode_value(value)?)));
            pairs.collect::<Option<_>>().ok_or("properties")?
        }
        Some(_) => return Err("properties"),
    };
    Ok(CorrelationFilter {
        correlation_id: text("correlation-id")?,
        message_id: text("message-id")?,
        to: text("to")?,
        reply_to: text("reply-to")?,
        label: text("label")?,
        session_id: text("session-id")?,
        reply_to_session_id: text("reply-to-session-id")?,
        content_type: text("content-type")?,
        properties,
    })
}

fn decode_value(value: &Value) -> Option<PropertyValue> {
    match value {
        Value::String(_) | Value::Symbol(_) => value.as_text().map(|text| PropertyValue::String(text.to_owned())),
        Value::Boolean(truth) => Some(PropertyValue::Boolean(*truth)),
        Value::Int(number) => Some(PropertyValue::Int(*number)),
        Value::Float(number) => Some(PropertyValue::Double((*number).into())),
        Value::Double(number) => Some(PropertyValue::Double(*number)),
        Value::Timestamp(time) => {
            let time = u64::try_from(*time).ok()?;
            Some(PropertyValue::DateTime(crate::atom::format_timestamp(crate::core::Timestamp(time))))
        }
        _ => value.as_integer().map(PropertyValue::Long),
    }
}

pub(super) fn encode_rule(rule: &CompiledRule) -> Value {
    let RuleDescription { name, filter, action } = &rule.description;
    let action = match action {
        None => Value::described(EMPTY_ACTION, Value::List(vec![])),
        Some(RuleAction(sql)) => Value::described(SQL_ACTION, encode_sql(sql)),
    };
    let created_at = Value::Timestamp(super::encode::to_millis(rule.created_at));
    let fields = vec![encode_filter(filter), action, name.as_str().into(), created_at];
    Value::described(RULE_DESCRIPTION, Value::List(fields))
}

fn encode_filter(filter: &RuleFilter) -> Value {
    match filter {
        RuleFilter::True => Value::described(TRUE_FILTER, Value::List(vec![])),
        RuleFilter::False => Value::described(FALSE_FILTER, Value::List(vec![])),
        RuleFilter::Sql(sql) => Value::described(SQL_FILTER, encode_sql(sql)),
        RuleFilter::Correlation(filter) => Value::described(CORRELATION_FILTER, encode_correlation(filter)),
    }
}

fn encode_sql(sql: &SqlExpression) -> Value {
    Value::List(vec![sql.expression.as_str().into(), COMPATIBILITY_LEVEL.into()])
}

fn encode_correlation(filter: &CorrelationFilter) -> Value {
    let system = [
        &filter.correlation_id,
        &filter.message_id,
        &filter.to,
        &filter.reply_to,
        &filter.label,
        &filter.session_id,
        &filter.reply_to_session_id,
        &filter.content_type,
    ];
    let mut fields: Vec<Value> =
        system.map(|text| text.as_deref().map_or(Value::Null, Value::from)).into_iter().collect();
    let properties = filter.properties.iter().map(|(name, value)| (Value::from(name.as_str()), encode_value(value)));
    fields.push(Value::Map(properties.collect()));
    Value::List(fields)
}

fn encode_value(value: &PropertyValue) -> Value {
    match value {
        PropertyValue::String(text) | PropertyValue::Duration(text) => text.as_str().into(),
        PropertyValue::Int(number) => (*number).into(),
        PropertyValue::Long(number) => (*number).into(),
        PropertyValue::Double(number) => (*number).into(),
        PropertyValue::Boolean(truth) => (*truth).into(),
        // Rules with other texts are refused when they are created.
        PropertyValue::DateTime(text) => parse_time(text).map_or_else(|| text.as_str().into(), Value::Timestamp),
    }
}
