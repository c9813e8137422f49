//! Delivery states: outcomes and intermediate states.

use bytes::{Bytes, BytesMut};

use super::{Error, descriptor, map_field};
use crate::Map;
use crate::codec::{DecodeError, ListWriter, RawValue, ValueRef, code, encode};

#[derive(Debug, Clone, PartialEq)]
pub enum DeliveryState {
    Accepted,
    Rejected(Option<Box<Error>>),
    Released,
    Modified(Box<Modified>),
    /// Partly transferred; used only to resume links, which is not supported.
    Received {
        section_number: u32,
        section_offset: u64,
    },
    /// A transaction was declared.
    Declared {
        transaction: Bytes,
    },
    Transactional(Box<TransactionalState>),
    /// An unknown state, as encoded.
    Other(RawValue),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Modified {
    pub delivery_failed: bool,
    pub undeliverable_here: bool,
    pub message_annotations: Option<Map>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TransactionalState {
    pub transaction: Bytes,
    pub outcome: Option<DeliveryState>,
}

impl DeliveryState {
    pub fn rejected(error: Error) -> Self {
        Self::Rejected(Some(Box::new(error)))
    }

    pub fn decode(raw: ValueRef<'_>) -> Result<Self, DecodeError> {
        Self::decode_within(raw, true)
    }

    fn decode_within(raw: ValueRef<'_>, transaction_allowed: bool) -> Result<Self, DecodeError> {
        let mut reader = raw.reader();
        let Some(kind) = reader.descriptor()?.standard() else { return Ok(Self::Other(raw.to_raw())) };
        if !matches!(kind, descriptor::RECEIVED..=descriptor::MODIFIED | descriptor::DECLARED..=descriptor::TRANSACTIONAL_STATE)
        {
            return Ok(Self::Other(raw.to_raw()));
        }
        let mut fields = reader.list()?.ok_or(DecodeError::Missing("delivery state"))?;
        Ok(match kind {
            descriptor::ACCEPTED => Self::Accepted,
            descriptor::RELEASED => Self::Released,
            descriptor::REJECTED => {
                Self::Rejected(fields.raw()?.map(|error| Error::decode(&mut error.reader()).map(Box::new)).transpose()?)
            }
            descriptor::MODIFIED => Self::Modified(Box::new(Modified {
                delivery_failed: fields.boolean()?.unwrap_or(false),
                undeliverable_here: fields.boolean()?.unwrap_or(false),
                message_annotations: map_field(&mut fields)?,
            })),
            descriptor::RECEIVED => Self::Received {
                section_number: fields.uint()?.ok_or(DecodeError::Missing("section-number"))?,
                section_offset: fields.ulong()?.ok_or(DecodeError::Missing("section-offset"))?,
            },
            descriptor::DECLARED => {
                Self::Declared { transaction: fields.binary_bytes()?.ok_or(DecodeError::Missing("txn-id"))? }
            }
            // The outcome inside a transactional state is never transactional itself.
            _ if !transaction_allowed => return Err(DecodeError::TooDeep),
            _ => Self::Transactional(Box::new(TransactionalState {
                transaction: fields.binary_bytes()?.ok_or(DecodeError::Missing("txn-id"))?,
                outcome: fields.raw()?.map(|raw| Self::decode_within(raw, false)).transpose()?,
            })),
        })
    }

    #[inline]
    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Accepted => bare(buffer, descriptor::ACCEPTED),
            Self::Released => bare(buffer, descriptor::RELEASED),
            Self::Rejected(error) => {
                ListWriter::described(buffer, descriptor::REJECTED).optional(error.as_deref(), Error::write).finish()
            }
            Self::Modified(modified) => ListWriter::described(buffer, descriptor::MODIFIED)
                .flag(modified.delivery_failed)
                .flag(modified.undeliverable_here)
                .optional(modified.message_annotations.as_ref(), Map::write)
                .finish(),
            Self::Received { section_number, section_offset } => ListWriter::described(buffer, descriptor::RECEIVED)
                .uint(*section_number)
                .optional(Some(*section_offset), encode::ulong)
                .finish(),
            Self::Declared { transaction } => ListWriter::described(buffer, descriptor::DECLARED)
                .optional(Some(&transaction[..]), encode::binary)
                .finish(),
            Self::Transactional(state) => ListWriter::described(buffer, descriptor::TRANSACTIONAL_STATE)
                .optional(Some(&state.transaction[..]), encode::binary)
                .optional(state.outcome.as_ref(), |buffer, outcome| outcome.encode(buffer))
                .finish(),
            Self::Other(raw) => buffer.extend_from_slice(raw.encoded()),
        }
    }
}

#[inline]
fn bare(buffer: &mut BytesMut, descriptor: u64) {
    buffer.extend_from_slice(&[code::DESCRIBED, code::SMALL_ULONG, descriptor as u8, code::LIST0]);
}
