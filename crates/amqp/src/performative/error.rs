//! The AMQP error type.

use bytes::BytesMut;

use super::descriptor;
use crate::codec::{DecodeError, Decoder, ListWriter, encode};
use crate::{Map, Symbol};

/// An AMQP error, sent in detach, end, close and in the rejected outcome.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{condition}: {}", description.as_deref().unwrap_or("no description"))]
pub struct Error {
    pub condition: Symbol,
    pub description: Option<String>,
    pub info: Map,
}

impl Error {
    pub fn new(condition: Symbol, description: impl Into<String>) -> Self {
        Self { condition, description: Some(description.into()), info: Map::new() }
    }

    /// Reads a described error; null is none.
    pub(super) fn decode(reader: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        if reader.descriptor()?.standard() != Some(descriptor::ERROR) {
            return Err(DecodeError::UnknownDescriptor);
        }
        let mut fields = reader.list()?.ok_or(DecodeError::Missing("error"))?;
        Ok(Self {
            condition: fields.symbol()?.ok_or(DecodeError::Missing("condition"))?.to_owned().into(),
            description: fields.string()?.map(str::to_owned),
            info: super::map_field(&mut fields)?.unwrap_or_default(),
        })
    }

    /// Always three fields, info never left out: the Python SDK indexes the third one.
    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut list = ListWriter::described(buffer, descriptor::ERROR);
        encode::symbol(list.field(), self.condition.as_str());
        list.optional(self.description.as_deref(), encode::string);
        self.info.encode(list.field());
        list.finish();
    }

    pub(super) fn write(buffer: &mut BytesMut, error: &Self) {
        error.encode(buffer);
    }
}
