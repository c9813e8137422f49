//! Rules of a subscription: which messages it takes, and what it does to them.
//!
//! Read and written in full; the broker applies only the default rule so far, and refuses others before they get here.

use crate::core::Timestamp;

use super::duration;
use super::element::Element;
use super::moment;
use super::read::{Reason, boolean, text, wrong};
use super::xml::Xml;

/// The rule every subscription is born with: it takes everything.
pub const DEFAULT_RULE: &str = "$Default";

/// The only level the service still knows.
const COMPATIBILITY_LEVEL: u32 = 20;
const SCHEMA: &str = "http://www.w3.org/2001/XMLSchema";

#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub name: String,
    pub filter: Filter,
    pub action: Option<Action>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    True,
    False,
    Sql(Sql),
    Correlation(Correlation),
}

/// What a rule does to a message it takes: an SQL statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Action(pub Sql);

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sql {
    pub expression: String,
    pub parameters: Vec<(String, Value)>,
}

/// Takes a message whose properties equal all that are given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Correlation {
    pub correlation_id: Option<String>,
    pub message_id: Option<String>,
    pub to: Option<String>,
    pub reply_to: Option<String>,
    pub label: Option<String>,
    pub session_id: Option<String>,
    pub reply_to_session_id: Option<String>,
    pub content_type: Option<String>,
    pub properties: Vec<(String, Value)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    String(String),
    Int(i32),
    Long(i64),
    Double(f64),
    Boolean(bool),
    /// As the client wrote it.
    DateTime(String),
    /// As the client wrote it; known to be one.
    Duration(String),
}

impl Rule {
    pub fn takes_everything() -> Self {
        Self { name: DEFAULT_RULE.to_owned(), filter: Filter::True, action: None }
    }

    /// Whether this is the default rule, in any of the ways clients spell it.
    pub fn is_default(&self) -> bool {
        let everything = match &self.filter {
            Filter::True => true,
            Filter::Sql(sql) => sql.expression.replace(' ', "") == "1=1",
            Filter::False | Filter::Correlation(_) => false,
        };
        everything && self.action.is_none() && self.name.eq_ignore_ascii_case(DEFAULT_RULE)
    }
}

/// Reads a `RuleDescription`. Without a name, it is the default rule's.
pub(super) fn read(described: &Element) -> Result<Rule, Reason> {
    Ok(Rule {
        name: text(described, "Name").unwrap_or_else(|| DEFAULT_RULE.to_owned()),
        filter: described.child("Filter").map_or(Ok(Filter::True), filter)?,
        action: described.child("Action").map_or(Ok(None), action)?,
    })
}

fn filter(element: &Element) -> Result<Filter, Reason> {
    match element.kind() {
        Some("TrueFilter") => Ok(Filter::True),
        Some("FalseFilter") => Ok(Filter::False),
        Some("SqlFilter") => Ok(Filter::Sql(sql(element)?)),
        Some("CorrelationFilter") => Ok(Filter::Correlation(correlation(element)?)),
        other => Err(wrong(
            "Filter",
            other.unwrap_or("without a type"),
            "valid are TrueFilter, FalseFilter, SqlFilter and CorrelationFilter",
        )),
    }
}

fn action(element: &Element) -> Result<Option<Action>, Reason> {
    match element.kind() {
        Some("EmptyRuleAction") => Ok(None),
        Some("SqlRuleAction") => Ok(Some(Action(sql(element)?))),
        other => Err(wrong("Action", other.unwrap_or("without a type"), "valid are EmptyRuleAction and SqlRuleAction")),
    }
}

fn sql(element: &Element) -> Result<Sql, Reason> {
    let expression = text(element, "SqlExpression").ok_or(Reason::Missing { field: "SqlExpression" })?;
    Ok(Sql { expression, parameters: pairs(element, "Parameters")? })
}

