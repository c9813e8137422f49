//! Any AMQP value as a tree: for cold paths such as management requests, filters and link properties.
//!
//! Uses [`crate::codec`]. The message path does not use it: it works with [`crate::codec::ValueRef`].

mod array;
mod decode;
mod encode;
mod map;

use bytes::Bytes;
use uuid::Uuid;

pub use array::{Array, ElementType};
pub use map::Map;

use crate::Symbol;

/// One AMQP value, type-exact: `Int(1)` and `Long(1)` differ.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Boolean(bool),
    Ubyte(u8),
    Ushort(u16),
    Uint(u32),
    Ulong(u64),
    Byte(i8),
    Short(i16),
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    /// IEEE 754 decimals are passed through, not computed.
    Decimal32([u8; 4]),
    Decimal64([u8; 8]),
    Decimal128([u8; 16]),
    Char(char),
    /// Milliseconds since the Unix epoch.
    Timestamp(i64),
    Uuid(Uuid),
    Binary(Bytes),
    String(String),
    Symbol(Symbol),
    List(Vec<Value>),
    Map(Map),
    Array(Array),
    Described(Box<Described>),
}

/// A value with a descriptor that says what it means.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    pub descriptor: Value,
    pub value: Value,
}

impl Value {
    pub fn described(descriptor: u64, value: Value) -> Self {
        Self::Described(Box::new(Described { descriptor: Self::Ulong(descriptor), value }))
    }

    pub fn symbol(name: &'static str) -> Self {
        Self::Symbol(Symbol::from_static(name))
    }

    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Boolean(value) = self { Some(*value) } else { None }
    }

    /// Any integer type whose value fits.
    pub fn as_integer(&self) -> Option<i64> {
        match *self {
            Self::Ubyte(value) => Some(value.into()),
            Self::Ushort(value) => Some(value.into()),
            Self::Uint(value) => Some(value.into()),
            Self::Ulong(value) => value.try_into().ok(),
            Self::Byte(value) => Some(value.into()),
            Self::Short(value) => Some(value.into()),
            Self::Int(value) => Some(value.into()),
            Self::Long(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_timestamp(&self) -> Option<i64> {
        if let Self::Timestamp(value) = self { Some(*value) } else { None }
    }

    pub fn as_uuid(&self) -> Option<Uuid> {
        if let Self::Uuid(value) = self { Some(*value) } else { None }
    }

    pub fn as_binary(&self) -> Option<&Bytes> {
        if let Self::Binary(value) = self { Some(value) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(value) = self { Some(value) } else { None }
    }

    /// A string or a symbol.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::String(value) => Some(value),
            Self::Symbol(value) => Some(value.as_str()),
            _ => None,
        }
    }

    /// The items of a list, or of an array: clients use either for the same field.
    pub fn as_items(&self) -> Option<&[Value]> {
        match self {
            Self::List(items) => Some(items),
            Self::Array(array) => Some(array.items()),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Map> {
        if let Self::Map(value) = self { Some(value) } else { None }
    }

    pub fn as_described(&self) -> Option<&Described> {
        if let Self::Described(value) = self { Some(value) } else { None }
    }
}

macro_rules! from_native {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Self {
                    Self::$variant(value)
                }
            }
        )*
    };
}

from_native! {
    bool => Boolean, u8 => Ubyte, u16 => Ushort, u32 => Uint, u64 => Ulong, i8 => Byte, i16 => Short, i32 => Int, i64 => Long,
    f32 => Float, f64 => Double, char => Char, Uuid => Uuid, Bytes => Binary, String => String, Symbol => Symbol,
    Vec<Value> => List, Map => Map, Array => Array,
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}
