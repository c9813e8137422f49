//! The file of `headwater read-model test`: given events, expected documents, in YAML.

use mongodb::bson::{Bson, Document};
use pipeline::view::Identity;

use crate::config::{ConfigNode, NodeValue, SettingOrigin, parse_yaml};

/// One test.
#[derive(Debug, PartialEq)]
pub(super) struct TestCase {
    pub(super) name: String,
    /// As the source stores them, in order.
    pub(super) events: Vec<Document>,
    /// By read model.
    pub(super) expected: Vec<(String, Vec<Document>)>,
}

/// The tests, or what is wrong with the file.
pub(super) fn parse(text: &str) -> Result<Vec<TestCase>, String> {
    let root = parse_yaml(text).map_err(|problem| problem.to_string())?;
    let tests = entry(&root, "tests")?.ok_or_else(|| at(&root, "has no `tests`"))?;
    let NodeValue::List(tests) = &tests.value else { return Err(at(tests, "`tests` must be a list")) };
    only_keys(&root, &["tests"])?;
    tests.iter().enumerate().map(|(number, test)| read_case(test, number + 1)).collect()
}

fn read_case(test: &ConfigNode, number: usize) -> Result<TestCase, String> {
    only_keys(test, &["name", "events", "expect"])?;
    let name = match entry(test, "name")?.map(|node| &node.value) {
        Some(NodeValue::Text(name)) => name.clone(),
        _ => format!("test {number}"),
    };
    let events = entry(test, "events")?.ok_or_else(|| at(test, "has no `events`"))?;
    let expect = entry(test, "expect")?.ok_or_else(|| at(test, "has no `expect`"))?;
    let expected = expect.entries().map(|(model, node)| Ok((model.to_owned(), documents(node)?)));
    let expected: Vec<_> = expected.collect::<Result<_, String>>()?;
    if expected.is_empty() {
        return Err(at(expect, "`expect` names no read model"));
    }
    for (model, documents) in &expected {
        if documents.iter().any(|document| !document.contains_key("_id")) {
            return Err(at(expect, &format!("an expected document of `{model}` has no `_id`")));
        }
    }
    Ok(TestCase { name, events: documents(events)?, expected })
}

fn documents(node: &ConfigNode) -> Result<Vec<Document>, String> {
    let NodeValue::List(nodes) = &node.value else { return Err(at(node, "must be a list of documents")) };
    let document = |node: &ConfigNode| match node.to_bson() {
        Some(Bson::Document(document)) => Ok(document),
        _ => Err(at(node, "is not a document")),
    };
    nodes.iter().map(document).collect()
}

fn entry<'a>(node: &'a ConfigNode, key: &str) -> Result<Option<&'a ConfigNode>, String> {
    match &node.value {
        NodeValue::Map(_) => Ok(node.entries().find(|(name, _)| *name == key).map(|(_, node)| node)),
        _ => Err(at(node, "must be a map")),
    }
}

fn only_keys(node: &ConfigNode, known: &[&str]) -> Result<(), String> {
    match node.entries().find(|(name, _)| !known.contains(name)) {
        Some((name, node)) => Err(at(node, &format!("`{name}` is not a known key; use `{}`", known.join("`, `")))),
        None => Ok(()),
    }
}

fn at(node: &ConfigNode, problem: &str) -> String {
    match node.origin {
        SettingOrigin::File { line, .. } => format!("line {line}: {problem}"),
        _ => problem.to_owned(),
    }
}

/// Equal to MongoDB: numbers by value.
pub(super) fn is_same_id(one: &Bson, other: &Bson) -> bool {
    Identity::of(one) == Identity::of(other)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn a_file_has_events_and_expected_documents() {
        let text = "tests:\n  - name: placed\n    events: [ { aggregateId: o, n: 1 } ]\n    expect: { orders: [ { _id: o } ], days: [] }\n";
        let expected = vec![("orders".to_owned(), vec![doc! { "_id": "o" }]), ("days".to_owned(), vec![])];
        let case = TestCase { name: "placed".into(), events: vec![doc! { "aggregateId": "o", "n": 1 }], expected };
        assert_eq!(parse(text), Ok(vec![case]));
    }

    #[test]
    fn a_problem_of_a_file_has_its_line() {
        for (text, problem) in [
            ("test: []\n", "has no `tests`"),
            ("tests: 1\n", "line 1: `tests` must be a list"),
            ("tests:\n  - events: []\n", "line 2: has no `expect`"),
            ("tests:\n  - { events: [], expect: { a: 1 } }\n", "line 2: must be a list of documents"),
            ("tests:\n  - { events: [ 1 ], expect: { a: [] } }\n", "line 2: is not a document"),
            ("tests:\n  - { events: [], expect: { a: [ { n: 1 } ] } }\n", "has no `_id`"),
            ("tests:\n  - { events: [], expected: { a: [] }, expect: { a: [] } }\n", "`expected` is not a known key"),
        ] {
            let found = parse(text).expect_err(text);
            assert!(found.contains(problem), "{found}");
        }
    }
}
