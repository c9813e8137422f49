//! The header section: how a message is to be carried.

use bytes::BytesMut;

use super::section;
use crate::codec::{DecodeError, ListFields, ListWriter, encode};

/// Transport details of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    pub durable: bool,
    pub priority: Option<u8>,
    /// Milliseconds to live.
    pub ttl: Option<u32>,
    pub first_acquirer: bool,
    /// Failed earlier deliveries.
    pub delivery_count: u32,
}

impl Header {
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            durable: fields.boolean()?.unwrap_or(false),
            priority: fields.ubyte()?,
            ttl: fields.uint()?,
            first_acquirer: fields.boolean()?.unwrap_or(false),
            delivery_count: fields.uint()?.unwrap_or(0),
        })
    }

    /// Writes the section. The delivery count is always written: clients show it.
    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, section::HEADER)
            .boolean(self.durable)
            .optional(self.priority, encode::ubyte)
            .optional(self.ttl, encode::uint)
            .flag(self.first_acquirer)
            .uint(self.delivery_count)
            .finish();
    }
}
