//! Performatives of the hot path: transfer, disposition, flow.

use bytes::{Bytes, BytesMut};

use super::{DeliveryState, ReceiverSettleMode, Role, descriptor, put_raw, raw_field};
use crate::codec::{DecodeError, ListFields, ListWriter, RawValue, encode};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transfer {
    pub handle: u32,
    /// Set on the first frame of a delivery.
    pub delivery_id: Option<u32>,
    pub delivery_tag: Option<Bytes>,
    pub message_format: Option<u32>,
    pub settled: Option<bool>,
    /// More frames of this delivery follow.
    pub more: bool,
    pub rcv_settle_mode: Option<ReceiverSettleMode>,
    pub state: Option<DeliveryState>,
    pub resume: bool,
    /// The frames received so far must be dropped.
    pub aborted: bool,
    pub batchable: bool,
}

impl Transfer {
    #[inline]
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            handle: fields.uint()?.ok_or(DecodeError::Missing("handle"))?,
            delivery_id: fields.uint()?,
            delivery_tag: fields.binary_bytes()?,
            message_format: fields.uint()?,
            settled: fields.boolean()?,
            more: fields.boolean()?.unwrap_or(false),
            rcv_settle_mode: fields.ubyte()?.map(|mode| ReceiverSettleMode::from_wire(Some(mode))).transpose()?,
            state: fields.raw()?.map(DeliveryState::decode).transpose()?,
            resume: fields.boolean()?.unwrap_or(false),
            aborted: fields.boolean()?.unwrap_or(false),
            batchable: fields.boolean()?.unwrap_or(false),
        })
    }

    #[inline]
    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::TRANSFER)
            .uint(self.handle)
            .optional(self.delivery_id, encode::uint)
            .optional(self.delivery_tag.as_deref(), encode::binary)
            .optional(self.message_format, encode::uint)
            .optional(self.settled, encode::boolean)
            .flag(self.more)
            .optional(self.rcv_settle_mode.map(ReceiverSettleMode::to_wire), encode::ubyte)
            .optional(self.state.as_ref(), |buffer, state| state.encode(buffer))
            .flag(self.resume)
            .flag(self.aborted)
            // Written to the last field: older Python clients take the payload for the twelfth.
            .boolean(self.batchable)
            .finish();
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Disposition {
    /// The role of the sending peer: a receiver refers to received deliveries.
    pub role: Role,
    pub first: u32,
    /// Absent means `first` alone.
    pub last: Option<u32>,
    pub settled: bool,
    pub state: Option<DeliveryState>,
    pub batchable: bool,
}

impl Disposition {
    #[inline]
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            role: Role::from_wire(fields.boolean()?.ok_or(DecodeError::Missing("role"))?),
            first: fields.uint()?.ok_or(DecodeError::Missing("first"))?,
            last: fields.uint()?,
            settled: fields.boolean()?.unwrap_or(false),
            state: fields.raw()?.map(DeliveryState::decode).transpose()?,
            batchable: fields.boolean()?.unwrap_or(false),
        })
    }

    #[inline]
    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::DISPOSITION)
            .boolean(self.role.to_wire())
            .uint(self.first)
            .optional(self.last, encode::uint)
            .boolean(self.settled)
            .optional(self.state.as_ref(), |buffer, state| state.encode(buffer))
            .flag(self.batchable)
            .finish_full();
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Flow {
    /// Absent until the peer's begin has been seen.
    pub next_incoming_id: Option<u32>,
    pub incoming_window: u32,
    pub next_outgoing_id: u32,
    pub outgoing_window: u32,
    /// Absent in a flow for the AMQP session only.
    pub handle: Option<u32>,
    pub delivery_count: Option<u32>,
    pub link_credit: Option<u32>,
    pub available: Option<u32>,
    pub drain: bool,
    pub echo: bool,
    pub properties: Option<RawValue>,
}

impl Flow {
    /// A sender's reply to a drain: the credit is used up to `delivery_count`.
    pub(crate) fn drained(handle: u32, delivery_count: u32) -> Self {
        Self {
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(0),
            available: Some(0),
            drain: true,
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            next_incoming_id: fields.uint()?,
            incoming_window: fields.uint()?.ok_or(DecodeError::Missing("incoming-window"))?,
            next_outgoing_id: fields.uint()?.ok_or(DecodeError::Missing("next-outgoing-id"))?,
            outgoing_window: fields.uint()?.ok_or(DecodeError::Missing("outgoing-window"))?,
            handle: fields.uint()?,
            delivery_count: fields.uint()?,
            link_credit: fields.uint()?,
            available: fields.uint()?,
            drain: fields.boolean()?.unwrap_or(false),
            echo: fields.boolean()?.unwrap_or(false),
            properties: raw_field(&mut fields)?,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::FLOW);
        list.optional(self.next_incoming_id, encode::uint)
            .uint(self.incoming_window)
            .uint(self.next_outgoing_id)
            .uint(self.outgoing_window)
            .optional(self.handle, encode::uint)
            .optional(self.delivery_count, encode::uint)
            .optional(self.link_credit, encode::uint)
            .optional(self.available, encode::uint);
        list.boolean(self.drain).boolean(self.echo).optional(self.properties.as_ref(), put_raw).finish_full();
    }
}
