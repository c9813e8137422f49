//! Pure: how a document differs from the one that a fold gives, field by field.

use std::collections::BTreeMap;
use std::fmt;

use mongodb::bson::{Bson, Document, RawDocument};

use crate::stored::identity::normalize;

/// What is wrong at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// The fold gives a document, and the read model has none.
    MissingDocument,
    /// The read model has a document, and the fold gives none.
    ExtraDocument,
    MissingField,
    ExtraField,
    DifferentType,
    DifferentValue,
    /// The same elements in another order.
    Reordered,
    /// The same fields in another order.
    FieldOrder,
    /// The fold stops at an event that the server refuses, although the aggregate is not parked.
    Unfoldable,
}

impl DifferenceKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingDocument => "missing document",
            Self::ExtraDocument => "extra document",
            Self::MissingField => "missing",
            Self::ExtraField => "extra",
            Self::DifferentType => "different type",
            Self::DifferentValue => "different value",
            Self::Reordered => "reordered",
            Self::FieldOrder => "fields reordered",
            Self::Unfoldable => "cannot be folded",
        }
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One difference. `Debug` shows no values.
#[derive(Clone, PartialEq)]
pub struct Difference {
    /// Dotted, with the indexes of lists; empty for the document itself.
    pub path: String,
    pub kind: DifferenceKind,
    pub expected: Option<Bson>,
    pub stored: Option<Bson>,
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.kind)
    }
}

/// More than anyone reads; a document may have thousands of fields.
const MAX_DIFFERENCES: usize = 100;

/// How the stored document differs from the expected one; empty if they are the same, byte by byte.
pub fn compare(expected: Option<&RawDocument>, stored: Option<&RawDocument>) -> Vec<Difference> {
    let whole = |kind| {
        let value = |raw: Option<&RawDocument>| Document::try_from(raw?).ok().map(Bson::from);
        vec![Difference { path: String::new(), kind, expected: value(expected), stored: value(stored) }]
    };
    match (expected, stored) {
        (None, None) => vec![],
        (Some(_), None) => whole(DifferenceKind::MissingDocument),
        (None, Some(_)) => whole(DifferenceKind::ExtraDocument),
        (Some(expected), Some(stored)) if expected.as_bytes() == stored.as_bytes() => vec![],
        (Some(one), Some(other)) => match (Document::try_from(one), Document::try_from(other)) {
            (Ok(one), Ok(other)) => {
                let mut found = DifferenceList::default();
                found.compare_documents("", &one, &other);
                found.list
            }
            (_, _) => whole(DifferenceKind::DifferentValue),
        },
    }
}

/// How two documents differ for a person: numbers are compared by value, and the order of fields does not count.
pub fn compare_values(expected: &Document, stored: &Document) -> Vec<Difference> {
    let plain = |document: &Document| normalize(&Bson::Document(document.clone()));
    let (Bson::Document(expected), Bson::Document(stored)) = (plain(expected), plain(stored)) else { return vec![] };
    let mut found = DifferenceList::default();
    found.compare_documents("", &expected, &stored);
    found.list.retain(|difference| difference.kind != DifferenceKind::FieldOrder);
    found.list
}

/// As [`compare_values`], for documents that events changed in another order: lists are multisets, and sums of doubles may differ in their last digits.
pub fn compare_unordered(expected: &Document, stored: &Document) -> Vec<Difference> {
    let plain = |document: &Document| sort_lists(normalize(&Bson::Document(document.clone())));
    let (Bson::Document(expected), Bson::Document(stored)) = (plain(expected), plain(stored)) else { return vec![] };
    let mut found = DifferenceList { is_tolerant: true, ..DifferenceList::default() };
    found.compare_documents("", &expected, &stored);
    found.list.retain(|difference| difference.kind != DifferenceKind::FieldOrder);
    found.list
}

fn sort_lists(value: Bson) -> Bson {
    match value {
        Bson::Array(values) => {
            let mut values: Vec<Bson> = values.into_iter().map(sort_lists).collect();
            values.sort_by_cached_key(|value| value.clone().into_canonical_extjson().to_string());
            Bson::Array(values)
        }
        Bson::Document(document) => {
            Bson::Document(document.into_iter().map(|(name, value)| (name, sort_lists(value))).collect())
        }
        other => other,
    }
}

