//! A cursor over encoded bytes: typed reads, skips, and slices that share the buffer.
//!
//! Every typed read returns `None` for null, because an AMQP field may always be null.

use bytes::Bytes;
use uuid::Uuid;

use super::{DecodeError, ValueRef, code};

/// Decodes one value after another. A copy keeps its position, so it can be used to look ahead.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<'a> {
    owner: &'a Bytes,
    rest: &'a [u8],
}

/// The descriptor of a described value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptor<'a> {
    Code(u64),
    Name(&'a str),
}

/// The fields of a list, in order; a field past the end reads as null.
#[derive(Debug, Clone, Copy)]
pub struct ListFields<'a> {
    reader: Decoder<'a>,
    left: u32,
}

/// The entries of a map, in order. Ends early at a malformed entry.
#[derive(Debug, Clone, Copy)]
pub struct MapEntries<'a> {
    reader: Decoder<'a>,
    left: u32,
}

impl<'a> Decoder<'a> {
    pub fn new(owner: &'a Bytes) -> Self {
        Self { owner, rest: owner }
    }

    /// A reader over part of `owner`.
    pub(crate) fn within(owner: &'a Bytes, rest: &'a [u8]) -> Self {
        Self { owner, rest }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The bytes not yet read, sharing the buffer.
    pub fn rest_bytes(&self) -> Bytes {
        self.owner.slice_ref(self.rest)
    }

    pub(crate) fn owner(&self) -> &'a Bytes {
        self.owner
    }

    /// The next format code, without consuming it.
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    fn length8(&mut self) -> Result<usize, DecodeError> {
        self.byte().map(usize::from)
    }

