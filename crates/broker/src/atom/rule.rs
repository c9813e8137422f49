//! Reads and writes rules of a subscription: a filter and an action.

use atom_xml::{XmlElement, XmlWriter, duration};

use crate::core::Timestamp;

use super::parse::{EntryError, boolean, text, wrong};
use super::timestamp;
use crate::rules::{
    CorrelationFilter, DEFAULT_RULE, PropertyValue, RuleAction, RuleDescription, RuleFilter, SqlExpression,
};

/// The only level that the service still supports.
const COMPATIBILITY_LEVEL: u32 = 20;
const SCHEMA: &str = "http://www.w3.org/2001/XMLSchema";

/// Parses a `RuleDescription`. A missing name means the default rule.
pub(super) fn read(described: &XmlElement) -> Result<RuleDescription, EntryError> {
    Ok(RuleDescription {
        name: text(described, "Name").unwrap_or_else(|| DEFAULT_RULE.to_owned()),
        filter: described.child("Filter").map_or(Ok(RuleFilter::True), filter)?,
        action: described.child("Action").map_or(Ok(None), action)?,
    })
}

fn filter(element: &XmlElement) -> Result<RuleFilter, EntryError> {
    match element.kind() {
        Some("TrueFilter") => Ok(RuleFilter::True),
        Some("FalseFilter") => Ok(RuleFilter::False),
        Some("SqlFilter") => Ok(RuleFilter::Sql(sql(element)?)),
        Some("CorrelationFilter") => Ok(RuleFilter::Correlation(correlation(element)?)),
        other => Err(wrong(
            "Filter",
            other.unwrap_or("without a type"),
            "expected TrueFilter, FalseFilter, SqlFilter or CorrelationFilter",
        )),
    }
}

fn action(element: &XmlElement) -> Result<Option<RuleAction>, EntryError> {
    match element.kind() {
        Some("EmptyRuleAction") => Ok(None),
        Some("SqlRuleAction") => Ok(Some(RuleAction(sql(element)?))),
        other => Err(wrong("Action", other.unwrap_or("without a type"), "expected EmptyRuleAction or SqlRuleAction")),
    }
}

fn sql(element: &XmlElement) -> Result<SqlExpression, EntryError> {
    let expression = text(element, "SqlExpression").ok_or(EntryError::Missing { field: "SqlExpression" })?;
    Ok(SqlExpression { expression, parameters: pairs(element, "Parameters")? })
}

fn correlation(element: &XmlElement) -> Result<CorrelationFilter, EntryError> {
    Ok(CorrelationFilter {
        correlation_id: text(element, "CorrelationId"),
        message_id: text(element, "MessageId"),
        to: text(element, "To"),
        reply_to: text(element, "ReplyTo"),
        label: text(element, "Label"),
        session_id: text(element, "SessionId"),
        reply_to_session_id: text(element, "ReplyToSessionId"),
        content_type: text(element, "ContentType"),
        properties: pairs(element, "Properties")?,
    })
}

fn pairs(element: &XmlElement, name: &str) -> Result<Vec<(String, PropertyValue)>, EntryError> {
    element.child(name).map_or(&[][..], |list| &list.children).iter().map(pair).collect()
}

fn pair(element: &XmlElement) -> Result<(String, PropertyValue), EntryError> {
    let key = text(element, "Key").ok_or(EntryError::Missing { field: "Key" })?;
    let value = element.child("Value").ok_or(EntryError::Missing { field: "Value" })?;
    Ok((key, typed(value)?))
}

fn typed(element: &XmlElement) -> Result<PropertyValue, EntryError> {
    let raw = element.text.as_str();
    let text = raw.trim();
    let parsed = match element.kind().unwrap_or("string") {
        "string" => Some(PropertyValue::String(raw.to_owned())),
        "int" => text.parse().ok().map(PropertyValue::Int),
        "long" => text.parse().ok().map(PropertyValue::Long),
        "double" => text.parse().ok().map(PropertyValue::Double),
        "boolean" => boolean(text).map(PropertyValue::Boolean),
        "dateTime" => Some(PropertyValue::DateTime(text.to_owned())),
        "duration" => duration::parse(text).ok().map(|_| PropertyValue::Duration(text.to_owned())),
        _ => None,
    };
    parsed.ok_or_else(|| {
        wrong(
            "Value",
            text,
            "expected a string, int, long, double, boolean, dateTime or duration, written as its type says",
        )
    })
}

