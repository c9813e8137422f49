//! Performatives of connections and AMQP sessions: open, begin, end, close.

use bytes::BytesMut;

use super::{Error, descriptor, map_field, put_raw, raw_field};
use crate::Map;
use crate::codec::{DecodeError, ListFields, ListWriter, RawValue, encode};

#[derive(Debug, Clone, PartialEq)]
pub struct Open {
    pub container_id: String,
    pub hostname: Option<String>,
    pub max_frame_size: u32,
    pub channel_max: u16,
    /// Milliseconds without a frame after which this peer may close the connection.
    pub idle_time_out: Option<u32>,
    pub outgoing_locales: Option<RawValue>,
    pub incoming_locales: Option<RawValue>,
    pub offered_capabilities: Option<RawValue>,
    pub desired_capabilities: Option<RawValue>,
    pub properties: Option<Map>,
}

impl Open {
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            container_id: fields.string()?.ok_or(DecodeError::Missing("container-id"))?.to_owned(),
            hostname: fields.string()?.map(str::to_owned),
            max_frame_size: fields.uint()?.unwrap_or(u32::MAX),
            channel_max: fields.ushort()?.unwrap_or(u16::MAX),
            idle_time_out: fields.uint()?,
            outgoing_locales: raw_field(&mut fields)?,
            incoming_locales: raw_field(&mut fields)?,
            offered_capabilities: raw_field(&mut fields)?,
            desired_capabilities: raw_field(&mut fields)?,
            properties: map_field(&mut fields)?,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::OPEN);
        encode::string(list.field(), &self.container_id);
        list.optional(self.hostname.as_deref(), encode::string);
        // Never null: older Python clients compare it with 512.
        list.uint(self.max_frame_size);
        encode::ushort(list.field(), self.channel_max);
        list.optional(self.idle_time_out, encode::uint)
            .optional(self.outgoing_locales.as_ref(), put_raw)
            .optional(self.incoming_locales.as_ref(), put_raw)
            .optional(self.offered_capabilities.as_ref(), put_raw)
            .optional(self.desired_capabilities.as_ref(), put_raw)
            .optional(self.properties.as_ref(), Map::write)
            .finish_full();
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Begin {
    /// Set in a reply: the peer's channel.
    pub remote_channel: Option<u16>,
    pub next_outgoing_id: u32,
    pub incoming_window: u32,
    pub outgoing_window: u32,
    pub handle_max: u32,
    pub offered_capabilities: Option<RawValue>,
    pub desired_capabilities: Option<RawValue>,
    pub properties: Option<Map>,
}

impl Begin {
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            remote_channel: fields.ushort()?,
            next_outgoing_id: fields.uint()?.ok_or(DecodeError::Missing("next-outgoing-id"))?,
            incoming_window: fields.uint()?.ok_or(DecodeError::Missing("incoming-window"))?,
            outgoing_window: fields.uint()?.ok_or(DecodeError::Missing("outgoing-window"))?,
            handle_max: fields.uint()?.unwrap_or(u32::MAX),
            offered_capabilities: raw_field(&mut fields)?,
            desired_capabilities: raw_field(&mut fields)?,
            properties: map_field(&mut fields)?,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::BEGIN);
        list.optional(self.remote_channel, encode::ushort)
            .uint(self.next_outgoing_id)
            .uint(self.incoming_window)
            .uint(self.outgoing_window)
            // Never omitted: the Python SDK indexes it.
            .uint(self.handle_max)
            .optional(self.offered_capabilities.as_ref(), put_raw)
            .optional(self.desired_capabilities.as_ref(), put_raw)
            .optional(self.properties.as_ref(), Map::write)
            .finish_full();
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct End {
    pub error: Option<Box<Error>>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Close {
    pub error: Option<Box<Error>>,
}

impl End {
    pub(super) fn decode(fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self { error: only_error(fields)? })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::END).optional(self.error.as_deref(), Error::write).finish_full();
    }
}

impl Close {
    pub(super) fn decode(fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self { error: only_error(fields)? })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::CLOSE).optional(self.error.as_deref(), Error::write).finish_full();
    }
}

fn only_error(mut fields: ListFields<'_>) -> Result<Option<Box<Error>>, DecodeError> {
    fields.raw()?.map(|raw| Error::decode(&mut raw.reader()).map(Box::new)).transpose()
}
