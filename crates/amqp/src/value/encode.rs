//! A value tree into bytes: the short form on its own, the wide form inside arrays.

use bytes::{BufMut, BytesMut};

use super::{Map, Value};
use crate::codec::{ListWriter, MapWriter, code, encode};

impl Value {
    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Null => encode::null(buffer),
            Self::Boolean(value) => encode::boolean(buffer, *value),
            Self::Ubyte(value) => encode::ubyte(buffer, *value),
            Self::Ushort(value) => encode::ushort(buffer, *value),
            Self::Uint(value) => encode::uint(buffer, *value),
            Self::Ulong(value) => encode::ulong(buffer, *value),
            Self::Byte(value) => encode::byte(buffer, *value),
            Self::Short(value) => encode::short(buffer, *value),
            Self::Int(value) => encode::int(buffer, *value),
            Self::Long(value) => encode::long(buffer, *value),
            Self::Float(value) => encode::float(buffer, *value),
            Self::Double(value) => encode::double(buffer, *value),
            Self::Decimal32(value) => encode::fixed(buffer, code::DECIMAL32, *value),
            Self::Decimal64(value) => encode::fixed(buffer, code::DECIMAL64, *value),
            Self::Decimal128(value) => encode::fixed(buffer, code::DECIMAL128, *value),
            Self::Char(value) => encode::character(buffer, *value),
            Self::Timestamp(value) => encode::timestamp(buffer, *value),
            Self::Uuid(value) => encode::uuid(buffer, *value),
            Self::Binary(value) => encode::binary(buffer, value),
            Self::String(value) => encode::string(buffer, value),
            Self::Symbol(value) => encode::symbol(buffer, value.as_str()),
            Self::List(items) => encode_list(buffer, items),
            Self::Map(map) => map.encode(buffer),
            Self::Array(array) => {
                buffer.put_u8(code::ARRAY32);
                array.encode_body(buffer);
            }
            Self::Described(described) => {
                buffer.put_u8(code::DESCRIBED);
                described.descriptor.encode(buffer);
                described.value.encode(buffer);
            }
        }
    }

    /// [`encode`](Self::encode) with swapped arguments, to match the functions of [`encode`].
    pub fn write(buffer: &mut BytesMut, value: &Self) {
        value.encode(buffer);
    }

    /// The value without its constructor, in the form of [`super::ElementType::code`].
    pub(super) fn encode_wide_body(&self, buffer: &mut BytesMut) {
        match self {
            Self::Null => {}
            Self::Boolean(value) => buffer.put_u8((*value).into()),
            Self::Ubyte(value) => buffer.put_u8(*value),
            Self::Ushort(value) => buffer.put_u16(*value),
            Self::Uint(value) => buffer.put_u32(*value),
            Self::Ulong(value) => buffer.put_u64(*value),
            Self::Byte(value) => buffer.put_i8(*value),
            Self::Short(value) => buffer.put_i16(*value),
            Self::Int(value) => buffer.put_i32(*value),
            Self::Long(value) | Self::Timestamp(value) => buffer.put_i64(*value),
            Self::Float(value) => buffer.put_f32(*value),
            Self::Double(value) => buffer.put_f64(*value),
            Self::Decimal32(value) => buffer.extend_from_slice(value),
            Self::Decimal64(value) => buffer.extend_from_slice(value),
            Self::Decimal128(value) => buffer.extend_from_slice(value),
            Self::Char(value) => buffer.put_u32((*value).into()),
            Self::Uuid(value) => buffer.extend_from_slice(value.as_bytes()),
            Self::Binary(value) => encode_wide_slice(buffer, value),
            Self::String(value) => encode_wide_slice(buffer, value.as_bytes()),
            Self::Symbol(value) => encode_wide_slice(buffer, value.as_str().as_bytes()),
            Self::List(items) => encode_wide_items(buffer, items.len(), items.iter()),
            Self::Map(map) => {
                encode_wide_items(buffer, map.len() * 2, map.iter().flat_map(|(key, value)| [key, value]))
            }
            Self::Array(array) => array.encode_body(buffer),
            Self::Described(_) => unreachable!("an array's items carry no descriptor: checked by Array::new"),
        }
    }
}

impl Map {
    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut map = MapWriter::new(buffer);
        for (key, value) in self.iter() {
            let entry = map.entry();
            key.encode(entry);
            value.encode(entry);
        }
        map.finish();
    }

    /// [`encode`](Self::encode) with swapped arguments, to match the functions of [`encode`].
    pub fn write(buffer: &mut BytesMut, map: &Self) {
        map.encode(buffer);
    }
}

/// Unlike a performative's list, a value's list keeps its trailing nulls.
fn encode_list(buffer: &mut BytesMut, items: &[Value]) {
    let mut list = ListWriter::new(buffer);
    for item in items {
        item.encode(list.field());
    }
    list.finish();
}

fn encode_wide_slice(buffer: &mut BytesMut, value: &[u8]) {
    buffer.put_u32(u32::try_from(value.len()).expect("an AMQP value is shorter than 4 GiB"));
    buffer.extend_from_slice(value);
}

fn encode_wide_items<'v>(buffer: &mut BytesMut, count: usize, items: impl Iterator<Item = &'v Value>) {
    let start = buffer.len();
    buffer.put_u32(0);
    buffer.put_u32(u32::try_from(count).expect("an AMQP list has fewer than 2^32 items"));
    items.for_each(|item| item.encode(buffer));
    let size = u32::try_from(buffer.len() - start - 4).expect("an AMQP value is shorter than 4 GiB");
    buffer[start..start + 4].copy_from_slice(&size.to_be_bytes());
}
