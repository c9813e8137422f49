//! What MongoDB would read at the place of an event value, and how the value stays data there.
//!
//! In most places a value is just stored. Under `$push`, `$pull` or `$expr` a document or a regular expression would act as an operator:
//! it is wrapped, or the event is refused where nothing can wrap it.

use mongodb::bson::raw::{CStr, cstr};
use mongodb::bson::{RawBsonRef, RawDocument};

use super::bson_writer::BsonWriter;

/// Where in an update document an event value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePosition {
    /// MongoDB reads nothing but a value, for example under `$set`.
    Stored,
    /// The operand of `$push` and `$addToSet`: a value, or a document with `$each`.
    ListOperand,
    /// The operand of `$pull`: a list element, or a condition on list elements.
    ListCondition,
    /// A field of a query: a value, or a condition.
    FieldCondition,
    /// One entry of `$in`, `$nin` or `$all`: a value, or a regular expression to match.
    Candidate,
    /// The whole list of `$in`, `$nin` or `$all`.
    CandidateList,
    /// A parameter that is a number, or else field names: `$sort`, `$slice`, `$position`.
    Number,
    /// An operand of an aggregation expression, where text may name a field.
    Expression,
}

/// An event value that would act as an operator and cannot be wrapped. The text quotes no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct UnusableValue(&'static str);

const CANDIDATE: UnusableValue = UnusableValue(
    "a value of the event under `$in`, `$nin` or `$all` is a regular expression or starts with an operator",
);
const NUMBER: UnusableValue =
    UnusableValue("a value of the event under `$sort`, `$slice` or `$position` is not a number");

impl ValuePosition {
    /// Writes the value so that MongoDB takes it as data.
    pub(super) fn write(self, name: &CStr, value: RawBsonRef<'_>, out: &mut BsonWriter) -> Result<(), UnusableValue> {
        match self {
            Self::ListOperand if matches!(value, RawBsonRef::Document(_)) => out.write_document(name, |out| {
                out.write_array(cstr!("$each"), |out| out.write_value(cstr!("0"), value));
            }),
            Self::ListCondition if reads_as_condition(value) => out.write_document(name, |out| {
                out.write_value(cstr!("$eq"), value);
                // `$eq` alone also matches an element that is itself a list with this value.
                out.write_document(cstr!("$not"), |out| {
                    out.write_value(cstr!("$type"), RawBsonRef::String("array"));
                });
            }),
            Self::FieldCondition if reads_as_condition(value) => {
                out.write_document(name, |out| out.write_value(cstr!("$eq"), value));
            }
            Self::Expression => out.write_document(name, |out| out.write_value(cstr!("$literal"), value)),
            Self::Candidate if is_operator(value) => return Err(CANDIDATE),
            Self::CandidateList if has_operator(value) => return Err(CANDIDATE),
            Self::Number if !is_number(value) => return Err(NUMBER),
            _ => out.write_value(name, value),
        }
        Ok(())
    }
}

fn reads_as_condition(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Document(_) | RawBsonRef::RegularExpression(_))
}

/// `$all` takes conditions as entries, and `$in` regular expressions.
fn is_operator(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::RegularExpression(_) => true,
        RawBsonRef::Document(document) => starts_with_operator(document),
        _ => false,
    }
}

fn has_operator(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Array(entries) => entries.into_iter().flatten().any(is_operator),
        other => is_operator(other),
    }
}

fn is_number(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) | RawBsonRef::Decimal128(_))
}

/// Whether MongoDB would parse the document as operators.
pub(super) fn starts_with_operator(document: &RawDocument) -> bool {
    let first = document.iter_elements().next();
    matches!(first, Some(Ok(element)) if element.key().as_str().starts_with('$'))
}
