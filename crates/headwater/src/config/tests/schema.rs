//! The schema for editors, held against documents: a reader of just those keywords that it uses.

use serde_json::{Value as Json, json};

use super::super::{json_schema, reference_file, units, yaml};

/// Where a document is not as the schema says.
fn wrong(schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let mut found = vec![];
    let told = |what: &str| vec![format!("{at}: {what}")];
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        found.extend(match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "additionalProperties" => vec![],
            "type" => {
                let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if kinds.iter().any(|kind| is(value, kind.as_str().unwrap())) { vec![] } else { told("type") }
            }
            "enum" if rule.as_array().unwrap().contains(value) => vec![],
            "const" if rule == value => vec![],
            "minimum" if value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()) => vec![],
            "maximum" if value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()) => vec![],
            "pattern" if value.as_str().is_none_or(|text| fits(rule.as_str().unwrap(), text)) => vec![],
            "enum" | "const" | "minimum" | "maximum" | "pattern" => told(keyword),
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
                items.flat_map(|(number, item)| wrong(rule, item, &format!("{at}/{number}"))).collect()
            }
            "oneOf" => {
                let fitting = rule.as_array().unwrap().iter().filter(|rule| wrong(rule, value, at).is_empty());
                if fitting.count() == 1 { vec![] } else { told("oneOf") }
            }
            other => panic!("`{other}` is not read here"),
        });
    }
    // Where there are no `properties`, every entry is another.
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
        schema => wrong(schema, value, &at),
    }
}

fn is(value: &Json, kind: &str) -> bool {
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

/// The two that there are.
fn fits(pattern: &str, text: &str) -> bool {
    if pattern.contains("ms|s|m") { units::parse_duration(text).is_some() } else { units::parse_size(text).is_some() }
}

fn judged(document: &str) -> Vec<String> {
    wrong(&json_schema(), &yaml::parse(document).expect("YAML").to_json(), "")
}

#[test]
fn the_reference_file_and_what_is_written_by_hand_are_right() {
    assert_eq!(judged(&reference_file()), [""; 0]);
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
    assert_eq!(judged(by_hand), [""; 0]);
}

#[test]
fn what_the_loader_refuses_an_editor_refuses_too() {
    for (document, told) in [
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
        let found = judged(document);
        let told = told.replace("/: lacks", ": lacks");
        assert!(found.contains(&told), "{document}: {told}: {found:?}");
    }
}

#[test]
fn every_default_is_what_the_schema_allows() {
    fn look(schema: &Json, at: &str, seen: &mut usize) {
        if let Some(default) = schema.get("default") {
            *seen += 1;
            assert_eq!(wrong(schema, default, at), [""; 0]);
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
