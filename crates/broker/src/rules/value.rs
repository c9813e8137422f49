//! Values of expressions, and the operators on them. Numbers follow C#: integers are 64 bits wide, and an integer with a
//! double is a double.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use amqp::codec::{Descriptor, ValueRef, code};
use uuid::Uuid;

use super::syntax::{ArithmeticOperator, Comparison};

/// Ticks of 100 ns in a millisecond.
pub(super) const TICKS_PER_MILLISECOND: i64 = 10_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SqlValue<'a> {
    /// Unknown: missing or null.
    Null,
    Boolean(bool),
    Long(i64),
    Double(f64),
    Text(Cow<'a, str>),
    Guid(Uuid),
    /// Milliseconds since the Unix epoch.
    Time(i64),
    /// In ticks.
    Span(i64),
    /// A type that no operator takes, such as bytes.
    Other,
}

/// Why a filter or action cannot be evaluated on a message. The text never shows values: they are the message's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum EvaluationError {
    #[error("operator `{0}` does not take values of these types")]
    Operands(&'static str),
    #[error("an integer is divided by zero")]
    DivisionByZero,
    #[error("the result of an integer operation is out of range")]
    Overflow,
    #[error("`LIKE` takes strings, and an escape of one character")]
    Pattern,
    #[error("`property()` takes the name of a property as a string")]
    PropertyName,
    #[error("system property does not exist")]
    UnknownSystemProperty,
    #[error("a system property cannot be set to a value of this type")]
    SystemValue,
}

impl<'a> SqlValue<'a> {
    /// Names of types that Service Bus adds to AMQP.
    pub(super) fn decode(raw: ValueRef<'a>) -> Self {
        if let Some((descriptor, value)) = raw.as_described() {
            let Descriptor::Name(name) = descriptor else { return Self::Other };
            return match name {
                "com.microsoft:timespan" => value.as_integer().map_or(Self::Other, Self::Span),
                "com.microsoft:datetime-offset" => value.as_integer().map_or(Self::Other, from_net_ticks),
                "com.microsoft:uri" => value.as_text().map_or(Self::Other, |text| Self::Text(text.into())),
                _ => Self::Other,
            };
        }
        match raw.code() {
            code::NULL => Self::Null,
            code::TRUE | code::FALSE | code::BOOLEAN => raw.as_bool().map_or(Self::Other, Self::Boolean),
            code::STRING8 | code::STRING32 | code::SYMBOL8 | code::SYMBOL32 => {
                raw.as_text().map_or(Self::Other, |text| Self::Text(text.into()))
            }
            code::UUID => raw.as_uuid().map_or(Self::Other, Self::Guid),
            code::TIMESTAMP => raw.as_timestamp().map_or(Self::Other, Self::Time),
            _ => Self::decode_number(raw),
        }
    }

    fn decode_number(raw: ValueRef<'a>) -> Self {
        let bytes = &raw.encoded()[1..];
        match raw.code() {
            code::FLOAT => bytes.try_into().map_or(Self::Other, |bytes| Self::Double(f32::from_be_bytes(bytes).into())),
            code::DOUBLE => bytes.try_into().map_or(Self::Other, |bytes| Self::Double(f64::from_be_bytes(bytes))),
            code::DECIMAL128 => bytes.try_into().map_or(Self::Other, |bytes| Self::Double(decimal_to_double(bytes))),
            code::CHAR => {
                let character = bytes.try_into().ok().and_then(|bytes| char::from_u32(u32::from_be_bytes(bytes)));
                character.map_or(Self::Other, |character| Self::Text(character.to_string().into()))
            }
            _ => match (raw.as_integer(), raw.as_ulong()) {
                (Some(number), _) => Self::Long(number),
                (None, Some(large)) => Self::Double(large as f64),
                (None, None) => Self::Other,
            },
        }
    }

