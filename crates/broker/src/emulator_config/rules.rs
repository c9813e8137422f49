//! Rules of a subscription: fully checked, but only a rule that selects every message is implemented.

use super::reader::{ConfigReader, JsonFields, JsonNode};

const RULES_NOT_IMPLEMENTED: &str = "filters messages, which is not implemented: only supported is a SqlFilter of \"1=1\" without an Action, or no rule";
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

pub(super) fn check(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>) {
    let before = reader.problems();
    let Some(fields) = reader.object(node, &["Name", "Properties"]) else { return };
    if let Some(name) = reader.required(node, &fields, "Name") {
        reader.string(name);
    }
    let Some(properties) = reader.required(node, &fields, "Properties") else { return };
    let takes_everything = filter(reader, properties);
    // Reported only if the rule has no other problem.
    if reader.problems() == before && !takes_everything {
        reader.report(node, RULES_NOT_IMPLEMENTED.to_owned());
    }
}

/// True if the rule selects every message and changes none.
fn filter(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>) -> bool {
    let known = ["FilterType", "CorrelationFilter", "SqlFilter", "Action"];
    let Some(fields) = reader.object(node, &known) else { return false };
    if let Some(action) = fields.get("Action") {
        expression(reader, action);
    }
    let kind = reader.required(node, &fields, "FilterType").and_then(|kind| Some((kind, reader.string(kind)?)));
    match kind {
        None => false,
        Some((_, kind)) if kind == "Sql" => {
            let sql = reader.required(node, &fields, "SqlFilter").and_then(|sql| expression(reader, sql));
            sql.is_some_and(|sql| sql.replace(' ', "") == "1=1") && fields.get("Action").is_none()
        }
        Some((_, kind)) if kind == "Correlation" => {
            correlation(reader, node, &fields);
            false
        }
        Some((node, _)) => {
            reader.reject(node, "expected \"Sql\" or \"Correlation\"");
            false
        }
    }
}

fn expression(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>) -> Option<String> {
    let fields = reader.object(node, &["SqlExpression"])?;
    let expression = reader.required(node, &fields, "SqlExpression")?;
    reader.string(expression)
}

fn correlation(reader: &mut ConfigReader<'_>, node: &JsonNode<'_>, fields: &JsonFields<'_>) {
    let Some(filter) = reader.required(node, fields, "CorrelationFilter") else { return };
    let Some(given) = reader.object(filter, &CORRELATION) else { return };
    for (name, node) in &given {
        // `Properties` are named and typed by the user.
        if name != "Properties" {
            reader.string(node);
        }
    }
}