    #[inline]
    fn length32(&mut self) -> Result<usize, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?) as usize)
    }

    /// Skips one value, described or not, and returns its encoding.
    #[inline]
    pub fn skip(&mut self) -> Result<ValueRef<'a>, DecodeError> {
        let start = self.rest;
        let mut needed = 1u32;
        while needed > 0 {
            match self.byte()? {
                // A described value is two values, descriptor and value, where one was expected.
                code::DESCRIBED => needed += 1,
                format => {
                    self.skip_body(format)?;
                    needed -= 1;
                }
            }
        }
        let length = start.len() - self.rest.len();
        Ok(ValueRef::new(self.owner, &start[..length]))
    }

    /// The high half of a format code gives the width, even for unknown codes (part 1, section 1.2).
    #[inline]
    pub(crate) fn skip_body(&mut self, format: u8) -> Result<(), DecodeError> {
        let width = match format >> 4 {
            0x4 => 0,
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            0x9 => 16,
            0xa | 0xc | 0xe => self.length8()?,
            0xb | 0xd | 0xf => self.length32()?,
            _ => return Err(DecodeError::UnknownCode(format)),
        };
        self.take(width).map(drop)
    }

    /// Reads the descriptor of a described value; the value itself comes next.
    #[inline]
    pub fn descriptor(&mut self) -> Result<Descriptor<'a>, DecodeError> {
        match self.byte()? {
            code::DESCRIBED => {}
            found => return Err(DecodeError::Unexpected { expected: "described type", found }),
        }
        match self.byte()? {
            code::SMALL_ULONG => Ok(Descriptor::Code(self.byte()?.into())),
            code::ULONG => Ok(Descriptor::Code(u64::from_be_bytes(self.array()?))),
            code::ULONG0 => Ok(Descriptor::Code(0)),
            code::SYMBOL8 => {
                let length = self.length8()?;
                ascii(self.take(length)?).map(Descriptor::Name)
            }
            code::SYMBOL32 => {
                let length = self.length32()?;
                ascii(self.take(length)?).map(Descriptor::Name)
            }
            _ => Err(DecodeError::UnknownDescriptor),
        }
    }

    #[inline]
    pub fn boolean(&mut self) -> Result<Option<bool>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::TRUE => Ok(Some(true)),
            code::FALSE => Ok(Some(false)),
            code::BOOLEAN => match self.byte()? {
                0 => Ok(Some(false)),
                1 => Ok(Some(true)),
                _ => Err(DecodeError::OutOfRange("boolean")),
            },
            found => Err(DecodeError::Unexpected { expected: "boolean", found }),
        }
    }

    #[inline]
    pub fn ubyte(&mut self) -> Result<Option<u8>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::UBYTE => self.byte().map(Some),
            found => Err(DecodeError::Unexpected { expected: "ubyte", found }),
        }
    }

    #[inline]
    pub fn ushort(&mut self) -> Result<Option<u16>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::USHORT => Ok(Some(u16::from_be_bytes(self.array()?))),
            found => Err(DecodeError::Unexpected { expected: "ushort", found }),
        }
    }

    #[inline]
    pub fn uint(&mut self) -> Result<Option<u32>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::UINT => Ok(Some(u32::from_be_bytes(self.array()?))),
            code::SMALL_UINT => Ok(Some(self.byte()?.into())),
            code::UINT0 => Ok(Some(0)),
            found => Err(DecodeError::Unexpected { expected: "uint", found }),
        }
    }

    #[inline]
    pub fn ulong(&mut self) -> Result<Option<u64>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::ULONG => Ok(Some(u64::from_be_bytes(self.array()?))),
            code::SMALL_ULONG => Ok(Some(self.byte()?.into())),
            code::ULONG0 => Ok(Some(0)),
            found => Err(DecodeError::Unexpected { expected: "ulong", found }),
        }
    }

    pub fn long(&mut self) -> Result<Option<i64>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::LONG => Ok(Some(i64::from_be_bytes(self.array()?))),
            code::SMALL_LONG => Ok(Some(i8::from_be_bytes(self.array()?).into())),
            found => Err(DecodeError::Unexpected { expected: "long", found }),
        }
    }

    pub fn int(&mut self) -> Result<Option<i32>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::INT => Ok(Some(i32::from_be_bytes(self.array()?))),
            code::SMALL_INT => Ok(Some(i8::from_be_bytes(self.array()?).into())),
            found => Err(DecodeError::Unexpected { expected: "int", found }),
        }
    }

    /// Milliseconds since the Unix epoch.
    #[inline]
    pub fn timestamp(&mut self) -> Result<Option<i64>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::TIMESTAMP => Ok(Some(i64::from_be_bytes(self.array()?))),
            found => Err(DecodeError::Unexpected { expected: "timestamp", found }),
        }
    }

    pub fn uuid(&mut self) -> Result<Option<Uuid>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::UUID => Ok(Some(Uuid::from_bytes(self.array()?))),
            found => Err(DecodeError::Unexpected { expected: "uuid", found }),
        }
    }

    #[inline]
    pub fn binary(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let length = match self.byte()? {
            code::NULL => return Ok(None),
            code::BINARY8 => self.length8()?,
            code::BINARY32 => self.length32()?,
            found => return Err(DecodeError::Unexpected { expected: "binary", found }),
        };
        self.take(length).map(Some)
    }

    /// A binary that shares the buffer.
    #[inline]
    pub fn binary_bytes(&mut self) -> Result<Option<Bytes>, DecodeError> {
        Ok(self.binary()?.map(|slice| self.owner.slice_ref(slice)))
    }

    #[inline]
    pub fn string(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let length = match self.byte()? {
            code::NULL => return Ok(None),
            code::STRING8 => self.length8()?,
            code::STRING32 => self.length32()?,
            found => return Err(DecodeError::Unexpected { expected: "string", found }),
        };
        utf8(self.take(length)?).map(Some)
    }

    #[inline]
    pub fn symbol(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let length = match self.byte()? {
            code::NULL => return Ok(None),
            code::SYMBOL8 => self.length8()?,
            code::SYMBOL32 => self.length32()?,
            found => return Err(DecodeError::Unexpected { expected: "symbol", found }),
        };
        ascii(self.take(length)?).map(Some)
    }

    /// Any value but null, as it is encoded.
    #[inline]
    pub fn raw(&mut self) -> Result<Option<ValueRef<'a>>, DecodeError> {
        let value = self.skip()?;
        Ok((!value.is_null()).then_some(value))
    }

    #[inline]
    pub fn list(&mut self) -> Result<Option<ListFields<'a>>, DecodeError> {
        match self.byte()? {
            code::NULL => Ok(None),
            code::LIST0 => Ok(Some(ListFields { reader: Self::within(self.owner, &[]), left: 0 })),
            code::LIST8 => self.compound8().map(|(reader, left)| Some(ListFields { reader, left })),
            code::LIST32 => self.compound32().map(|(reader, left)| Some(ListFields { reader, left })),
            found => Err(DecodeError::Unexpected { expected: "list", found }),
        }
    }

    #[inline]
    pub fn map(&mut self) -> Result<Option<MapEntries<'a>>, DecodeError> {
        let (reader, left) = match self.byte()? {
            code::NULL => return Ok(None),
            code::MAP8 => self.compound8()?,
            code::MAP32 => self.compound32()?,
            found => return Err(DecodeError::Unexpected { expected: "map", found }),
        };
        if left % 2 != 0 {
            return Err(DecodeError::OddMap);
        }
        Ok(Some(MapEntries { reader, left }))
    }

    /// The body and the item count of a list8 or map8; its code is already read.
    #[inline]
    pub(crate) fn compound8(&mut self) -> Result<(Self, u32), DecodeError> {
        let size = self.length8()?;
        let mut body = Self::within(self.owner, self.take(size)?);
        let count = body.byte()?;
        body.holds(count.into())
    }

    #[inline]
    pub(crate) fn compound32(&mut self) -> Result<(Self, u32), DecodeError> {
        let size = self.length32()?;
        let mut body = Self::within(self.owner, self.take(size)?);
        let count = u32::from_be_bytes(body.array()?);
        body.holds(count)
    }

    /// Every item takes at least one byte, so a count beyond the remaining bytes is invalid.
    #[inline]
    fn holds(self, count: u32) -> Result<(Self, u32), DecodeError> {
        if count as usize > self.rest.len() { Err(DecodeError::Truncated) } else { Ok((self, count)) }
    }
}