    /// The same value, borrowed.
    pub(super) fn borrow(&self) -> SqlValue<'_> {
        match self {
            Self::Text(text) => SqlValue::Text(Cow::Borrowed(text)),
            Self::Null => SqlValue::Null,
            Self::Boolean(value) => SqlValue::Boolean(*value),
            Self::Long(value) => SqlValue::Long(*value),
            Self::Double(value) => SqlValue::Double(*value),
            Self::Guid(value) => SqlValue::Guid(*value),
            Self::Time(value) => SqlValue::Time(*value),
            Self::Span(value) => SqlValue::Span(*value),
            Self::Other => SqlValue::Other,
        }
    }

    pub(super) fn into_owned(self) -> SqlValue<'static> {
        match self {
            Self::Text(text) => SqlValue::Text(Cow::Owned(text.into_owned())),
            Self::Null => SqlValue::Null,
            Self::Boolean(value) => SqlValue::Boolean(value),
            Self::Long(value) => SqlValue::Long(value),
            Self::Double(value) => SqlValue::Double(value),
            Self::Guid(value) => SqlValue::Guid(value),
            Self::Time(value) => SqlValue::Time(value),
            Self::Span(value) => SqlValue::Span(value),
            Self::Other => SqlValue::Other,
        }
    }

    /// `None` if one of them is unknown, or they have no common type.
    pub(super) fn compare(&self, comparison: Comparison, other: &Self) -> Option<bool> {
        let order = match (self, other) {
            (Self::Long(one), Self::Long(other)) => Some(one.cmp(other)),
            (Self::Text(one), Self::Text(other)) => Some(one.cmp(other)),
            (Self::Time(one), Self::Time(other)) | (Self::Span(one), Self::Span(other)) => Some(one.cmp(other)),
            (Self::Boolean(one), Self::Boolean(other)) => return comparison.of_equality(one == other),
            (Self::Guid(one), Self::Guid(other)) => return comparison.of_equality(one == other),
            _ => match (self.as_double(), other.as_double()) {
                // Not a number is unequal to everything.
                (Some(one), Some(other)) => one.partial_cmp(&other),
                _ => return None,
            },
        };
        Some(comparison.of_order(order))
    }

    fn as_double(&self) -> Option<f64> {
        match self {
            Self::Long(number) => Some(*number as f64),
            Self::Double(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn apply(
        self,
        operator: ArithmeticOperator,
        other: SqlValue<'a>,
    ) -> Result<SqlValue<'a>, EvaluationError> {
        let operands = EvaluationError::Operands(operator.symbol());
        match (self, other) {
            (Self::Null, _) | (_, Self::Null) => Ok(Self::Null),
            (Self::Other, _) | (_, Self::Other) => Err(operands),
            (Self::Long(one), Self::Long(other)) => operator.of_integers(one, other).map(Self::Long),
            (one @ Self::Text(_), other) | (one, other @ Self::Text(_)) => match operator {
                ArithmeticOperator::Add => Ok(Self::Text(format!("{one}{other}").into())),
                _ => Err(operands),
            },
            (Self::Time(time), Self::Span(span)) => {
                operator.of_ticks(time, span / TICKS_PER_MILLISECOND).map(Self::Time)
            }
            (Self::Span(one), Self::Span(other)) => operator.of_ticks(one, other).map(Self::Span),
            (Self::Time(one), Self::Time(other)) if operator == ArithmeticOperator::Subtract => {
                let span = one.checked_sub(other).and_then(|span| span.checked_mul(TICKS_PER_MILLISECOND));
                span.map(Self::Span).ok_or(EvaluationError::Overflow)
            }
            (one, other) => match (one.as_double(), other.as_double()) {
                (Some(one), Some(other)) => Ok(Self::Double(operator.of_doubles(one, other))),
                _ => Err(operands),
            },
        }
    }

    pub(super) fn negate(self) -> Result<Self, EvaluationError> {
        match self {
            Self::Null => Ok(Self::Null),
            Self::Long(number) => number.checked_neg().map(Self::Long).ok_or(EvaluationError::Overflow),
            Self::Double(number) => Ok(Self::Double(-number)),
            Self::Span(ticks) => ticks.checked_neg().map(Self::Span).ok_or(EvaluationError::Overflow),
            _ => Err(EvaluationError::Operands("-")),
        }
    }
}

/// As text in a concatenation.
impl fmt::Display for SqlValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null | Self::Other => Ok(()),
            Self::Boolean(true) => f.write_str("True"),
            Self::Boolean(false) => f.write_str("False"),
            Self::Long(number) | Self::Time(number) | Self::Span(number) => number.fmt(f),
            Self::Double(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::Guid(id) => id.fmt(f),
        }
    }
}

impl Comparison {
    fn of_order(self, order: Option<Ordering>) -> bool {
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::NotEqual => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }

    /// For types without an order.
    fn of_equality(self, equal: bool) -> Option<bool> {
        match self {
            Self::Equal => Some(equal),
            Self::NotEqual => Some(!equal),
            _ => None,
        }
    }
}

impl ArithmeticOperator {
    fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    fn of_integers(self, one: i64, other: i64) -> Result<i64, EvaluationError> {
        let result = match self {
            Self::Add => one.checked_add(other),
            Self::Subtract => one.checked_sub(other),
            Self::Multiply => one.checked_mul(other),
            Self::Divide | Self::Remainder if other == 0 => return Err(EvaluationError::DivisionByZero),
            Self::Divide => one.checked_div(other),
            Self::Remainder => one.checked_rem(other),
        };
        result.ok_or(EvaluationError::Overflow)
    }

    fn of_doubles(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Add => one + other,
            Self::Subtract => one - other,
            Self::Multiply => one * other,
            Self::Divide => one / other,
            Self::Remainder => one % other,
        }
    }

    fn of_ticks(self, one: i64, other: i64) -> Result<i64, EvaluationError> {
        match self {
            Self::Add | Self::Subtract => self.of_integers(one, other),
            _ => Err(EvaluationError::Operands(self.symbol())),
        }
    }
}

/// .NET counts from the year 1.
fn from_net_ticks<'a>(ticks: i64) -> SqlValue<'a> {
    const UNIX_EPOCH: i64 = 621_355_968_000_000_000;
    ticks.checked_sub(UNIX_EPOCH).map_or(SqlValue::Other, |ticks| SqlValue::Time(ticks / TICKS_PER_MILLISECOND))
}

/// In the form of the service, which every stored decimal has that fits it (`connection::decimals`).
fn decimal_to_double(bytes: [u8; 16]) -> f64 {
    const BIAS: i32 = 6176;
    let exponent = (i32::from(bytes[0] & 0x7f) << 9 | i32::from(bytes[1] >> 1)) - BIAS;
    let coefficient = u128::from_be_bytes(bytes) & ((1 << 96) - 1);
    let magnitude = coefficient as f64 * 10_f64.powi(exponent);
    if bytes[0] & 0x80 == 0 { magnitude } else { -magnitude }
}
