//! Bytes into a value tree, within the bounds of [`MAX_DEPTH`] and [`MAX_ITEMS`].

use bytes::Bytes;
use uuid::Uuid;

use super::array::{Array, ElementType};
use super::{Described, Map, Value};
use crate::Symbol;
use crate::codec::{DecodeError, Decoder, MAX_DEPTH, MAX_ITEMS, code};

/// The remaining limits while one value is decoded.
struct DecodeBudget {
    depth: u32,
    items: u32,
}

impl Value {
    /// Reads one value.
    pub fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        DecodeBudget { depth: MAX_DEPTH, items: MAX_ITEMS }.value(reader)
    }

    /// Reads bytes that hold exactly one value.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Decoder::new(bytes);
        let value = Self::decode(&mut reader)?;
        if reader.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }
}

impl Map {
    /// Reads one map; null is an empty one.
    pub fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match Value::decode(reader)? {
            Value::Map(map) => Ok(map),
            Value::Null => Ok(Self::new()),
            _ => Err(DecodeError::OutOfRange("map")),
        }
    }
}

impl DecodeBudget {
    fn value(&mut self, reader: &mut Decoder<'_>) -> Result<Value, DecodeError> {
        match reader.byte()? {
            code::DESCRIBED => self.deeper(|budget| {
                let descriptor = budget.value(reader)?;
                let value = budget.value(reader)?;
                Ok(Value::Described(Box::new(Described { descriptor, value })))
            }),
            format => self.body(format, reader),
        }
    }

    /// One value whose format code is already read.
    fn body(&mut self, format: u8, reader: &mut Decoder<'_>) -> Result<Value, DecodeError> {
        self.items = self.items.checked_sub(1).ok_or(DecodeError::TooManyItems)?;
        Ok(match format {
            code::NULL => Value::Null,
            code::TRUE => Value::Boolean(true),
            code::FALSE => Value::Boolean(false),
            code::BOOLEAN => match reader.byte()? {
                0 => Value::Boolean(false),
                1 => Value::Boolean(true),
                _ => return Err(DecodeError::OutOfRange("boolean")),
            },
            code::UINT0 => Value::Uint(0),
            code::ULONG0 => Value::Ulong(0),
            code::UBYTE => Value::Ubyte(reader.byte()?),
            code::BYTE => Value::Byte(i8::from_be_bytes(reader.array()?)),
            code::SMALL_UINT => Value::Uint(reader.byte()?.into()),
            code::SMALL_ULONG => Value::Ulong(reader.byte()?.into()),
            code::SMALL_INT => Value::Int(i8::from_be_bytes(reader.array()?).into()),
            code::SMALL_LONG => Value::Long(i8::from_be_bytes(reader.array()?).into()),
            code::USHORT => Value::Ushort(u16::from_be_bytes(reader.array()?)),
            code::SHORT => Value::Short(i16::from_be_bytes(reader.array()?)),
            code::UINT => Value::Uint(u32::from_be_bytes(reader.array()?)),
            code::INT => Value::Int(i32::from_be_bytes(reader.array()?)),
            code::FLOAT => Value::Float(f32::from_be_bytes(reader.array()?)),
            code::CHAR => character(u32::from_be_bytes(reader.array()?))?,
            code::DECIMAL32 => Value::Decimal32(reader.array()?),
            code::ULONG => Value::Ulong(u64::from_be_bytes(reader.array()?)),
            code::LONG => Value::Long(i64::from_be_bytes(reader.array()?)),
            code::DOUBLE => Value::Double(f64::from_be_bytes(reader.array()?)),
            code::TIMESTAMP => Value::Timestamp(i64::from_be_bytes(reader.array()?)),
            code::DECIMAL64 => Value::Decimal64(reader.array()?),
            code::DECIMAL128 => Value::Decimal128(reader.array()?),
            code::UUID => Value::Uuid(Uuid::from_bytes(reader.array()?)),
            code::BINARY8 | code::BINARY32 => Value::Binary(reader.owner().slice_ref(slice(format, reader)?)),
            code::STRING8 | code::STRING32 => Value::String(crate::codec::utf8(slice(format, reader)?)?.to_owned()),
            code::SYMBOL8 | code::SYMBOL32 => {
                Value::Symbol(Symbol::from(crate::codec::ascii(slice(format, reader)?)?.to_owned()))
            }
            // As deep as any other list: inside an array it is written in the wide form, which is.
            code::LIST0 => self.deeper(|_| Ok(Value::List(Vec::new())))?,
            code::LIST8 | code::LIST32 => self.deeper(|budget| budget.list(format, reader))?,
            code::MAP8 | code::MAP32 => self.deeper(|budget| budget.map(format, reader))?,
            code::ARRAY8 | code::ARRAY32 => self.deeper(|budget| budget.array(format, reader))?,
            unknown => return Err(DecodeError::UnknownCode(unknown)),
        })
    }

    fn deeper<T>(&mut self, decode: impl FnOnce(&mut Self) -> Result<T, DecodeError>) -> Result<T, DecodeError> {
        self.depth = self.depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
        let decoded = decode(self);
        self.depth += 1;
        decoded
    }

