//! A dotted path into raw BSON.

use mongodb::bson::raw::RawBsonRef;
use mongodb::bson::{Bson, RawDocument};

/// Field names from the outermost in. Does not descend into arrays.
#[derive(Clone, Debug)]
pub(super) struct FieldPath {
    names: Vec<String>,
}

/// The value at a path.
#[derive(Debug, PartialEq)]
pub(super) enum FieldValue<'a> {
    Value(RawBsonRef<'a>),
    Missing,
    /// The path meets an array. An index has one entry per element and none for the array itself.
    Array,
}

impl FieldPath {
    pub(super) fn new(dotted: &str) -> Self {
        Self { names: dotted.split('.').map(str::to_owned).collect() }
    }

    pub(super) fn find<'a>(&self, document: &'a RawDocument) -> FieldValue<'a> {
        let mut inner = document;
        let mut names = self.names.iter().peekable();
        while let Some(name) = names.next() {
            match inner.get(name) {
                Ok(Some(RawBsonRef::Array(_))) => return FieldValue::Array,
                Ok(Some(RawBsonRef::Document(document))) if names.peek().is_some() => inner = document,
                Ok(Some(value)) if names.peek().is_none() => return FieldValue::Value(value),
                Ok(_) | Err(_) => return FieldValue::Missing,
            }
        }
        FieldValue::Missing
    }

    pub(super) fn value(&self, document: &RawDocument) -> Option<Bson> {
        match self.find(document) {
            FieldValue::Value(value) => Bson::try_from(value).ok(),
            FieldValue::Missing | FieldValue::Array => None,
        }
    }

    pub(super) fn text<'a>(&self, document: &'a RawDocument) -> Option<&'a str> {
        match self.find(document) {
            FieldValue::Value(value) => value.as_str(),
            FieldValue::Missing | FieldValue::Array => None,
        }
    }

    /// A whole number of any numeric BSON type.
    pub(super) fn whole_number(&self, document: &RawDocument) -> Option<i64> {
        match self.find(document) {
            FieldValue::Value(RawBsonRef::Int32(number)) => Some(number.into()),
            FieldValue::Value(RawBsonRef::Int64(number)) => Some(number),
            FieldValue::Value(RawBsonRef::Double(number)) => to_whole_number(number),
            FieldValue::Value(_) | FieldValue::Missing | FieldValue::Array => None,
        }
    }
}

/// Above this, a double cannot represent every whole number.
const MAX_EXACT_DOUBLE: f64 = 9_007_199_254_740_992.0;

fn to_whole_number(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
    (number.fract() == 0.0 && number.abs() <= MAX_EXACT_DOUBLE).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::rawdoc;

    #[test]
    fn a_path_descends_into_documents_but_not_arrays() {
        let document = rawdoc! { "a": { "b": { "c": 7 } }, "list": [{ "b": 1 }], "text": "x" };
        assert_eq!(FieldPath::new("a.b.c").value(&document), Some(Bson::Int32(7)));
        assert_eq!(FieldPath::new("a.b.d").find(&document), FieldValue::Missing);
        assert_eq!(FieldPath::new("text.b").find(&document), FieldValue::Missing);
        assert_eq!(FieldPath::new("list.b").find(&document), FieldValue::Array);
        assert_eq!(FieldPath::new("list").find(&document), FieldValue::Array);
        assert_eq!(FieldPath::new("text").text(&document), Some("x"));
    }

    #[test]
    fn a_sequence_is_a_whole_number() {
        let document = rawdoc! { "int": 3, "long": 3_i64, "double": 3.0, "half": 3.5, "text": "3", "huge": 1e300 };
        for name in ["int", "long", "double"] {
            assert_eq!(FieldPath::new(name).whole_number(&document), Some(3), "{name}");
        }
        for name in ["half", "text", "huge", "none"] {
            assert_eq!(FieldPath::new(name).whole_number(&document), None, "{name}");
        }
    }
}