#[derive(Default)]
struct DifferenceList {
    list: Vec<Difference>,
    is_tolerant: bool,
}

impl DifferenceList {
    fn add(&mut self, path: String, kind: DifferenceKind, expected: Option<&Bson>, stored: Option<&Bson>) {
        if self.list.len() < MAX_DIFFERENCES {
            self.list.push(Difference { path, kind, expected: expected.cloned(), stored: stored.cloned() });
        }
    }

    fn compare_documents(&mut self, path: &str, expected: &Document, stored: &Document) {
        let before = self.list.len();
        for (name, value) in expected {
            let below = join(path, name);
            match stored.get(name) {
                Some(other) => self.compare_values(&below, value, other),
                None => self.add(below, DifferenceKind::MissingField, Some(value), None),
            }
        }
        for (name, value) in stored.iter().filter(|(name, _)| !expected.contains_key(name)) {
            self.add(join(path, name), DifferenceKind::ExtraField, None, Some(value));
        }
        // To MongoDB the order of fields is part of the value.
        if self.list.len() == before && !expected.keys().eq(stored.keys()) {
            self.add(path.to_owned(), DifferenceKind::FieldOrder, None, None);
        }
    }

    fn compare_values(&mut self, path: &str, expected: &Bson, stored: &Bson) {
        let kind = match (expected, stored) {
            (Bson::Document(expected), Bson::Document(stored)) => {
                return self.compare_documents(path, expected, stored);
            }
            (Bson::Array(expected), Bson::Array(stored)) if !is_reordered(expected, stored) => {
                return self.compare_elements(path, expected, stored);
            }
            (Bson::Array(_), Bson::Array(_)) => DifferenceKind::Reordered,
            (one, other) if is_same(one, other) || (self.is_tolerant && is_close(one, other)) => return,
            (one, other) if one.element_type() != other.element_type() => DifferenceKind::DifferentType,
            (_, _) => DifferenceKind::DifferentValue,
        };
        self.add(path.to_owned(), kind, Some(expected), Some(stored));
    }

    fn compare_elements(&mut self, path: &str, expected: &[Bson], stored: &[Bson]) {
        let common = expected.len().min(stored.len());
        for (at, (expected, stored)) in expected.iter().zip(stored).enumerate() {
            self.compare_values(&join(path, &at.to_string()), expected, stored);
        }
        for (at, value) in expected.iter().enumerate().skip(common) {
            self.add(join(path, &at.to_string()), DifferenceKind::MissingField, Some(value), None);
        }
        for (at, value) in stored.iter().enumerate().skip(common) {
            self.add(join(path, &at.to_string()), DifferenceKind::ExtraField, None, Some(value));
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The same type and value; a NaN is the same as itself.
fn is_same(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Double(one), Bson::Double(other)) => one.to_bits() == other.to_bits(),
        (one, other) => one == other,
    }
}

/// Numbers that differ by less than rounding does. Addition of doubles depends on the order.
fn is_close(one: &Bson, other: &Bson) -> bool {
    let number = |value: &Bson| match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        #[expect(clippy::cast_precision_loss, reason = "only compared with a tolerance")]
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    };
    let is_double = matches!(one, Bson::Double(_)) || matches!(other, Bson::Double(_));
    match (number(one), number(other)) {
        (Some(one), Some(other)) if is_double => (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0),
        (_, _) => false,
    }
}

/// Whether both lists have the same elements, and not in the same order.
fn is_reordered(expected: &[Bson], stored: &[Bson]) -> bool {
    let differs = |(one, other): (&Bson, &Bson)| !is_same(one, other);
    expected.len() == stored.len()
        && expected.iter().zip(stored).any(differs)
        && count_elements(expected) == count_elements(stored)
}

