//! Identity of `_id` values: the bytes are equal exactly when MongoDB treats the values as equal.
//!
//! Numbers are compared by value, whatever their type, also inside documents and arrays: 1, 1 as a long, 1.0 and the decimal 1.00 are one
//! aggregate. Strings and symbols are alike. The field order of a document counts.

use std::fmt;
use std::sync::Arc;

use mongodb::bson::{Bson, spec::ElementType};

use crate::event::AggregateId;

/// A hash-map key; it cannot be converted back. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(Arc<[u8]>);

impl Identity {
    pub fn of(value: &Bson) -> Self {
        let mut bytes = Vec::with_capacity(24);
        write(value, &mut bytes);
        Self(bytes.into())
    }

    /// `scope`: the collection, where it is part of the aggregate's identity.
    pub(crate) fn of_aggregate(scope: Option<&str>, aggregate: &AggregateId) -> Self {
        let mut bytes = Vec::with_capacity(48);
        write_text(scope.unwrap_or_default(), &mut bytes);
        write(aggregate.value(), &mut bytes);
        Self(bytes.into())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity(sha256:{:.12}…)", crate::event::sha256_hex(&[&self.0]))
    }
}

/// Type byte shared by all numbers.
const NUMBER: u8 = 0xF0;
const END: u8 = 0xFF;

fn write(value: &Bson, out: &mut Vec<u8>) {
    match value {
        Bson::Int32(number) => write_integer(i64::from(*number), out),
        Bson::Int64(number) => write_integer(*number, out),
        Bson::Double(number) => write_double(*number, out),
        Bson::Decimal128(number) => write_number(&number.to_string(), out),
        Bson::String(text) | Bson::Symbol(text) => {
            out.push(ElementType::String as u8);
            write_text(text, out);
        }
        Bson::Document(document) => {
            out.push(ElementType::EmbeddedDocument as u8);
            for (name, value) in document {
                // Separates elements from the terminator, so that no two documents have the same bytes.
                out.push(1);
                write_text(name, out);
                write(value, out);
            }
            out.push(END);
        }
        Bson::Array(values) => {
            out.push(ElementType::Array as u8);
            for value in values {
                out.push(1);
                write(value, out);
            }
            out.push(END);
        }
        other => write_plain(other, out),
    }
}

/// Values that are equal if their bytes are.
fn write_plain(value: &Bson, out: &mut Vec<u8>) {
    out.push(value.element_type() as u8);
    match value {
        Bson::ObjectId(id) => out.extend(id.bytes()),
        Bson::Boolean(truth) => out.push(u8::from(*truth)),
        Bson::DateTime(time) => out.extend(time.timestamp_millis().to_be_bytes()),
        Bson::Timestamp(time) => {
            out.extend(time.time.to_be_bytes());
            out.extend(time.increment.to_be_bytes());
        }
        Bson::Binary(binary) => {
            out.push(binary.subtype.into());
            out.extend((binary.bytes.len() as u64).to_be_bytes());
            out.extend(&binary.bytes);
        }
        // Rare as ids: compared by their text.
        other => write_text(&other.clone().into_canonical_extjson().to_string(), out),
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_be_bytes());
    out.extend(text.as_bytes());
}

/// The common case, without formatting: `i` and the number.
fn write_integer(number: i64, out: &mut Vec<u8>) {
    out.extend([NUMBER, b'i']);
    out.extend(number.to_be_bytes());
}

fn write_double(number: f64, out: &mut Vec<u8>) {
    const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
    if number.fract() == 0.0 && (-TWO_POW_63..TWO_POW_63).contains(&number) {
        #[expect(clippy::cast_possible_truncation, reason = "integral and within i64: checked above")]
        write_integer(number as i64, out);
    } else {
        // With this precision the text is exact: the double 0.1 differs from the decimal 0.1.
        None => write_number(&format!("{number:.1074}"), out),
    }
}

/// A decimal number as text: sign, digits without zeros at either end, exponent.
fn write_number(text: &str, out: &mut Vec<u8>) {
    let Some(number) = DecimalDigits::parse(text) else {
        // Infinity or NaN; MongoDB has only one NaN.
        let name = if text.to_ascii_lowercase().contains("nan") { "nan" } else { text };
        out.extend([NUMBER, b't']);
        return write_text(&name.to_ascii_lowercase()[..3], out);
    };
    if let Some(integer) = number.to_integer() {
        return write_integer(integer, out);
    }
    out.extend([NUMBER, b'd', u8::from(number.negative)]);
    out.extend(number.power.to_be_bytes());
    write_text(&number.significant, out);
}

fn as_integer(negative: bool, significant: &str, power: i64) -> Option<i64> {
    if significant.is_empty() {
        return Some(0);
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{doc, oid::ObjectId};

    use super::*;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn numbers_are_compared_by_value() {
        let ones: [Bson; 5] = [1.into(), 1_i64.into(), 1.0.into(), decimal("1"), decimal("1.00")];
        for one in &ones {
            assert_eq!(Identity::of(one), Identity::of(&ones[0]), "{one:?}");
            let (nested, plain) = (doc! { "n": [one.clone()] }, doc! { "n": [1] });
            assert_eq!(Identity::of(&nested.into()), Identity::of(&plain.into()), "{one:?}");
        }
        assert_eq!(Identity::of(&0.0.into()), Identity::of(&(-0.0).into()));
        assert_eq!(Identity::of(&decimal("1E+3")), Identity::of(&1000.into()));
        assert_eq!(Identity::of(&decimal("0.5")), Identity::of(&0.5.into()));
        assert_eq!(Identity::of(&f64::NAN.into()), Identity::of(&decimal("NaN")));
        assert_eq!(Identity::of(&f64::NEG_INFINITY.into()), Identity::of(&decimal("-Infinity")));
        assert_eq!(Identity::of(&1e300.into()), Identity::of(&1e300.into()));
        assert_eq!(Identity::of(&9_223_372_036_854_775_808.0.into()), Identity::of(&decimal("9223372036854775808")));
    }

    #[test]
    fn different_values_have_different_identities() {
        let values: Vec<Bson> = vec![
            1.into(),
            2.into(),
            "1".into(),
            true.into(),
            0.1.into(),
            decimal("0.1"),
            f64::INFINITY.into(),
            f64::NEG_INFINITY.into(),
            f64::NAN.into(),
            doc! { "a": 1, "b": 2 }.into(),
            doc! { "b": 2, "a": 1 }.into(),
            vec![1, 2].into(),
            vec![12].into(),
            ObjectId::new().into(),
            Bson::Null,
            Bson::MinKey,
        ];
        for (at, one) in values.iter().enumerate() {
            for other in &values[at + 1..] {
                assert_ne!(Identity::of(one), Identity::of(other), "{one:?} {other:?}");
            }
        }
    }
}
