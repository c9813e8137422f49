//! Reads typed values from the file and reports what is wrong, with paths.

use std::collections::HashSet;

use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;

use super::problem::{EmulatorConfigProblem, EmulatorConfigProblems, position};

/// A value and its path.
pub(super) struct JsonNode<'v> {
    pub(super) path: String,
    pub(super) value: &'v Value<'v>,
    /// Offset of its name, or of the value if it has no name.
    start: usize,
}

impl<'v> JsonNode<'v> {
    pub(super) fn root(value: &'v Value<'v>) -> Self {
        Self { path: String::new(), value, start: value.start() }
    }
}

/// The members of an object, in file order. Few enough for a linear search.
pub(super) struct JsonFields<'v>(Vec<(String, JsonNode<'v>)>);

impl<'v> JsonFields<'v> {
    pub(super) fn get(&self, name: &str) -> Option<&JsonNode<'v>> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }
}

impl<'f, 'v> IntoIterator for &'f JsonFields<'v> {
    type Item = &'f (String, JsonNode<'v>);
    type IntoIter = std::slice::Iter<'f, (String, JsonNode<'v>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

pub(super) struct ConfigReader<'t> {
    text: &'t str,
    problems: Vec<(usize, EmulatorConfigProblem)>,
}

impl<'t> ConfigReader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, problems: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Result<(), EmulatorConfigProblems> {
        self.problems.sort_by_key(|(offset, _)| *offset);
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(EmulatorConfigProblems(self.problems.into_iter().map(|(_, problem)| problem).collect())),
        }
    }

    pub(super) fn problems(&self) -> usize {
        self.problems.len()
    }

    /// The members of an object. Unknown and repeated ones are reported and dropped.
    pub(super) fn object<'v>(&mut self, node: &JsonNode<'v>, known: &[&str]) -> Option<JsonFields<'v>> {
        let Value::Object(object) = node.value else {
            self.reject(node, "expected an object");
            return None;
        };
        let mut seen = HashSet::new();
        let mut fields = Vec::new();
        for member in &object.properties {
            let name = member.name.as_str();
            let path = join(&node.path, name);
            let child = JsonNode { path, value: &member.value, start: member.start() };
            if !known.contains(&name) {
                self.report(&child, format!("is unknown: {}", suggestion(name, known)));
            } else if !seen.insert(name) {
                self.report(&child, "is given twice".to_owned());
            } else {
                fields.push((name.to_owned(), child));
            }
        }
        Some(JsonFields(fields))
    }

    pub(super) fn required<'f, 'v>(
        &mut self,
        object: &JsonNode<'_>,
        fields: &'f JsonFields<'v>,
        name: &str,
    ) -> Option<&'f JsonNode<'v>> {
        let found = fields.get(name);
        if found.is_none() {
            let missing = JsonNode { path: join(&object.path, name), value: object.value, start: object.value.start() };
            self.report(&missing, "is missing".to_owned());
        }
        found
    }

    pub(super) fn array<'v>(&mut self, node: &JsonNode<'v>) -> Option<Vec<JsonNode<'v>>> {
        let Value::Array(array) = node.value else {
            self.reject(node, "expected an array");
            return None;
        };
        let item = |(index, value): (usize, &'v Value<'v>)| JsonNode {
            path: format!("{}[{index}]", node.path),
            value,
            start: value.start(),
        };
        Some(array.elements.iter().enumerate().map(item).collect())
    }

    /// Empty if the member is missing or null.
    pub(super) fn optional_array<'v>(&mut self, fields: &JsonFields<'v>, name: &str) -> Vec<JsonNode<'v>> {
        match fields.get(name) {
            None | Some(JsonNode { value: Value::NullKeyword(_), .. }) => Vec::new(),
            Some(node) => self.array(node).unwrap_or_default(),
        }
    }

    pub(super) fn string(&mut self, node: &JsonNode<'_>) -> Option<String> {
        let Value::StringLit(text) = node.value else {
            self.reject(node, "expected a string");
            return None;
        };
        Some(text.value.to_string())
    }

    /// Reports an invalid value and shows it.
    pub(super) fn reject(&mut self, node: &JsonNode<'_>, rule: &str) {
        let found = self.excerpt(node.value);
        self.report_at(node.value.start(), &node.path, format!("is {found}: {rule}"));
    }

    /// Reports a problem of a whole member.
    pub(super) fn report(&mut self, node: &JsonNode<'_>, message: String) {
        self.report_at(node.start, &node.path, message);
    }

    fn report_at(&mut self, offset: usize, path: &str, message: String) {
        let (line, column) = position(self.text, offset);
        let path = if path.is_empty() { "the file" } else { path };
        self.problems.push((offset, EmulatorConfigProblem { line, column, path: path.to_owned(), message }));
    }

    /// The value as written in the file, shortened if long.
    fn excerpt(&self, value: &Value<'_>) -> String {
        const ENOUGH: usize = 60;
        match value {
            Value::Object(_) => "an object".to_owned(),
            Value::Array(_) => "an array".to_owned(),
            _ if value.text(self.text).chars().count() <= ENOUGH => value.text(self.text).to_owned(),
            _ => value.text(self.text).chars().take(ENOUGH).chain(['…']).collect(),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn suggestion(name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|other| (distance(&name.to_lowercase(), &other.to_lowercase()), other)).min();
    match near {
        Some((changes, other)) if changes <= 2 => format!("did you mean `{other}`?"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}

/// Levenshtein distance.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (index, target) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *target);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
