//! Decodes received transfers for the core: the unchanged bytes, and the few properties that the core needs.

use amqp::codec::DecodeError;
use amqp::message::{BATCH_FORMAT, MessageId};
use amqp::{Message, condition};
use bytes::Bytes;

use super::decimals;
use crate::core::{IncomingMessage, Timestamp};

/// Why a transfer is rejected before it reaches the core.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidMessage {
    #[error("invalid message")]
    Malformed(#[from] DecodeError),
    #[error("unknown message format {0:#x}")]
    Format(u32),
    #[error("batch contains no message")]
    EmptyBatch,
}

impl InvalidMessage {
    pub(super) fn to_amqp(&self) -> amqp::Error {
        match self {
            Self::Malformed(error) => amqp::Error::new(condition::DECODE_ERROR, format!("{self}: {error}")),
            Self::Format(_) => amqp::Error::new(condition::NOT_IMPLEMENTED, self.to_string()),
            Self::EmptyBatch => amqp::Error::new(condition::NOT_ALLOWED, self.to_string()),
        }
    }
}

/// Decodes a single message, or all messages of a batch.
pub(super) fn decode_messages(format: u32, payload: Bytes) -> Result<Vec<IncomingMessage>, InvalidMessage> {
    let message = Message::parse(payload)?;
    // The low byte is a version of the format.
    match format & !0xff {
        0 => Ok(vec![decode_message(&message)?]),
        format if format == BATCH_FORMAT => {
            // The envelope repeats the properties of the first message and is ignored.
            let inner: Vec<_> = message
                .data()
                .map(|bytes| Ok(decode_message(&Message::parse(bytes)?)?))
                .collect::<Result<_, InvalidMessage>>()?;
            if inner.is_empty() { Err(InvalidMessage::EmptyBatch) } else { Ok(inner) }
        }
        _ => Err(InvalidMessage::Format(format)),
    }
}

/// Reads the properties that the core needs.
pub(crate) fn decode_message(message: &Message) -> Result<IncomingMessage, DecodeError> {
    let properties = message.properties()?;
    let ttl = message.header()?.ttl.map(u64::from);
    // A time to live beyond 32 bits does not fit the header. Clients then send both times instead.
    let span =
        properties.absolute_expiry_time.zip(properties.creation_time).map(|(end, start)| end.saturating_sub(start));
    let time_to_live = match (ttl, span.and_then(|span| u64::try_from(span).ok())) {
        (Some(ttl), Some(span)) if ttl == u64::from(u32::MAX) => Some(span.max(ttl)),
        (Some(ttl), _) => Some(ttl),
        (None, span) => span,
    };
    let scheduled_for = message.scheduled_enqueue_time().and_then(|at| u64::try_from(at).ok()).map(Timestamp);
    Ok(IncomingMessage {
        body: decimals::encode_as_service(message),
        message_id: properties.message_id.as_ref().map(message_id_text),
        session_id: properties.group_id.map(Into::into),
        partition_key: message.partition_key().map(Into::into),
        time_to_live,
        scheduled_for,
    })
}

/// Duplicate detection compares ids as text: `7` as a number and as a string are the same id, as for the service's clients.
fn message_id_text(id: &MessageId<'_>) -> Box<str> {
    match id.as_str() {
        Some(text) => text.into(),
        None => id.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use amqp::message::{BatchBuilder, Header, MessageWriter, Properties, annotation};
    use bytes::BytesMut;

    use super::*;

    fn message(id: &str) -> Bytes {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .header(&Header { ttl: Some(1_000), ..Header::default() })
            .message_annotations(|map| {
                map.put_string(annotation::PARTITION_KEY, "key").put_timestamp(annotation::SCHEDULED_ENQUEUE_TIME, 77);
            })
            .properties(&Properties { message_id: Some(id.into()), group_id: Some("s"), ..Properties::default() })
            .data(b"body");
        buffer.freeze()
    }

    #[test]
    fn the_needed_properties_are_read_and_the_bytes_kept() {
        let bytes = message("m1");
        let [read] = &decode_messages(0, bytes.clone()).unwrap()[..] else { panic!("one message") };
        assert_eq!(read.body, bytes);
        assert_eq!(read.message_id.as_deref(), Some("m1"));
        assert_eq!((read.session_id.as_deref(), read.partition_key.as_deref()), (Some("s"), Some("key")));
        assert_eq!((read.time_to_live, read.scheduled_for), (Some(1_000), Some(Timestamp(77))));
    }

    #[test]
    fn a_batch_is_its_inner_messages() {
        let mut batch = BatchBuilder::new(10_000);
        batch.add(&message("m1")).unwrap();
        batch.add(&message("m2")).unwrap();
        let read = decode_messages(BATCH_FORMAT, batch.finish()).unwrap();
        let ids: Vec<_> = read.iter().map(|message| message.message_id.as_deref().unwrap()).collect();
        assert_eq!(ids, ["m1", "m2"]);
    }

    #[test]
    fn invalid_transfers_are_refused_with_their_condition() {
        let unreadable =
            |format, bytes: &'static [u8]| decode_messages(format, Bytes::from_static(bytes)).unwrap_err().to_amqp();
        assert_eq!(unreadable(0, b"\x00\x53").condition, condition::DECODE_ERROR);
        assert_eq!(unreadable(0x1234_5600, b"").condition, condition::NOT_IMPLEMENTED);
        assert_eq!(unreadable(BATCH_FORMAT, b"").condition, condition::NOT_ALLOWED);
    }
}
