//! The header section: how a message is to be carried.

use bytes::BytesMut;

use super::section;
use crate::codec::{DecodeError, ListFields, ListWriter, encode};

/// Transport details of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// `None` if the field is absent: then it is not durable. The same for `first_acquirer`.
    pub durable: Option<bool>,
    pub priority: Option<u8>,
    /// Milliseconds to live.
    pub ttl: Option<u32>,
    pub first_acquirer: Option<bool>,
    /// Failed earlier deliveries.
    pub delivery_count: u32,
}

impl Header {
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            durable: fields.boolean()?,
            priority: fields.ubyte()?,
            ttl: fields.uint()?,
            first_acquirer: fields.boolean()?,
            delivery_count: fields.uint()?.unwrap_or(0),
        })
    }

    /// Writes the section. The delivery count is always written: clients show it.
    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, section::HEADER)
            .optional(self.durable, encode::boolean)
            .optional(self.priority, encode::ubyte)
            .optional(self.ttl, encode::uint)
            .optional(self.first_acquirer, encode::boolean)
            .uint(self.delivery_count)
            .finish();
    }
}
