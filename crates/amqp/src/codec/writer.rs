//! Writers for lists and maps whose size is known only at the end.
//!
//! Both start with the one-byte form and widen if the content outgrows it, so small values stay small and the
//! common case never moves a byte.

use bytes::{BufMut, BytesMut};
use uuid::Uuid;

use super::{ValueRef, code, encode};
use crate::Value;

/// Writes a list; [`finish`](Self::finish) leaves out trailing nulls, as AMQP allows.
#[derive(Debug)]
pub struct ListWriter<'b> {
    buffer: &'b mut BytesMut,
    start: usize,
    count: u32,
    nulls: u32,
}

/// Writes a map.
#[derive(Debug)]
pub struct MapWriter<'b> {
    buffer: &'b mut BytesMut,
    start: usize,
    count: u32,
}

const HEAD8: usize = 3;
const HEAD32: usize = 9;

impl<'b> ListWriter<'b> {
    pub fn new(buffer: &'b mut BytesMut) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&[code::LIST8, 0, 0]);
        Self { buffer, start, count: 0, nulls: 0 }
    }

    /// A described list, as performatives and message sections are.
    pub fn described(buffer: &'b mut BytesMut, descriptor: u64) -> Self {
        encode::descriptor(buffer, descriptor);
        Self::new(buffer)
    }

    /// The buffer, ready for one more field.
    #[inline]
    pub fn field(&mut self) -> &mut BytesMut {
        for _ in 0..self.nulls {
            self.buffer.put_u8(code::NULL);
        }
        self.count += self.nulls + 1;
        self.nulls = 0;
        self.buffer
    }

    #[inline]
    pub fn null(&mut self) -> &mut Self {
        self.nulls += 1;
        self
    }

    /// One optional field, written by `put`.
    #[inline]
    pub fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut BytesMut, T)) -> &mut Self {
        match value {
            Some(value) => put(self.field(), value),
            None => self.nulls += 1,
        }
        self
    }

    #[inline]
    pub fn uint(&mut self, value: u32) -> &mut Self {
        encode::uint(self.field(), value);
        self
    }

    #[inline]
    pub fn boolean(&mut self, value: bool) -> &mut Self {
        encode::boolean(self.field(), value);
        self
    }

    /// A boolean whose default is false.
    #[inline]
    pub fn flag(&mut self, value: bool) -> &mut Self {
        self.optional(value.then_some(true), encode::boolean)
    }

    /// Ends the list without leaving out trailing nulls: clients index a performative's fields by position.
    #[inline]
    pub fn finish_full(&mut self) {
        for _ in 0..self.nulls {
            self.buffer.put_u8(code::NULL);
        }
        self.count += self.nulls;
        self.nulls = 0;
        self.finish();
    }

    pub fn finish(&mut self) {
        if self.count == 0 {
            self.buffer.truncate(self.start);
            self.buffer.put_u8(code::LIST0);
        } else {
            finish_compound(self.buffer, self.start, self.count, code::LIST32);
        }
    }
}

impl<'b> MapWriter<'b> {
    pub fn new(buffer: &'b mut BytesMut) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&[code::MAP8, 0, 0]);
        Self { buffer, start, count: 0 }
    }

    pub fn described(buffer: &'b mut BytesMut, descriptor: u64) -> Self {
        encode::descriptor(buffer, descriptor);
        Self::new(buffer)
    }

    /// The buffer, ready for one key and its value.
    pub fn entry(&mut self) -> &mut BytesMut {
        self.count += 2;
        self.buffer
    }

    /// The buffer, after a symbol key, ready for its value.
    pub fn symbol(&mut self, key: &str) -> &mut BytesMut {
        let buffer = self.entry();
        encode::symbol(buffer, key);
        buffer
    }

    /// The buffer, after a string key, ready for its value.
    pub fn string(&mut self, key: &str) -> &mut BytesMut {
        let buffer = self.entry();
        encode::string(buffer, key);
        buffer
    }

    /// An entry as it was received.
    pub fn copy(&mut self, key: ValueRef<'_>, value: ValueRef<'_>) {
        let buffer = self.entry();
        buffer.extend_from_slice(key.encoded());
        buffer.extend_from_slice(value.encoded());
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn finish(self) {
        finish_compound(self.buffer, self.start, self.count, code::MAP32);
    }

    /// Removes everything since `start`, descriptor included, if no entry was written.
    pub(crate) fn finish_or_remove(self, start: usize) {
        if self.count == 0 { self.buffer.truncate(start) } else { self.finish() }
    }
}

macro_rules! symbol_entries {
    ($($name:ident($type:ty) = $put:path),* $(,)?) => {
        /// Entries with a symbol key, as annotations and link properties have them.
        impl MapWriter<'_> {
            $(
                pub fn $name(&mut self, key: &str, value: $type) -> &mut Self {
                    $put(self.symbol(key), value);
                    self
                }
            )*
        }
    };
}

symbol_entries! {
    put_long(i64) = encode::long, put_timestamp(i64) = encode::timestamp, put_string(&str) = encode::string, put_symbol(&str) = encode::symbol,
    put_uuid(Uuid) = encode::uuid, put_int(i32) = encode::int, put_uint(u32) = encode::uint, put_ulong(u64) = encode::ulong,
    put_short(i16) = encode::short, put_boolean(bool) = encode::boolean, put_binary(&[u8]) = encode::binary, put_value(&Value) = Value::write,
}

/// Fills in size and count of the compound that begins at `start`, widening it if one byte each is not enough.
#[inline]
fn finish_compound(buffer: &mut BytesMut, start: usize, count: u32, wide: u8) {
    let body = buffer.len() - start - HEAD8;
    if let (Ok(size), Ok(count)) = (u8::try_from(body + 1), u8::try_from(count)) {
        buffer[start + 1] = size;
        buffer[start + 2] = count;
        return;
    }
    let size = u32::try_from(body + 4).expect("an AMQP value is shorter than 4 GiB");
    buffer.put_bytes(0, HEAD32 - HEAD8);
    buffer.copy_within(start + HEAD8..start + HEAD8 + body, start + HEAD32);
    buffer[start] = wide;
    buffer[start + 1..start + 5].copy_from_slice(&size.to_be_bytes());
    buffer[start + 5..start + 9].copy_from_slice(&count.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_nulls_are_left_out_and_inner_ones_kept() {
        let mut buffer = BytesMut::new();
        ListWriter::new(&mut buffer).null().boolean(true).null().null().finish();
        assert_eq!(&buffer[..], [code::LIST8, 3, 2, code::NULL, code::TRUE]);
    }

    #[test]
    fn a_list_of_nothing_is_list0() {
        let mut buffer = BytesMut::new();
        ListWriter::new(&mut buffer).null().finish();
        assert_eq!(&buffer[..], [code::LIST0]);
    }

    #[test]
    fn a_map_that_outgrows_one_byte_is_widened() {
        let mut buffer = BytesMut::new();
        let mut map = MapWriter::new(&mut buffer);
        map.put_string("key", &"x".repeat(300));
        map.finish();
        assert_eq!(buffer[0], code::MAP32);
        let bytes = buffer.freeze();
        let value = Value::decode(&mut super::super::Decoder::new(&bytes)).unwrap();
        assert_eq!(value.as_map().unwrap().get("key").unwrap().as_str(), Some("x".repeat(300).as_str()));
    }
}