fn count_elements(list: &[Bson]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for value in list {
        *counts.entry(value.clone().into_canonical_extjson().to_string()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;

    fn differences(expected: Document, stored: Document) -> Vec<(String, DifferenceKind)> {
        let [expected, stored] = [expected, stored].map(|document| RawDocumentBuf::try_from(&document).unwrap());
        compare(Some(&expected), Some(&stored)).into_iter().map(|found| (found.path, found.kind)).collect()
    }

    #[test]
    fn a_difference_names_its_path_and_kind() {
        use DifferenceKind::{DifferentType, DifferentValue, ExtraField, FieldOrder, MissingField, Reordered};
        let cases = [
            (doc! { "a": 1 }, doc! { "a": 1 }, None),
            (doc! { "a": f64::NAN }, doc! { "a": f64::NAN }, None),
            (doc! { "a": 1 }, doc! {}, Some(("a", MissingField))),
            (doc! {}, doc! { "a": 1 }, Some(("a", ExtraField))),
            (doc! { "a": 1 }, doc! { "a": 1_i64 }, Some(("a", DifferentType))),
            (
                doc! { "a": { "b": [{ "c": 1 }] } },
                doc! { "a": { "b": [{ "c": 2 }] } },
                Some(("a.b.0.c", DifferentValue)),
            ),
            (doc! { "a": [1, 2, 3] }, doc! { "a": [2, 1, 3] }, Some(("a", Reordered))),
            (doc! { "a": [1, 2] }, doc! { "a": [1, 2, 2] }, Some(("a.2", ExtraField))),
            (doc! { "a": [1, 2] }, doc! { "a": [1] }, Some(("a.1", MissingField))),
            (doc! { "a": { "b": 1, "c": 2 } }, doc! { "a": { "c": 2, "b": 1 } }, Some(("a", FieldOrder))),
            (doc! { "a": null }, doc! {}, Some(("a", MissingField))),
        ];
        for (expected, stored, found) in cases {
            let found: Vec<_> = found.into_iter().map(|(path, kind)| (path.to_owned(), kind)).collect();
            assert_eq!(differences(expected.clone(), stored.clone()), found, "{expected} {stored}");
        }
    }

    #[test]
    fn a_document_with_many_differences_names_the_first() {
        let stored: Document = (0..1_000).map(|at| (format!("f{at}"), Bson::from(at))).collect();
        assert_eq!(differences(doc! {}, stored).len(), MAX_DIFFERENCES);
    }

    #[test]
    fn values_are_compared_without_types_and_field_order() {
        let expected = doc! { "a": 1, "b": { "c": 2, "d": [1] } };
        assert_eq!(compare_values(&expected, &doc! { "b": { "d": [1.0], "c": 2_i64 }, "a": 1_i64 }), []);
        let found = compare_values(&expected, &doc! { "b": { "d": [2], "c": 2 }, "a": 1 });
        assert_eq!(found.iter().map(|found| found.path.as_str()).collect::<Vec<_>>(), ["b.d.0"]);
    }

    #[test]
    fn another_order_of_events_is_no_difference() {
        let expected = doc! { "sum": 0.1 + 0.2 + 0.3, "ids": ["a", "b", { "x": 1 }], "n": 3 };
        let stored = doc! { "n": 3_i64, "sum": 0.3 + 0.2 + 0.1, "ids": [{ "x": 1.0 }, "b", "a"] };
        assert_eq!(compare_unordered(&expected, &stored), []);
        for (stored, path) in [
            (doc! { "sum": 0.7, "ids": ["a", "b", { "x": 1 }], "n": 3 }, "sum"),
            (doc! { "sum": 0.6, "ids": ["a", "b", { "x": 1 }], "n": 4 }, "n"),
            (doc! { "sum": 0.6, "ids": ["a", "b", { "x": 1 }, "b"], "n": 3 }, "ids.2"),
        ] {
            let found = compare_unordered(&expected, &stored);
            assert_eq!(found.first().map(|found| found.path.as_str()), Some(path), "{found:?}");
        }
    }

    #[test]
    fn a_missing_or_extra_document_has_no_path() {
        let document = RawDocumentBuf::try_from(&doc! { "_id": 1 }).unwrap();
        let kinds =
            |expected, stored| compare(expected, stored).into_iter().map(|found| found.kind).collect::<Vec<_>>();
        assert_eq!(kinds(Some(&*document), None), [DifferenceKind::MissingDocument]);
        assert_eq!(kinds(None, Some(&*document)), [DifferenceKind::ExtraDocument]);
        assert_eq!(kinds(None, None), []);
    }
}