macro_rules! field_reads {
    ($($name:ident -> $type:ty),* $(,)?) => {
        impl<'a> ListFields<'a> {
            $(
                #[inline]
                pub fn $name(&mut self) -> Result<Option<$type>, DecodeError> {
                    if self.left == 0 {
                        return Ok(None);
                    }
                    self.left -= 1;
                    self.reader.$name()
                }
            )*
        }
    };
}

field_reads! {
    boolean -> bool, ubyte -> u8, ushort -> u16, uint -> u32, ulong -> u64, long -> i64, timestamp -> i64, uuid -> Uuid,
    binary -> &'a [u8], binary_bytes -> Bytes, string -> &'a str, symbol -> &'a str, raw -> ValueRef<'a>, map -> MapEntries<'a>,
    list -> ListFields<'a>,
}

impl<'a> ListFields<'a> {
    /// How many fields are left, null ones included.
    pub fn left(&self) -> u32 {
        self.left
    }

    #[inline]
    pub fn skip(&mut self) -> Result<(), DecodeError> {
        self.raw().map(drop)
    }
}

impl<'a> MapEntries<'a> {
    /// A map without entries.
    pub(crate) fn empty(owner: &'a Bytes) -> Self {
        Self { reader: Decoder::within(owner, &[]), left: 0 }
    }

    /// The value whose key is this text, as symbol or as string.
    pub fn get(mut self, key: &str) -> Option<ValueRef<'a>> {
        self.find(|(name, _)| name.is_text(key)).map(|(_, value)| value)
    }

    /// How many entries the map claims to have left.
    pub fn len(&self) -> usize {
        self.left as usize / 2
    }

    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for MapEntries<'a> {
    type Item = (ValueRef<'a>, ValueRef<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(2)?;
        let pair = self.reader.skip().and_then(|key| Ok((key, self.reader.skip()?)));
        if pair.is_err() {
            self.left = 0;
        }
        pair.ok()
    }
}

#[inline]
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}

#[inline]
pub(crate) fn ascii(bytes: &[u8]) -> Result<&str, DecodeError> {
    if bytes.is_ascii() { utf8(bytes) } else { Err(DecodeError::NotAscii) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_claims_more_items_than_bytes_is_truncated() {
        let bytes = Bytes::from_static(&[code::LIST32, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, code::NULL]);
        assert_eq!(Decoder::new(&bytes).list().unwrap_err(), DecodeError::Truncated);
    }

    #[test]
    fn a_million_nested_descriptions_are_skipped_without_recursion() {
        let bytes = Bytes::from(vec![code::DESCRIBED; 1 << 20]);
        assert_eq!(Decoder::new(&bytes).skip().unwrap_err(), DecodeError::Truncated);
    }

    #[test]
    fn a_field_past_the_end_of_a_list_is_null() {
        let bytes = Bytes::from_static(&[code::LIST8, 2, 1, code::TRUE]);
        let mut fields = Decoder::new(&bytes).list().unwrap().unwrap();
        assert_eq!(fields.boolean().unwrap(), Some(true));
        assert_eq!(fields.uint().unwrap(), None);
    }

    #[test]
    fn a_binary_shares_the_buffer_it_was_read_from() {
        let bytes = Bytes::from(vec![code::BINARY8, 3, 7, 8, 9]);
        let slice = Decoder::new(&bytes).binary_bytes().unwrap().unwrap();
        assert_eq!(slice.as_ptr(), bytes[2..].as_ptr());
    }
}