    fn list(&mut self, format: u8, reader: &mut Decoder<'_>) -> Result<Value, DecodeError> {
        let (mut body, count) = compound(format, reader)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.value(&mut body)?);
        }
        whole(body)?;
        Ok(Value::List(items))
    }

    fn map(&mut self, format: u8, reader: &mut Decoder<'_>) -> Result<Value, DecodeError> {
        let (mut body, count) = compound(format, reader)?;
        if count % 2 != 0 {
            return Err(DecodeError::OddMap);
        }
        let mut map = Map::new();
        for _ in 0..count / 2 {
            let key = self.value(&mut body)?;
            let value = self.value(&mut body)?;
            map.push(key, value);
        }
        whole(body)?;
        Ok(Value::Map(map))
    }

    fn array(&mut self, format: u8, reader: &mut Decoder<'_>) -> Result<Value, DecodeError> {
        // Not `compound`: items of zero width make a count beyond the bytes legal; `items` bounds it instead.
        let (size, wide) = match format {
            code::ARRAY8 => (usize::from(reader.byte()?), false),
            _ => (u32::from_be_bytes(reader.array()?) as usize, true),
        };
        let slice = reader.take(size)?;
        let mut body = Decoder::within(reader.owner(), slice);
        let count = if wide { u32::from_be_bytes(body.array()?) } else { body.byte()?.into() };
        if count == 0 && body.is_empty() {
            // The Python SDK writes empty arrays without a constructor.
            return Ok(Value::Array(Array::new(ElementType::Null, Vec::new()).expect("no items, no type broken")));
        }
        let mut element = body.byte()?;
        let descriptor = match element {
            code::DESCRIBED => {
                let descriptor = self.value(&mut body)?;
                element = body.byte()?;
                Some(descriptor)
            }
            _ => None,
        };
        let element_type = ElementType::from_code(element).ok_or(DecodeError::UnknownCode(element))?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.body(element, &mut body)?);
        }
        whole(body)?;
        let array = Array::new(element_type, items).expect("items of one format code have one type");
        Ok(Value::Array(match descriptor {
            Some(descriptor) => array.described_as(descriptor),
            None => array,
        }))
    }
}

fn compound<'a>(format: u8, reader: &mut Decoder<'a>) -> Result<(Decoder<'a>, u32), DecodeError> {
    match format {
        code::LIST8 | code::MAP8 => reader.compound8(),
        _ => reader.compound32(),
    }
}

fn slice<'a>(format: u8, reader: &mut Decoder<'a>) -> Result<&'a [u8], DecodeError> {
    let length = match format {
        code::BINARY8 | code::STRING8 | code::SYMBOL8 => reader.byte()?.into(),
        _ => u32::from_be_bytes(reader.array()?) as usize,
    };
    reader.take(length)
}

fn whole(body: Decoder<'_>) -> Result<(), DecodeError> {
    if body.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
}

fn character(scalar: u32) -> Result<Value, DecodeError> {
    char::from_u32(scalar).map(Value::Char).ok_or(DecodeError::OutOfRange("char"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_deep_nesting_is_an_error_and_no_stack_overflow() {
        let mut bytes = Vec::new();
        for depth in (0..200u8).rev() {
            let size = u32::from(depth) * 9 + 5;
            bytes.extend_from_slice(&[code::LIST32]);
            bytes.extend_from_slice(&size.to_be_bytes());
            bytes.extend_from_slice(&1u32.to_be_bytes());
        }
        bytes.push(code::NULL);
        assert_eq!(Value::from_bytes(&Bytes::from(bytes)), Err(DecodeError::TooDeep));
    }

    #[test]
    fn a_value_of_maximum_depth_survives_a_round_trip() {
        let mut deepest = 0;
        for depth in 0..=MAX_DEPTH {
            let mut bytes = vec![code::ARRAY8, 2, 1, code::LIST0];
            for _ in 0..depth {
                let size = u32::try_from(bytes.len() + 4).unwrap();
                bytes = [&[code::LIST32][..], &size.to_be_bytes(), &1u32.to_be_bytes(), &bytes].concat();
            }
            let Ok(value) = Value::from_bytes(&Bytes::from(bytes)) else { continue };
            let mut buffer = bytes::BytesMut::new();
            value.encode(&mut buffer);
            assert_eq!(Value::from_bytes(&buffer.freeze()), Ok(value), "{depth}");
            deepest = depth;
        }
        assert_eq!(deepest, MAX_DEPTH - 2);
    }

    #[test]
    fn an_array_of_four_billion_nulls_in_ten_bytes_is_refused() {
        let bytes = Bytes::from_static(&[code::ARRAY32, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, code::NULL]);
        assert_eq!(Value::from_bytes(&bytes), Err(DecodeError::TooManyItems));
    }

    #[test]
    fn an_empty_array_remembers_its_type() {
        let mut buffer = bytes::BytesMut::new();
        let value = Value::Array(Array::timestamps([]));
        value.encode(&mut buffer);
        assert_eq!(Value::from_bytes(&buffer.freeze()), Ok(value));
    }
}
