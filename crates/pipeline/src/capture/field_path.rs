//! A dotted path into raw BSON.

use mongodb::bson::raw::RawBsonRef;
use mongodb::bson::{Bson, RawDocument};

use crate::sequence::read_sequence;

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

    /// `None` if the value is missing, or is no [sequence](crate::sequence).
    pub(super) fn sequence(&self, document: &RawDocument) -> Option<i64> {
        match self.find(document) {
            FieldValue::Value(value) => read_sequence(value),
            FieldValue::Missing | FieldValue::Array => None,
        }
    }
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
        let document = rawdoc! { "int": 3, "meta": { "version": 3.0 }, "text": "3", "list": [3] };
        for name in ["int", "meta.version"] {
            assert_eq!(FieldPath::new(name).sequence(&document), Some(3), "{name}");
        }
        for name in ["text", "list", "none", "meta"] {
            assert_eq!(FieldPath::new(name).sequence(&document), None, "{name}");
        }
    }
}
