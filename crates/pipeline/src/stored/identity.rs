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

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn of_number(text: &str) -> Self {
        let mut bytes = Vec::with_capacity(24);
        write_number(text, &mut bytes);
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
    match whole_double(number) {
        Some(integer) => write_integer(integer, out),
        // With this precision the text is exact: the double 0.1 differs from the decimal 0.1.
        None => write_number(&format!("{number:.1074}"), out),
    }
}

fn whole_double(number: f64) -> Option<i64> {
    const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
    #[expect(clippy::cast_possible_truncation, reason = "integral and within i64")]
    (number.fract() == 0.0 && (-TWO_POW_63..TWO_POW_63).contains(&number)).then_some(number as i64)
}

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

/// The value in one form: values with the same identity become the same value, and so have the same text. Not to be stored.
pub(crate) fn normalize(value: &Bson) -> Bson {
    match value {
        Bson::Int64(number) => normal_integer(*number),
        Bson::Double(number) => normal_double(*number),
        Bson::Decimal128(number) => normal_decimal(&number.to_string()),
        Bson::Symbol(text) => Bson::String(text.clone()),
        Bson::Document(document) => {
            Bson::Document(document.iter().map(|(name, value)| (name.clone(), normalize(value))).collect())
        }
        Bson::Array(values) => Bson::Array(values.iter().map(normalize).collect()),
        other => other.clone(),
    }
}

/// The smaller type: drivers send most numbers in documents as 32 bits.
fn normal_integer(number: i64) -> Bson {
    i32::try_from(number).map_or(Bson::Int64(number), Bson::Int32)
}

fn normal_double(number: f64) -> Bson {
    whole_double(number).map_or(Bson::Double(number), normal_integer)
}

/// A decimal that no double equals keeps its digits, as text.
fn normal_decimal(text: &str) -> Bson {
    let Some(number) = DecimalDigits::parse(text) else {
        return Bson::Double(text.parse().unwrap_or(f64::NAN));
    };
    if let Some(integer) = number.to_integer() {
        return normal_integer(integer);
    }
    let nearest = text.parse().unwrap_or(f64::NAN);
    let is_exact = Identity::of(&Bson::Double(nearest)) == Identity::of_number(text);
    let digits = || {
        let sign = if number.negative { "-" } else { "" };
        format!("{sign}{}E{}", number.significant, number.power)
    };
    if is_exact { Bson::Double(nearest) } else { Bson::String(digits()) }
}

/// The value of a decimal number in text, if it is whole and fits.
pub(crate) fn to_integer(text: &str) -> Option<i64> {
    DecimalDigits::parse(text)?.to_integer()
}

/// A finite decimal number: sign, digits without zeros at either end, power of ten.
struct DecimalDigits {
    negative: bool,
    /// Empty for zero.
    significant: String,
    power: i64,
}

impl DecimalDigits {
    /// `None` for infinity and NaN.
    fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = unsigned.split_once(['E', 'e']).unwrap_or((unsigned, "0"));
        let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{before}{after}");
        let exponent = exponent.parse::<i64>().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
        let significant = digits.trim_end_matches('0');
        let power = exponent - after.len() as i64 + (digits.len() - significant.len()) as i64;
        Some(Self { negative, significant: significant.trim_start_matches('0').to_owned(), power })
    }

    fn to_integer(&self) -> Option<i64> {
        if self.significant.is_empty() {
            return Some(0);
        }
        let zeros = usize::try_from(self.power).ok().filter(|zeros| *zeros < 20)?;
        let sign = if self.negative { "-" } else { "" };
        format!("{sign}{}{}", self.significant, "0".repeat(zeros)).parse().ok()
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
    fn values_with_one_identity_have_one_normal_form() {
        let equal: [&[Bson]; 8] = [
            &[1.into(), 1_i64.into(), 1.0.into(), decimal("1.00")],
            &[0.into(), (-0.0).into(), decimal("-0")],
            &[0.5.into(), decimal("0.50"), decimal("5E-1")],
            &[decimal("0.1"), decimal("0.10"), decimal("1E-1")],
            &[9_223_372_036_854_775_808.0.into(), decimal("9223372036854775808")],
            &["a".into(), Bson::Symbol("a".into())],
            &[doc! { "t": 1 }.into(), doc! { "t": 1_i64 }.into(), doc! { "t": decimal("1") }.into()],
            &[vec![1.0].into(), vec![1].into()],
        ];
        for values in equal {
            for value in values {
                assert_eq!(Identity::of(value), Identity::of(&values[0]), "{value:?}");
                assert_eq!(normalize(value), normalize(&values[0]), "{value:?}");
            }
        }
        assert_eq!(Identity::of(&normalize(&f64::NAN.into())), Identity::of(&normalize(&decimal("NaN"))));
        assert_eq!(normalize(&f64::NEG_INFINITY.into()), normalize(&decimal("-Infinity")));
        assert_ne!(normalize(&0.1.into()), normalize(&decimal("0.1")));
        assert_eq!(normalize(&1e300.into()), 1e300.into());
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