pub(super) fn write(xml: &mut XmlWriter, rule: &RuleDescription, created_at: Timestamp) {
    match &rule.filter {
        RuleFilter::True => xml.element("Filter", &[("i:type", "TrueFilter")], |xml| write_expression(xml, "1=1", &[])),
        RuleFilter::False => {
            xml.element("Filter", &[("i:type", "FalseFilter")], |xml| write_expression(xml, "1=0", &[]))
        }
        RuleFilter::Sql(sql) => xml.element("Filter", &[("i:type", "SqlFilter")], |xml| write_sql(xml, sql)),
        RuleFilter::Correlation(correlation) => {
            xml.element("Filter", &[("i:type", "CorrelationFilter")], |xml| write_correlation(xml, correlation));
        }
    }
    match &rule.action {
        None => xml.element("Action", &[("i:type", "EmptyRuleAction")], |_| {}),
        Some(RuleAction(sql)) => xml.element("Action", &[("i:type", "SqlRuleAction")], |xml| write_sql(xml, sql)),
    }
    xml.leaf("CreatedAt", timestamp::format(created_at));
    xml.leaf("Name", &rule.name);
}

fn write_sql(xml: &mut XmlWriter, sql: &SqlExpression) {
    write_expression(xml, &sql.expression, &sql.parameters);
}

fn write_expression(xml: &mut XmlWriter, expression: &str, parameters: &[(String, PropertyValue)]) {
    xml.leaf("SqlExpression", expression);
    xml.leaf("CompatibilityLevel", COMPATIBILITY_LEVEL);
    write_pairs(xml, "Parameters", parameters);
}

fn write_correlation(xml: &mut XmlWriter, correlation: &CorrelationFilter) {
    xml.optional_leaf("CorrelationId", correlation.correlation_id.as_ref());
    xml.optional_leaf("MessageId", correlation.message_id.as_ref());
    xml.optional_leaf("To", correlation.to.as_ref());
    xml.optional_leaf("ReplyTo", correlation.reply_to.as_ref());
    xml.optional_leaf("Label", correlation.label.as_ref());
    xml.optional_leaf("SessionId", correlation.session_id.as_ref());
    xml.optional_leaf("ReplyToSessionId", correlation.reply_to_session_id.as_ref());
    xml.optional_leaf("ContentType", correlation.content_type.as_ref());
    write_pairs(xml, "Properties", &correlation.properties);
}

/// Omitted if empty: the JavaScript SDK fails on an empty list.
fn write_pairs(xml: &mut XmlWriter, name: &str, pairs: &[(String, PropertyValue)]) {
    if pairs.is_empty() {
        return;
    }
    xml.element(name, &[], |xml| {
        for (key, value) in pairs {
            let (kind, text) = written(value);
            xml.element("KeyValueOfstringanyType", &[], |xml| {
                xml.leaf("Key", key);
                // The JavaScript SDK cuts exactly five characters off the type, so the prefix must have this length.
                let attributes = [("i:type", format!("d6p1:{kind}")), ("xmlns:d6p1", SCHEMA.to_owned())];
                let attributes = attributes.each_ref().map(|(name, value)| (*name, value.as_str()));
                xml.leaf_with("Value", &attributes, text);
            });
        }
    });
}

fn written(value: &PropertyValue) -> (&'static str, String) {
    match value {
        PropertyValue::String(text) => ("string", text.clone()),
        PropertyValue::Int(number) => ("int", number.to_string()),
        PropertyValue::Long(number) => ("long", number.to_string()),
        PropertyValue::Double(number) => ("double", number.to_string()),
        PropertyValue::Boolean(truth) => ("boolean", truth.to_string()),
        PropertyValue::DateTime(text) => ("dateTime", text.clone()),
        PropertyValue::Duration(text) => ("duration", text.clone()),
    }
}
