//! The sequence of an event: its number within the aggregate.

use mongodb::bson::raw::RawBsonRef;

use crate::stored::identity::to_integer;

/// Above this, a double cannot represent every whole number.
const MAX_EXACT_DOUBLE: f64 = 9_007_199_254_740_992.0;

/// Reads a whole number from 0, of any numeric BSON type: MongoDB compares numbers by value, so its indexes order them alike. `None` for every
/// other value: it gives an event no place among the events of its aggregate.
pub fn read_sequence(value: RawBsonRef<'_>) -> Option<i64> {
    let number = match value {
        RawBsonRef::Int32(number) => Some(i64::from(number)),
        RawBsonRef::Int64(number) => Some(number),
        #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
        RawBsonRef::Double(number) => {
            (number.fract() == 0.0 && number.abs() <= MAX_EXACT_DOUBLE).then_some(number as i64)
        }
        RawBsonRef::Decimal128(number) => to_integer(&number.to_string()),
        _ => None,
    };
    number.filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{Bson, Decimal128, RawDocumentBuf, doc};

    fn read(value: impl Into<Bson>) -> Option<i64> {
        let document = RawDocumentBuf::try_from(&doc! { "v": value.into() }).unwrap();
        read_sequence(document.get("v").unwrap().unwrap())
    }

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse::<Decimal128>().unwrap())
    }

    #[test]
    fn whole_numbers_of_every_type_are_sequences() {
        let threes: [Bson; 6] = [3.into(), 3_i64.into(), 3.0.into(), decimal("3"), decimal("3.00"), decimal("0.3E+1")];
        for three in threes {
            assert_eq!(read(three.clone()), Some(3), "{three:?}");
        }
        let zeros: [Bson; 4] = [0.into(), (-0.0).into(), decimal("0"), decimal("-0.0")];
        for zero in zeros {
            assert_eq!(read(zero.clone()), Some(0), "{zero:?}");
        }
        assert_eq!(read(i64::MAX), Some(i64::MAX));
        assert_eq!(read(decimal("9223372036854775807")), Some(i64::MAX));
    }

    #[test]
    fn other_values_are_no_sequence() {
        let wrong: Vec<Bson> = vec![
            "3".into(),
            3.5.into(),
            decimal("3.5"),
            f64::NAN.into(),
            f64::INFINITY.into(),
            decimal("NaN"),
            decimal("Infinity"),
            (-1).into(),
            (-1.0).into(),
            decimal("-1"),
            1e300.into(),
            decimal("9223372036854775808"),
            decimal("1E+6000"),
            Bson::Null,
            true.into(),
            vec![3].into(),
            doc! { "n": 3 }.into(),
        ];
        for value in wrong {
            assert_eq!(read(value.clone()), None, "{value:?}");
        }
    }
}