fn correlation(element: &Element) -> Result<Correlation, Reason> {
    Ok(Correlation {
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

fn pairs(element: &Element, name: &str) -> Result<Vec<(String, Value)>, Reason> {
    element.child(name).map_or(&[][..], |list| &list.children).iter().map(pair).collect()
}

fn pair(element: &Element) -> Result<(String, Value), Reason> {
    let key = text(element, "Key").ok_or(Reason::Missing { field: "Key" })?;
    let value = element.child("Value").ok_or(Reason::Missing { field: "Value" })?;
    Ok((key, typed(value)?))
}

fn typed(element: &Element) -> Result<Value, Reason> {
    let raw = element.text.as_str();
    let text = raw.trim();
    let parsed = match element.kind().unwrap_or("string") {
        "string" => Some(Value::String(raw.to_owned())),
        "int" => text.parse().ok().map(Value::Int),
        "long" => text.parse().ok().map(Value::Long),
        "double" => text.parse().ok().map(Value::Double),
        "boolean" => boolean(text).map(Value::Boolean),
        "dateTime" => Some(Value::DateTime(text.to_owned())),
        "duration" => duration::parse(text).ok().map(|_| Value::Duration(text.to_owned())),
        _ => None,
    };
    parsed.ok_or_else(|| {
        wrong(
            "Value",
            text,
            "valid is a string, int, long, double, boolean, dateTime or duration, written as its type says",
        )
    })
}

pub(super) fn write(xml: &mut Xml, rule: &Rule, created_at: Timestamp) {
    match &rule.filter {
        Filter::True => xml.element("Filter", &[("i:type", "TrueFilter")], |xml| write_expression(xml, "1=1", &[])),
        Filter::False => xml.element("Filter", &[("i:type", "FalseFilter")], |xml| write_expression(xml, "1=0", &[])),
        Filter::Sql(sql) => xml.element("Filter", &[("i:type", "SqlFilter")], |xml| write_sql(xml, sql)),
        Filter::Correlation(correlation) => {
            xml.element("Filter", &[("i:type", "CorrelationFilter")], |xml| write_correlation(xml, correlation));
        }
    }
    match &rule.action {
        None => xml.element("Action", &[("i:type", "EmptyRuleAction")], |_| {}),
        Some(Action(sql)) => xml.element("Action", &[("i:type", "SqlRuleAction")], |xml| write_sql(xml, sql)),
    }
    xml.leaf("CreatedAt", moment::format(created_at));
    xml.leaf("Name", &rule.name);
}

fn write_sql(xml: &mut Xml, sql: &Sql) {
    write_expression(xml, &sql.expression, &sql.parameters);
}

fn write_expression(xml: &mut Xml, expression: &str, parameters: &[(String, Value)]) {
    xml.leaf("SqlExpression", expression);
    xml.leaf("CompatibilityLevel", COMPATIBILITY_LEVEL);
    write_pairs(xml, "Parameters", parameters);
}

fn write_correlation(xml: &mut Xml, correlation: &Correlation) {
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

/// Left out when empty: the JavaScript SDK takes an empty list for a broken one.
fn write_pairs(xml: &mut Xml, name: &str, pairs: &[(String, Value)]) {
    if pairs.is_empty() {
        return;
    }
    xml.element(name, &[], |xml| {
        for (key, value) in pairs {
            let (kind, text) = written(value);
            xml.element("KeyValueOfstringanyType", &[], |xml| {
                xml.leaf("Key", key);
                // The JavaScript SDK cuts exactly five characters off the type, so the prefix must be this one.
                let attributes = [("i:type", format!("d6p1:{kind}")), ("xmlns:d6p1", SCHEMA.to_owned())];
                let attributes = attributes.each_ref().map(|(name, value)| (*name, value.as_str()));
                xml.leaf_with("Value", &attributes, text);
            });
        }
    });
}

fn written(value: &Value) -> (&'static str, String) {
    match value {
        Value::String(text) => ("string", text.clone()),
        Value::Int(number) => ("int", number.to_string()),
        Value::Long(number) => ("long", number.to_string()),
        Value::Double(number) => ("double", number.to_string()),
        Value::Boolean(truth) => ("boolean", truth.to_string()),
        Value::DateTime(text) => ("dateTime", text.clone()),
        Value::Duration(text) => ("duration", text.clone()),
    }
}
