//! The properties section, borrowed from a message or from the writer's data.

use std::borrow::Cow;

use bytes::BytesMut;
use uuid::Uuid;

use super::section;
use crate::Value;
use crate::codec::{DecodeError, ListFields, ListWriter, ValueRef, code, encode};

/// A message-id or correlation-id in its original type: a response must use the same type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MessageId<'a> {
    Ulong(u64),
    Uuid(Uuid),
    Binary(Cow<'a, [u8]>),
    String(Cow<'a, str>),
}

/// The immutable properties of a message. `Default` has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties<'a> {
    pub message_id: Option<MessageId<'a>>,
    pub user_id: Option<&'a [u8]>,
    pub to: Option<&'a str>,
    pub subject: Option<&'a str>,
    pub reply_to: Option<&'a str>,
    pub correlation_id: Option<MessageId<'a>>,
    pub content_type: Option<&'a str>,
    pub content_encoding: Option<&'a str>,
    /// Milliseconds since the Unix epoch, as is `creation_time`.
    pub absolute_expiry_time: Option<i64>,
    pub creation_time: Option<i64>,
    /// Service Bus calls it the session id.
    pub group_id: Option<&'a str>,
    pub group_sequence: Option<u32>,
    /// Service Bus calls it the reply-to session id.
    pub reply_to_group_id: Option<&'a str>,
}

impl<'a> Properties<'a> {
    pub(super) fn decode(mut fields: ListFields<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            message_id: fields.raw()?.map(MessageId::decode).transpose()?,
            user_id: fields.binary()?,
            to: fields.string()?,
            subject: fields.string()?,
            reply_to: fields.string()?,
            correlation_id: fields.raw()?.map(MessageId::decode).transpose()?,
            content_type: fields.raw()?.map(text).transpose()?,
            content_encoding: fields.raw()?.map(text).transpose()?,
            absolute_expiry_time: fields.timestamp()?,
            creation_time: fields.timestamp()?,
            group_id: fields.string()?,
            group_sequence: fields.uint()?,
            reply_to_group_id: fields.string()?,
        })
    }

    /// Writes the section.
    pub fn encode(&self, buffer: &mut BytesMut) {
        ListWriter::described(buffer, section::PROPERTIES)
            .optional(self.message_id.as_ref(), MessageId::write)
            .optional(self.user_id, encode::binary)
            .optional(self.to, encode::string)
            .optional(self.subject, encode::string)
            .optional(self.reply_to, encode::string)
            .optional(self.correlation_id.as_ref(), MessageId::write)
            .optional(self.content_type, encode::symbol)
            .optional(self.content_encoding, encode::symbol)
            .optional(self.absolute_expiry_time, encode::timestamp)
            .optional(self.creation_time, encode::timestamp)
            .optional(self.group_id, encode::string)
            .optional(self.group_sequence, encode::uint)
            .optional(self.reply_to_group_id, encode::string)
            .finish();
    }
}

/// Content type and encoding are symbols, but some clients write strings.
fn text(raw: ValueRef<'_>) -> Result<&str, DecodeError> {
    raw.as_text().ok_or(DecodeError::Unexpected { expected: "symbol", found: raw.code() })
}

impl<'a> MessageId<'a> {
    #[inline]
    pub(super) fn decode(raw: ValueRef<'a>) -> Result<Self, DecodeError> {
        let mut reader = raw.reader();
        let missing = DecodeError::Missing("message-id");
        match raw.code() {
            code::STRING8 | code::STRING32 => Ok(Self::String(reader.string()?.ok_or(missing)?.into())),
            code::UUID => Ok(Self::Uuid(reader.uuid()?.ok_or(missing)?)),
            code::BINARY8 | code::BINARY32 => Ok(Self::Binary(reader.binary()?.ok_or(missing)?.into())),
            code::ULONG | code::SMALL_ULONG | code::ULONG0 => Ok(Self::Ulong(reader.ulong()?.ok_or(missing)?)),
            found => Err(DecodeError::Unexpected { expected: "message-id", found }),
        }
    }

    fn write(buffer: &mut BytesMut, id: &Self) {
        match id {
            Self::Ulong(value) => encode::ulong(buffer, *value),
            Self::Uuid(value) => encode::uuid(buffer, *value),
            Self::Binary(value) => encode::binary(buffer, value),
            Self::String(value) => encode::string(buffer, value),
        }
    }

    /// The same id, with owned data.
    pub fn into_owned(self) -> MessageId<'static> {
        match self {
            Self::Ulong(value) => MessageId::Ulong(value),
            Self::Uuid(value) => MessageId::Uuid(value),
            Self::Binary(value) => MessageId::Binary(value.into_owned().into()),
            Self::String(value) => MessageId::String(value.into_owned().into()),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    pub fn to_value(&self) -> Value {
        match self {
            Self::Ulong(value) => Value::Ulong(*value),
            Self::Uuid(value) => Value::Uuid(*value),
            Self::Binary(value) => Value::Binary(value.to_vec().into()),
            Self::String(value) => Value::String(value.to_string()),
        }
    }
}

impl<'a> From<&'a str> for MessageId<'a> {
    fn from(text: &'a str) -> Self {
        Self::String(text.into())
    }
}

/// As text, for logs and for keys where the type does not matter.
impl std::fmt::Display for MessageId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ulong(value) => write!(f, "{value}"),
            Self::Uuid(value) => write!(f, "{value}"),
            Self::Binary(value) => value.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::String(value) => f.write_str(value),
        }
    }
}
