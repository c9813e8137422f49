//! SASL frames: authentication before AMQP begins.

use bytes::{Bytes, BytesMut};

use crate::codec::{DecodeError, Decoder, ListWriter, encode};
use crate::{Array, Symbol, Value};

pub(crate) mod descriptor {
    pub(crate) const MECHANISMS: u64 = 0x40;
    pub(crate) const INIT: u64 = 0x41;
    pub(crate) const CHALLENGE: u64 = 0x42;
    pub(crate) const RESPONSE: u64 = 0x43;
    pub(crate) const OUTCOME: u64 = 0x44;
}

/// The body of a SASL frame. Its `Debug` form hides the credentials.
#[derive(Clone, PartialEq)]
pub enum SaslFrame {
    Mechanisms(Vec<Symbol>),
    Init { mechanism: Symbol, initial_response: Option<Bytes>, hostname: Option<String> },
    Challenge(Bytes),
    Response(Bytes),
    Outcome { code: SaslCode, additional_data: Option<Bytes> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslCode {
    Ok,
    /// The credentials were refused.
    Auth,
    Sys,
    SysPerm,
    SysTemp,
}

impl SaslFrame {
    pub fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let kind = reader.descriptor()?.standard().ok_or(DecodeError::UnknownDescriptor)?;
        let mut fields = reader.list()?.ok_or(DecodeError::Missing("sasl frame"))?;
        Ok(match kind {
            descriptor::MECHANISMS => {
                let offered = fields.raw()?.ok_or(DecodeError::Missing("sasl-server-mechanisms"))?.to_value()?;
                Self::Mechanisms(symbols(offered)?)
            }
            descriptor::INIT => Self::Init {
                mechanism: fields.symbol()?.ok_or(DecodeError::Missing("mechanism"))?.to_owned().into(),
                initial_response: fields.binary_bytes()?,
                hostname: fields.string()?.map(str::to_owned),
            },
            descriptor::CHALLENGE => Self::Challenge(fields.binary_bytes()?.ok_or(DecodeError::Missing("challenge"))?),
            descriptor::RESPONSE => Self::Response(fields.binary_bytes()?.ok_or(DecodeError::Missing("response"))?),
            descriptor::OUTCOME => Self::Outcome {
                code: SaslCode::from_wire(fields.ubyte()?.ok_or(DecodeError::Missing("code"))?)?,
                additional_data: fields.binary_bytes()?,
            },
            _ => return Err(DecodeError::UnknownDescriptor),
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Mechanisms(names) => {
                let offered = Value::Array(Array::symbols(names.iter().cloned()));
                ListWriter::described(buffer, descriptor::MECHANISMS).optional(Some(&offered), Value::write).finish();
            }
            Self::Init { mechanism, initial_response, hostname } => ListWriter::described(buffer, descriptor::INIT)
                .optional(Some(mechanism.as_str()), encode::symbol)
                .optional(initial_response.as_deref(), encode::binary)
                .optional(hostname.as_deref(), encode::string)
                .finish(),
            Self::Challenge(data) => {
                ListWriter::described(buffer, descriptor::CHALLENGE).optional(Some(&data[..]), encode::binary).finish();
            }
            Self::Response(data) => {
                ListWriter::described(buffer, descriptor::RESPONSE).optional(Some(&data[..]), encode::binary).finish();
            }
            Self::Outcome { code, additional_data } => ListWriter::described(buffer, descriptor::OUTCOME)
                .optional(Some(code.to_wire()), encode::ubyte)
                .optional(additional_data.as_deref(), encode::binary)
                .finish(),
        }
    }
}

/// A multiple field: one symbol, or an array of them.
fn symbols(value: Value) -> Result<Vec<Symbol>, DecodeError> {
    let items = match &value {
        Value::Symbol(_) => std::slice::from_ref(&value),
        _ => value.as_items().ok_or(DecodeError::OutOfRange("sasl-server-mechanisms"))?,
    };
    items
        .iter()
        .map(|item| match item {
            Value::Symbol(name) => Ok(name.clone()),
            _ => Err(DecodeError::OutOfRange("sasl-server-mechanisms")),
        })
        .collect()
}

impl SaslCode {
    fn from_wire(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            0 => Self::Ok,
            1 => Self::Auth,
            2 => Self::Sys,
            3 => Self::SysPerm,
            4 => Self::SysTemp,
            _ => return Err(DecodeError::OutOfRange("sasl code")),
        })
    }

    fn to_wire(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Auth => 1,
            Self::Sys => 2,
            Self::SysPerm => 3,
            Self::SysTemp => 4,
        }
    }
}

impl std::fmt::Debug for SaslFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mechanisms(names) => f.debug_tuple("Mechanisms").field(names).finish(),
            Self::Init { mechanism, .. } => write!(f, "Init({mechanism})"),
            Self::Challenge(_) => f.write_str("Challenge"),
            Self::Response(_) => f.write_str("Response"),
            Self::Outcome { code, .. } => write!(f, "Outcome({code:?})"),
        }
    }
}
