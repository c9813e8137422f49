//! Rules of a subscription.

use jsonc_parser::ast::Value;

use super::reader::{ConfigReader, JsonFields, JsonNode};
use crate::core::Timestamp;
use crate::rules::{
    CompiledRule, CorrelationFilter, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression,
};

const CORRELATION: [&str; 9] = [
    "ContentType",
    "CorrelationId",
    "Label",
    "MessageId",
    "Properties",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
];

/// Reads one rule. `earlier` are the rules before it.
pub(super) fn read(
    reader: &mut ConfigReader<'_>,
    node: &JsonNode<'_>,
    earlier: &[RuleDescription],
) -> Option<RuleDescription> {
    let before = reader.problems();
    let fields = reader.object(node, &["Name", "Properties"])?;
    let name = reader.required(node, &fields, "Name").and_then(|name| reader.string(name));
    let properties = reader.required(node, &fields, "Properties")?;
    let rule = read_properties(reader, properties, name?)?;
    if earlier.iter().any(|known| known.name.eq_ignore_ascii_case(&rule.name)) {
        reader.report(node, "has the name of an earlier rule".to_owned());
    } else if reader.problems() == before
        && let Err(error) = CompiledRule::compile(rule.clone(), Timestamp::default())
    {
        reader.report(node, format!("cannot be created: {error}"));
    }
    Some(rule)
}

fn read_properties(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>, name: String) -> Option<RuleDescription> {
    let known = ["FilterType", "CorrelationFilter", "SqlFilter", "Action"];
    let fields = reader.object(node, &known)?;
    let action = fields.get("Action").filter(|node| !matches!(node.value, Value::NullKeyword(_)));
    let action = action.and_then(|action| expression(reader, action)).map(RuleAction);
    let kind = reader.required(node, &fields, "FilterType")?;
    let filter = match reader.string(kind)?.as_str() {
        "Sql" => {
            let sql = reader.required(node, &fields, "SqlFilter")?;
            RuleFilter::Sql(expression(reader, sql)?)
        }
        "Correlation" => RuleFilter::Correlation(correlation(reader, node, &fields)?),
        _ => {
            reader.reject(kind, "expected \"Sql\" or \"Correlation\"");
            return None;
        }
    };
    Some(RuleDescription { name, filter, action })
}

fn expression(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>) -> Option<SqlExpression> {
    let fields = reader.object(node, &["SqlExpression"])?;
    let expression = reader.required(node, &fields, "SqlExpression")?;
    Some(SqlExpression { expression: reader.string(expression)?, parameters: Vec::new() })
}

fn correlation(
    reader: &mut ConfigReader<'_>,
    node: &JsonNode<'_>,
    fields: &JsonFields<'_>,
) -> Option<CorrelationFilter> {
    let given = reader.required(node, fields, "CorrelationFilter")?;
    let given = reader.object(given, &CORRELATION)?;
    let mut filter = CorrelationFilter::default();
    for (name, node) in &given {
        let field = match name.as_str() {
            "ContentType" => &mut filter.content_type,
            "CorrelationId" => &mut filter.correlation_id,
            "Label" => &mut filter.label,
            "MessageId" => &mut filter.message_id,
            "ReplyTo" => &mut filter.reply_to,
            "ReplyToSessionId" => &mut filter.reply_to_session_id,
            "SessionId" => &mut filter.session_id,
            "To" => &mut filter.to,
            _ => {
                filter.properties = user_properties(reader, node);
                continue;
            }
        };
        if !matches!(node.value, Value::NullKeyword(_)) {
            *field = reader.string(node);
        }
    }
    Some(filter)
}

/// Named and typed by the user.
fn user_properties(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>) -> Vec<(String, PropertyValue)> {
    let Value::Object(object) = node.value else {
        reader.reject(node, "expected an object");
        return Vec::new();
    };
    let mut properties = Vec::new();
    for member in &object.properties {
        let value = match &member.value {
            Value::StringLit(text) => Some(PropertyValue::String(text.value.to_string())),
            Value::BooleanLit(truth) => Some(PropertyValue::Boolean(truth.value)),
            Value::NumberLit(number) => read_number(number.value),
            _ => None,
        };
        match value {
            Some(value) => properties.push((member.name.as_str().to_owned(), value)),
            None => reader.reject(node, "expected properties that are strings, numbers or booleans"),
        }
    }
    properties
}

fn read_number(text: &str) -> Option<PropertyValue> {
    match text.parse() {
        Ok(number) => Some(PropertyValue::Long(number)),
        Err(_) => text.parse().ok().filter(|number: &f64| number.is_finite()).map(PropertyValue::Double),
    }
}
