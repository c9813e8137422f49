//! The JSON schema for editors, checked against documents by a validator for just the keywords it uses.

use serde_json::{Value as Json, json};

use super::super::{json_schema, reference_file, units, yaml};

/// The violations of the schema in a document.
fn violations(schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let mut found = vec![];
    let message = |what: &str| vec![format!("{at}: {what}")];
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        found.extend(match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "additionalProperties" | "else" => vec![],
            "if" => match schema.get("else") {
                Some(other) if !violations(rule, value, at).is_empty() => violations(other, value, at),
                _ => vec![],
            },
            "type" => {
                let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if kinds.iter().any(|kind| has_type(value, kind.as_str().unwrap())) { vec![] } else { message("type") }
            }
            "enum" if rule.as_array().unwrap().contains(value) => vec![],
            "const" if rule == value => vec![],
            "minimum" if value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()) => vec![],
            "maximum" if value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()) => vec![],
            "pattern" if value.as_str().is_none_or(|text| fits(rule.as_str().unwrap(), text)) => vec![],
            "enum" | "const" | "minimum" | "maximum" | "pattern" => message(keyword),
            "required" => {
                let missing = |name: &&Json| value.is_object() && value.get(name.as_str().unwrap()).is_none();
                rule.as_array().unwrap().iter().filter(missing).map(|name| format!("{at}: lacks {name}")).collect()
            }
            "properties" => {
                let known = rule.as_object().unwrap();
                let others = schema.get("additionalProperties").unwrap_or(&Json::Bool(true));
                let entries = value.as_object().into_iter().flatten();
                let below = entries.flat_map(|(name, value)| entry(known.get(name).unwrap_or(others), name, value, at));
                below.collect()
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                items.flat_map(|(number, item)| violations(rule, item, &format!("{at}/{number}"))).collect()
            }
            "oneOf" => {
                let fitting = rule.as_array().unwrap().iter().filter(|rule| violations(rule, value, at).is_empty());
                if fitting.count() == 1 { vec![] } else { message("oneOf") }
            }
            other => panic!("`{other}` is not read here"),
        });
    }
    // Without `properties`, every entry is an additional property.
    if schema.get("properties").is_none()
        && let Some(others) = schema.get("additionalProperties")
    {
        let entries = value.as_object().into_iter().flatten();
        found.extend(entries.flat_map(|(name, value)| entry(others, name, value, at)));
    }
    found
}

fn entry(schema: &Json, name: &str, value: &Json, at: &str) -> Vec<String> {
    let at = format!("{at}/{name}");
    match schema {
        Json::Bool(true) => vec![],
        Json::Bool(false) => vec![format!("{at}: unknown")],
        schema => violations(schema, value, &at),
    }
}

fn has_type(value: &Json, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("`{other}` is not read here"),
    }
}

/// The schema uses only these two patterns.
fn fits(pattern: &str, text: &str) -> bool {
    if pattern.contains("ms|s|m") { units::parse_duration(text).is_some() } else { units::parse_size(text).is_some() }
}

fn validate(document: &str) -> Vec<String> {
    violations(&json_schema(), &yaml::parse(document).expect("YAML").to_json(), "")
}

#[test]
fn the_schema_accepts_valid_files() {
    assert_eq!(validate(&reference_file()), [""; 0]);
    let by_hand = "\
format: 1
source: { uri_file: /run/secrets/uri, database: shop, collections: [orders, customers], kind: documents }
coordination: { lease: { ttl: 1m30s, watch: false } }
service_bus: { connection_string: \"Endpoint=sb://a\" }
producer: { window: { bytes: 2MiB, events: 100 }, filter: [ { $match: {} } ] }
read_models:
  database: views
  a: { key: $$event.payload.id, when: { insert: { $set: { b: 1 } }, update: [ { $set: { b: 2 } } ], delete: delete } }
  b: { mirror: true, from: orders, indexes: [ { keys: { c: 1 }, unique: true } ] }
";
    assert_eq!(validate(by_hand), [""; 0]);
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    for (document, message) in [
        ("pipeline: a", "/: lacks \"format\""),
        ("format: 2", "/format: maximum"),
        ("format: 1\nproduser: {}", "/produser: unknown"),
        ("format: 1\nsource: { databse: shop }", "/source/databse: unknown"),
        ("format: 1\nsource: { uri: a }", "/source: lacks \"database\""),
        ("format: 1\nsource: [a]", "/source: type"),
        ("format: 1\nproducer: { body: xml }", "/producer/body: enum"),
        ("format: 1\nproducer: { drain: 10 }", "/producer/drain: type"),
        ("format: 1\nproducer: { drain: soon }", "/producer/drain: pattern"),
        ("format: 1\nproducer: { window: { bytes: 8 litres } }", "/producer/window/bytes: pattern"),
        ("format: 1\nproducer: { window: { events: 3 } }", "/producer/window/events: minimum"),
        ("format: 1\nproducer: { filter: [ 5 ] }", "/producer/filter/0: type"),
        ("format: 1\ncoordination: { lease: { watch: yes } }", "/coordination/lease/watch: type"),
        ("format: 1\nread_models: { a: { on: {} } }", "/read_models/a/on: unknown"),
        ("format: 1\nread_models: { a: { when: { X: remove } } }", "/read_models/a/when/X: oneOf"),
        ("format: 1\nread_models: { a: { indexes: [ { c: 1 } ] } }", "/read_models/a/indexes/0: lacks \"keys\""),
    ] {
        let found = validate(document);
        let message = message.replace("/: lacks", ": lacks");
        assert!(found.contains(&message), "{document}: {message}: {found:?}");
    }
}

#[test]
fn the_schema_accepts_every_default() {
    fn look(schema: &Json, at: &str, seen: &mut usize) {
        if let Some(default) = schema.get("default") {
            *seen += 1;
            assert_eq!(violations(schema, default, at), [""; 0]);
        }
        for (name, below) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            look(below, &format!("{at}/{name}"), seen);
        }
    }
    let mut seen = 0;
    look(&json_schema(), "", &mut seen);
    assert!(seen > 30, "{seen}");
    assert_eq!(json_schema()["$schema"], json!("https://json-schema.org/draft/2020-12/schema"));
}
