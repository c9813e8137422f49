//! The performatives attach and detach.

use bytes::BytesMut;

use super::{Error, Role, Source, Target, descriptor, map_field, put_raw, raw_field};
use crate::Map;
use crate::codec::{DecodeError, ListFields, ListWriter, RawValue, encode};

/// Whether the sender sends deliveries settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SenderSettleMode {
    Unsettled,
    Settled,
    #[default]
    Mixed,
}

/// Whether the receiver settles at once, or after the sender has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiverSettleMode {
    #[default]
    First,
    Second,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Attach {
    pub name: String,
    /// Set by [`crate::Connection`]; a caller's value is replaced.
    pub handle: u32,
    /// The role of the peer that sends this attach.
    pub role: Role,
    pub snd_settle_mode: SenderSettleMode,
    pub rcv_settle_mode: ReceiverSettleMode,
    pub source: Option<Source>,
    pub target: Option<Target>,
    pub unsettled: Option<RawValue>,
    pub incomplete_unsettled: bool,
    pub initial_delivery_count: Option<u32>,
    /// 0 and absent both mean: no limit.
    pub max_message_size: Option<u64>,
    pub offered_capabilities: Option<RawValue>,
    pub desired_capabilities: Option<RawValue>,
    pub properties: Option<Map>,
}

impl Attach {
    /// A link on which we send to `target`.
    pub fn sender(name: impl Into<String>, source: Source, target: impl Into<Target>) -> Self {
        Self::new(name.into(), Role::Sender, source, target.into())
    }

    /// A link on which we receive from `source`.
    pub fn receiver(name: impl Into<String>, source: Source, target: impl Into<Target>) -> Self {
        Self::new(name.into(), Role::Receiver, source, target.into())
    }

    fn new(name: String, role: Role, source: Source, target: Target) -> Self {
        Self {
            name,
            handle: 0,
            role,
            snd_settle_mode: SenderSettleMode::default(),
            rcv_settle_mode: ReceiverSettleMode::default(),
            source: Some(source),
            target: Some(target),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: (role == Role::Sender).then_some(0),
            max_message_size: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        }
    }

    /// The reply that accepts everything: same name, modes, source and target, byte for byte. Change what
    /// differs, then hand it to [`crate::Connection::accept_attach`].
    pub fn reply(&self) -> Self {
        let role = self.role.opposite();
        Self {
            name: self.name.clone(),
            handle: 0,
            role,
            snd_settle_mode: self.snd_settle_mode,
            rcv_settle_mode: self.rcv_settle_mode,
            source: self.source.clone(),
            target: self.target.clone(),
            unsettled: None,
            incomplete_unsettled: false,
            // The Python SDK detaches when a sender leaves it out.
            initial_delivery_count: (role == Role::Sender).then_some(0),
            max_message_size: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(Map::new()),
        }
    }

    /// The fields of a request that a reply may echo.
    pub(crate) fn echoed(&self) -> Self {
        let copied = Self { handle: self.handle, role: self.role, properties: None, ..self.reply() };
        Self { initial_delivery_count: self.initial_delivery_count, max_message_size: self.max_message_size, ..copied }
    }

    /// The reply that refuses: our terminus is null. A detach with the error follows it.
    pub fn refusal(&self) -> Self {
        let mut reply = self.reply();
        match reply.role {
            Role::Sender => reply.source = None,
            Role::Receiver => reply.target = None,
        }
        reply
    }

    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        let attach = Self {
            name: fields.string()?.ok_or(DecodeError::Missing("name"))?.to_owned(),
            handle: fields.uint()?.ok_or(DecodeError::Missing("handle"))?,
            role: Role::from_wire(fields.boolean()?.ok_or(DecodeError::Missing("role"))?),
            snd_settle_mode: SenderSettleMode::from_wire(fields.ubyte()?)?,
            rcv_settle_mode: ReceiverSettleMode::from_wire(fields.ubyte()?)?,
            source: fields.raw()?.map(|raw| Source::decode(&mut raw.reader())).transpose()?,
            target: fields.raw()?.map(|raw| Target::decode(&mut raw.reader())).transpose()?,
            unsettled: raw_field(&mut fields)?,
            incomplete_unsettled: fields.boolean()?.unwrap_or(false),
            initial_delivery_count: fields.uint()?,
            max_message_size: fields.ulong()?,
            offered_capabilities: raw_field(&mut fields)?,
            desired_capabilities: raw_field(&mut fields)?,
            properties: map_field(&mut fields)?,
        };
        Ok(attach)
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::ATTACH);
        encode::string(list.field(), &self.name);
        list.uint(self.handle).boolean(self.role.to_wire());
        encode::ubyte(list.field(), self.snd_settle_mode.to_wire());
        encode::ubyte(list.field(), self.rcv_settle_mode.to_wire());
        list.optional(self.source.as_ref(), |buffer, source| source.encode(buffer))
            .optional(self.target.as_ref(), |buffer, target| target.encode(buffer))
            .optional(self.unsettled.as_ref(), put_raw)
            .flag(self.incomplete_unsettled)
            .optional(self.initial_delivery_count, encode::uint)
            .optional(self.max_message_size, encode::ulong)
            .optional(self.offered_capabilities.as_ref(), put_raw)
            .optional(self.desired_capabilities.as_ref(), put_raw)
            .optional(self.properties.as_ref(), Map::write)
            .finish_full();
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Detach {
    pub handle: u32,
    pub closed: bool,
    pub error: Option<Box<Error>>,
}

impl Detach {
    pub(super) fn decode(mut fields: ListFields<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            handle: fields.uint()?.ok_or(DecodeError::Missing("handle"))?,
            closed: fields.boolean()?.unwrap_or(false),
            error: fields.raw()?.map(|raw| Error::decode(&mut raw.reader()).map(Box::new)).transpose()?,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, descriptor::DETACH)
            .uint(self.handle)
            .boolean(self.closed)
            .optional(self.error.as_deref(), Error::write)
            .finish_full();
    }
}

impl SenderSettleMode {
    fn from_wire(mode: Option<u8>) -> Result<Self, DecodeError> {
        match mode {
            Some(0) => Ok(Self::Unsettled),
            Some(1) => Ok(Self::Settled),
            Some(2) | None => Ok(Self::Mixed),
            Some(_) => Err(DecodeError::OutOfRange("snd-settle-mode")),
        }
    }

    fn to_wire(self) -> u8 {
        match self {
            Self::Unsettled => 0,
            Self::Settled => 1,
            Self::Mixed => 2,
        }
    }
}

impl ReceiverSettleMode {
    pub(super) fn from_wire(mode: Option<u8>) -> Result<Self, DecodeError> {
        match mode {
            Some(0) | None => Ok(Self::First),
            Some(1) => Ok(Self::Second),
            Some(_) => Err(DecodeError::OutOfRange("rcv-settle-mode")),
        }
    }

    pub(super) fn to_wire(self) -> u8 {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}
