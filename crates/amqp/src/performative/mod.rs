//! The nine performatives, and the composite types inside them.
//!
//! Transfer, disposition and flow are read and written field by field without allocation; the others are rare and use the
//! same code. Fields that must be echoed byte for byte (addresses, filters, capabilities) are [`crate::codec::RawValue`].

mod attach;
mod delivery_state;
mod error;
mod open;
mod terminus;
mod transfer;

use bytes::BytesMut;

pub use attach::{Attach, Detach, ReceiverSettleMode, SenderSettleMode};
pub use delivery_state::{DeliveryState, Modified, TransactionalState};
pub use error::Error;
pub use open::{Begin, Close, End, Open};
pub use terminus::{Coordinator, FilterSet, Source, Target, TargetNode};
pub use transfer::{Disposition, Flow, Transfer};

use crate::Map;
use crate::codec::{DecodeError, Decoder, Descriptor, ListFields, RawValue};

/// Numeric descriptors of the standard composite types.
pub mod descriptor {
    pub const OPEN: u64 = 0x10;
    pub const BEGIN: u64 = 0x11;
    pub const ATTACH: u64 = 0x12;
    pub const FLOW: u64 = 0x13;
    pub const TRANSFER: u64 = 0x14;
    pub const DISPOSITION: u64 = 0x15;
    pub const DETACH: u64 = 0x16;
    pub const END: u64 = 0x17;
    pub const CLOSE: u64 = 0x18;
    pub const ERROR: u64 = 0x1d;
    pub const RECEIVED: u64 = 0x23;
    pub const ACCEPTED: u64 = 0x24;
    pub const REJECTED: u64 = 0x25;
    pub const RELEASED: u64 = 0x26;
    pub const MODIFIED: u64 = 0x27;
    pub const SOURCE: u64 = 0x28;
    pub const TARGET: u64 = 0x29;
    pub const COORDINATOR: u64 = 0x30;
    pub const DECLARE: u64 = 0x31;
    pub const DISCHARGE: u64 = 0x32;
    pub const DECLARED: u64 = 0x33;
    pub const TRANSACTIONAL_STATE: u64 = 0x34;
}

/// The end of a link; on the wire a boolean, true for the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Sender,
    Receiver,
}

impl Role {
    pub fn opposite(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    fn from_wire(receiver: bool) -> Self {
        if receiver { Self::Receiver } else { Self::Sender }
    }

    fn to_wire(self) -> bool {
        self == Self::Receiver
    }
}

/// The body of an AMQP frame, without a transfer's payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Performative {
    Open(Box<Open>),
    Begin(Box<Begin>),
    Attach(Box<Attach>),
    Flow(Flow),
    Transfer(Transfer),
    Disposition(Disposition),
    Detach(Detach),
    End(End),
    Close(Close),
}

impl Performative {
    /// Reads one performative; the rest of the reader is the payload.
    #[inline]
    pub fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let kind = reader.descriptor()?.standard().ok_or(DecodeError::UnknownDescriptor)?;
        let fields = reader.list()?.ok_or(DecodeError::Missing("performative"))?;
        Ok(match kind {
            descriptor::TRANSFER => Self::Transfer(Transfer::decode(fields)?),
            descriptor::DISPOSITION => Self::Disposition(Disposition::decode(fields)?),
            descriptor::FLOW => Self::Flow(Flow::decode(fields)?),
            descriptor::OPEN => Self::Open(Box::new(Open::decode(fields)?)),
            descriptor::BEGIN => Self::Begin(Box::new(Begin::decode(fields)?)),
            descriptor::ATTACH => Self::Attach(Box::new(Attach::decode(fields)?)),
            descriptor::DETACH => Self::Detach(Detach::decode(fields)?),
            descriptor::END => Self::End(End::decode(fields)?),
            descriptor::CLOSE => Self::Close(Close::decode(fields)?),
            _ => return Err(DecodeError::UnknownDescriptor),
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Open(open) => open.encode(buffer),
            Self::Begin(begin) => begin.encode(buffer),
            Self::Attach(attach) => attach.encode(buffer),
            Self::Flow(flow) => flow.encode(buffer),
            Self::Transfer(transfer) => transfer.encode(buffer),
            Self::Disposition(disposition) => disposition.encode(buffer),
            Self::Detach(detach) => detach.encode(buffer),
            Self::End(end) => end.encode(buffer),
            Self::Close(close) => close.encode(buffer),
        }
    }

