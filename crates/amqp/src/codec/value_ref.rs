//! One encoded value, kept as received: borrowed as [`ValueRef`], owned (still sharing the buffer) as [`RawValue`].
//!
//! The typed accessors are exact, because clients distinguish AMQP types: a `long` is not a `timestamp`. They return `None`
//! for any other type and for malformed content.

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::decoder::utf8;
use super::{DecodeError, Decoder, Descriptor, ListFields, MapEntries, code};
use crate::Value;

/// One encoded value inside a larger buffer.
#[derive(Clone, Copy)]
pub struct ValueRef<'a> {
    owner: &'a Bytes,
    encoded: &'a [u8],
}

/// One encoded value that shares ownership of its bytes, so that it can be echoed exactly.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawValue(Bytes);

impl<'a> ValueRef<'a> {
    pub(crate) fn new(owner: &'a Bytes, encoded: &'a [u8]) -> Self {
        Self { owner, encoded }
    }

    /// The encoding: constructor and data.
    pub fn encoded(&self) -> &'a [u8] {
        self.encoded
    }

    /// The format code; 0 for a described value.
    pub fn code(&self) -> u8 {
        self.encoded.first().copied().unwrap_or(code::NULL)
    }

    pub fn is_null(&self) -> bool {
        self.code() == code::NULL
    }

    pub fn reader(&self) -> Decoder<'a> {
        Decoder::within(self.owner, self.encoded)
    }

    pub fn as_bool(&self) -> Option<bool> {
        self.reader().boolean().ok()?
    }

    pub fn as_ubyte(&self) -> Option<u8> {
        self.reader().ubyte().ok()?
    }

    pub fn as_uint(&self) -> Option<u32> {
        self.reader().uint().ok()?
    }

    pub fn as_ulong(&self) -> Option<u64> {
        self.reader().ulong().ok()?
    }

    pub fn as_int(&self) -> Option<i32> {
        self.reader().int().ok()?
    }

    pub fn as_long(&self) -> Option<i64> {
        self.reader().long().ok()?
    }

    /// Milliseconds since the Unix epoch.
    pub fn as_timestamp(&self) -> Option<i64> {
        self.reader().timestamp().ok()?
    }

    pub fn as_uuid(&self) -> Option<Uuid> {
        self.reader().uuid().ok()?
    }

    pub fn as_binary(&self) -> Option<&'a [u8]> {
        self.reader().binary().ok()?
    }

    /// The binary's content, sharing the buffer.
    pub fn as_bytes(&self) -> Option<Bytes> {
        self.reader().binary_bytes().ok()?
    }

    pub fn as_str(&self) -> Option<&'a str> {
        self.reader().string().ok()?
    }

    pub fn as_symbol(&self) -> Option<&'a str> {
        self.reader().symbol().ok()?
    }

    /// A string or a symbol.
    pub fn as_text(&self) -> Option<&'a str> {
        utf8(self.text_bytes()?).ok()
    }

    /// Any integer type that fits; for fields whose width clients disagree on.
    pub fn as_integer(&self) -> Option<i64> {
        self.to_value().ok()?.as_integer()
    }

    pub fn as_map(&self) -> Option<MapEntries<'a>> {
        self.reader().map().ok()?
    }

    pub fn as_list(&self) -> Option<ListFields<'a>> {
        self.reader().list().ok()?
    }

    /// The descriptor and the described value.
    pub fn as_described(&self) -> Option<(Descriptor<'a>, ValueRef<'a>)> {
        let mut reader = self.reader();
        let descriptor = reader.descriptor().ok()?;
        Some((descriptor, reader.skip().ok()?))
    }

    /// This value, or the value inside if it is described.
    pub fn undescribed(self) -> Self {
        self.as_described().map_or(self, |(_, value)| value)
    }

    pub fn to_value(&self) -> Result<Value, DecodeError> {
        Value::decode(&mut self.reader())
    }

    /// The same encoding, sharing the buffer instead of borrowing it.
    pub fn to_raw(&self) -> RawValue {
        RawValue(self.owner.slice_ref(self.encoded))
    }

    /// True if it is this text, as string or symbol. Compares bytes and decodes nothing.
    #[inline]
    pub fn is_text(&self, text: &str) -> bool {
        self.text_bytes() == Some(text.as_bytes())
    }

    #[inline]
    fn text_bytes(&self) -> Option<&'a [u8]> {
        match *self.encoded.first()? {
            code::STRING8 | code::SYMBOL8 => self.encoded.get(2..),
            code::STRING32 | code::SYMBOL32 => self.encoded.get(5..),
            _ => None,
        }
    }
}

impl RawValue {
    /// Takes bytes that are exactly one encoded value.
    pub fn from_encoded(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Decoder::new(&bytes);
        reader.skip()?;
        if reader.is_empty() { Ok(Self(bytes)) } else { Err(DecodeError::Trailing) }
    }

    pub fn from_value(value: &Value) -> Self {
        let mut buffer = BytesMut::new();
        value.encode(&mut buffer);
        Self(buffer.freeze())
    }

    /// An encoded string.
    pub fn string(text: &str) -> Self {
        let mut buffer = BytesMut::with_capacity(text.len() + 5);
        super::encode::string(&mut buffer, text);
        Self(buffer.freeze())
    }

    pub fn get(&self) -> ValueRef<'_> {
        ValueRef::new(&self.0, &self.0)
    }

    pub fn encoded(&self) -> &Bytes {
        &self.0
    }

    pub fn to_value(&self) -> Result<Value, DecodeError> {
        self.get().to_value()
    }

    pub fn as_str(&self) -> Option<&str> {
        self.get().as_str()
    }
}

impl PartialEq for ValueRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.encoded == other.encoded
    }
}

// May contain customer data: only the type and the length are shown.
impl std::fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueRef({:#04x}, {} bytes)", self.code(), self.encoded.len())
    }
}

impl std::fmt::Debug for RawValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawValue({:#04x}, {} bytes)", self.get().code(), self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accessors_are_exact_about_the_type() {
        let raw = RawValue::from_value(&Value::Long(7));
        assert_eq!(raw.get().as_long(), Some(7));
        assert_eq!(raw.get().as_timestamp(), None);
        assert_eq!(raw.get().as_integer(), Some(7));
    }

    #[test]
    fn bytes_after_the_value_are_refused() {
        assert_eq!(RawValue::from_encoded(Bytes::from_static(&[code::NULL, code::NULL])), Err(DecodeError::Trailing));
    }
}
