//! Arrays: items of one type, whose constructor is written once.

use bytes::{BufMut, BytesMut};
use uuid::Uuid;

use super::Value;
use crate::Symbol;
use crate::codec::code;

/// The type of an array's items. An empty array has one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    Null,
    Boolean,
    Ubyte,
    Ushort,
    Uint,
    Ulong,
    Byte,
    Short,
    Int,
    Long,
    Float,
    Double,
    Decimal32,
    Decimal64,
    Decimal128,
    Char,
    Timestamp,
    Uuid,
    Binary,
    String,
    Symbol,
    List,
    Map,
    Array,
}

/// Items of one type, checked on construction. `descriptor` is set for an array of described values, whose
/// items are then the values without it.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    element: ElementType,
    descriptor: Option<Box<Value>>,
    items: Vec<Value>,
}

impl Array {
    /// `None` if an item is not of the type.
    pub fn new(element: ElementType, items: Vec<Value>) -> Option<Self> {
        let fits = items.iter().all(|item| ElementType::of(item) == Some(element));
        fits.then_some(Self { element, descriptor: None, items })
    }

    /// An array of described values: the descriptor is written once, before the items' constructor.
    #[must_use]
    pub fn described_as(mut self, descriptor: Value) -> Self {
        self.descriptor = Some(Box::new(descriptor));
        self
    }

    pub fn longs(items: impl IntoIterator<Item = i64>) -> Self {
        Self::of(ElementType::Long, items, Value::Long)
    }

    pub fn timestamps(items: impl IntoIterator<Item = i64>) -> Self {
        Self::of(ElementType::Timestamp, items, Value::Timestamp)
    }

    pub fn uuids(items: impl IntoIterator<Item = Uuid>) -> Self {
        Self::of(ElementType::Uuid, items, Value::Uuid)
    }

    pub fn strings(items: impl IntoIterator<Item = String>) -> Self {
        Self::of(ElementType::String, items, Value::String)
    }

    pub fn symbols(items: impl IntoIterator<Item = Symbol>) -> Self {
        Self::of(ElementType::Symbol, items, Value::Symbol)
    }

    fn of<T>(element: ElementType, items: impl IntoIterator<Item = T>, wrap: impl Fn(T) -> Value) -> Self {
        Self { element, descriptor: None, items: items.into_iter().map(wrap).collect() }
    }

    pub fn element(&self) -> ElementType {
        self.element
    }

    pub fn descriptor(&self) -> Option<&Value> {
        self.descriptor.as_deref()
    }

    pub fn items(&self) -> &[Value] {
        &self.items
    }

    /// Everything after the array's own format code, in the 32-bit form.
    pub(super) fn encode_body(&self, buffer: &mut BytesMut) {
        let start = buffer.len();
        buffer.put_u32(0);
        buffer.put_u32(u32::try_from(self.items.len()).expect("an AMQP array has fewer than 2^32 items"));
        if let Some(descriptor) = &self.descriptor {
            buffer.put_u8(code::DESCRIBED);
            descriptor.encode(buffer);
        }
        buffer.put_u8(self.element.code());
        for item in &self.items {
            item.encode_wide_body(buffer);
        }
        let size = u32::try_from(buffer.len() - start - 4).expect("an AMQP value is shorter than 4 GiB");
        buffer[start..start + 4].copy_from_slice(&size.to_be_bytes());
    }
}

impl ElementType {
    fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Boolean(_) => Self::Boolean,
            Value::Ubyte(_) => Self::Ubyte,
            Value::Ushort(_) => Self::Ushort,
            Value::Uint(_) => Self::Uint,
            Value::Ulong(_) => Self::Ulong,
            Value::Byte(_) => Self::Byte,
            Value::Short(_) => Self::Short,
            Value::Int(_) => Self::Int,
            Value::Long(_) => Self::Long,
            Value::Float(_) => Self::Float,
            Value::Double(_) => Self::Double,
            Value::Decimal32(_) => Self::Decimal32,
            Value::Decimal64(_) => Self::Decimal64,
            Value::Decimal128(_) => Self::Decimal128,
            Value::Char(_) => Self::Char,
            Value::Timestamp(_) => Self::Timestamp,
            Value::Uuid(_) => Self::Uuid,
            Value::Binary(_) => Self::Binary,
            Value::String(_) => Self::String,
            Value::Symbol(_) => Self::Symbol,
            Value::List(_) => Self::List,
            Value::Map(_) => Self::Map,
            Value::Array(_) => Self::Array,
            // The descriptor belongs to the array, not to the item.
            Value::Described(_) => return None,
        })
    }

    /// The one format code we write for items of this type: the widest, so that it fits all of them.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Null => code::NULL,
            Self::Boolean => code::BOOLEAN,
            Self::Ubyte => code::UBYTE,
            Self::Ushort => code::USHORT,
            Self::Uint => code::UINT,
            Self::Ulong => code::ULONG,
            Self::Byte => code::BYTE,
            Self::Short => code::SHORT,
            Self::Int => code::INT,
            Self::Long => code::LONG,
            Self::Float => code::FLOAT,
            Self::Double => code::DOUBLE,
            Self::Decimal32 => code::DECIMAL32,
            Self::Decimal64 => code::DECIMAL64,
            Self::Decimal128 => code::DECIMAL128,
            Self::Char => code::CHAR,
            Self::Timestamp => code::TIMESTAMP,
            Self::Uuid => code::UUID,
            Self::Binary => code::BINARY32,
            Self::String => code::STRING32,
            Self::Symbol => code::SYMBOL32,
            Self::List => code::LIST32,
            Self::Map => code::MAP32,
            Self::Array => code::ARRAY32,
        }
    }

    /// The type that a format code constructs.
    pub(super) fn from_code(format: u8) -> Option<Self> {
        Some(match format {
            code::NULL => Self::Null,
            code::TRUE | code::FALSE | code::BOOLEAN => Self::Boolean,
            code::UBYTE => Self::Ubyte,
            code::USHORT => Self::Ushort,
            code::UINT | code::SMALL_UINT | code::UINT0 => Self::Uint,
            code::ULONG | code::SMALL_ULONG | code::ULONG0 => Self::Ulong,
            code::BYTE => Self::Byte,
            code::SHORT => Self::Short,
            code::INT | code::SMALL_INT => Self::Int,
            code::LONG | code::SMALL_LONG => Self::Long,
            code::FLOAT => Self::Float,
            code::DOUBLE => Self::Double,
            code::DECIMAL32 => Self::Decimal32,
            code::DECIMAL64 => Self::Decimal64,
            code::DECIMAL128 => Self::Decimal128,
            code::CHAR => Self::Char,
            code::TIMESTAMP => Self::Timestamp,
            code::UUID => Self::Uuid,
            code::BINARY8 | code::BINARY32 => Self::Binary,
            code::STRING8 | code::STRING32 => Self::String,
            code::SYMBOL8 | code::SYMBOL32 => Self::Symbol,
            code::LIST0 | code::LIST8 | code::LIST32 => Self::List,
            code::MAP8 | code::MAP32 => Self::Map,
            code::ARRAY8 | code::ARRAY32 => Self::Array,
            _ => return None,
        })
    }
}