    /// The performative's name, for error texts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open(_) => "open",
            Self::Begin(_) => "begin",
            Self::Attach(_) => "attach",
            Self::Flow(_) => "flow",
            Self::Transfer(_) => "transfer",
            Self::Disposition(_) => "disposition",
            Self::Detach(_) => "detach",
            Self::End(_) => "end",
            Self::Close(_) => "close",
        }
    }
}

impl Descriptor<'_> {
    /// The numeric code of a standard type, by code or by name.
    #[inline]
    pub fn standard(self) -> Option<u64> {
        match self {
            Self::Code(code) => Some(code),
            Self::Name(name) => standard_code(name),
        }
    }
}

fn standard_code(name: &str) -> Option<u64> {
    Some(match name {
        "amqp:open:list" => descriptor::OPEN,
        "amqp:begin:list" => descriptor::BEGIN,
        "amqp:attach:list" => descriptor::ATTACH,
        "amqp:flow:list" => descriptor::FLOW,
        "amqp:transfer:list" => descriptor::TRANSFER,
        "amqp:disposition:list" => descriptor::DISPOSITION,
        "amqp:detach:list" => descriptor::DETACH,
        "amqp:end:list" => descriptor::END,
        "amqp:close:list" => descriptor::CLOSE,
        "amqp:error:list" => descriptor::ERROR,
        "amqp:received:list" => descriptor::RECEIVED,
        "amqp:accepted:list" => descriptor::ACCEPTED,
        "amqp:rejected:list" => descriptor::REJECTED,
        "amqp:released:list" => descriptor::RELEASED,
        "amqp:modified:list" => descriptor::MODIFIED,
        "amqp:source:list" => descriptor::SOURCE,
        "amqp:target:list" => descriptor::TARGET,
        "amqp:coordinator:list" => descriptor::COORDINATOR,
        "amqp:declare:list" => descriptor::DECLARE,
        "amqp:discharge:list" => descriptor::DISCHARGE,
        "amqp:declared:list" => descriptor::DECLARED,
        "amqp:transactional-state:list" => descriptor::TRANSACTIONAL_STATE,
        "amqp:sasl-mechanisms:list" => 0x40,
        "amqp:sasl-init:list" => 0x41,
        "amqp:sasl-challenge:list" => 0x42,
        "amqp:sasl-response:list" => 0x43,
        "amqp:sasl-outcome:list" => 0x44,
        "amqp:header:list" => 0x70,
        "amqp:delivery-annotations:map" => 0x71,
        "amqp:message-annotations:map" => 0x72,
        "amqp:properties:list" => 0x73,
        "amqp:application-properties:map" => 0x74,
        "amqp:data:binary" => 0x75,
        "amqp:amqp-sequence:list" => 0x76,
        "amqp:amqp-value:*" => 0x77,
        "amqp:footer:map" => 0x78,
        _ => return None,
    })
}

/// A map field, decoded; absent stays absent.
fn map_field(fields: &mut ListFields<'_>) -> Result<Option<Map>, DecodeError> {
    fields.raw()?.map(|raw| Map::decode(&mut raw.reader())).transpose()
}

/// A field kept as encoded.
fn raw_field(fields: &mut ListFields<'_>) -> Result<Option<RawValue>, DecodeError> {
    Ok(fields.raw()?.map(|raw| raw.to_raw()))
}

fn put_raw(buffer: &mut BytesMut, raw: &RawValue) {
    buffer.extend_from_slice(raw.encoded());
}
