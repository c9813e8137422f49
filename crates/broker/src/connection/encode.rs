//! Encodes stored messages for receivers: a new header and new annotations before the stored bytes.

use amqp::Message;
use amqp::codec::{DecodeError, encode};
use amqp::message::{Header, MessageWriter, Properties, annotation};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use crate::core::{LockToken, MessageDelivery, PropertyOverrides, StoredEnvelope, Timestamp};
use crate::journal::ReadJournalEntry;

/// How a message reaches the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryForm {
    /// Delivered on a link.
    Delivered,
    /// In a response to `receive-by-sequence-number`: it was deferred.
    Fetched,
    /// Peeked: no lock, but with its state.
    Peeked(WireMessageState),
    /// Peeked: its size instead of its body.
    PeekedWithoutBody(WireMessageState),
}

/// The numbers are those on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireMessageState {
    Active = 0,
    Deferred = 1,
    Scheduled = 2,
}

/// The largest time to live that fits the header.
const MAX_HEADER_TTL: u64 = u32::MAX as u64;

/// Writes the head of the message to `head` and returns the stored bytes that follow it.
///
/// `source` is the entity that a dead letter comes from.
pub(crate) fn encode_message(
    delivery: &MessageDelivery,
    stored: &ReadJournalEntry,
    source: Option<&str>,
    shown: DeliveryForm,
    head: &mut BytesMut,
) -> Result<Bytes, DecodeError> {
    let envelope = StoredEnvelope::decode(&stored.meta).map_err(|_| DecodeError::Missing("envelope"))?;
    let message = Message::parse(stored.body.clone())?;
    let overrides = delivery.overrides.as_deref();
    let mut writer = MessageWriter::new(head);
    let sent = message.header()?;
    writer.header(&Header {
        durable: sent.durable,
        priority: sent.priority,
        ttl: envelope.time_to_live.map(|ttl| ttl.min(MAX_HEADER_TTL) as u32),
        first_acquirer: sent.first_acquirer,
        delivery_count: delivery.delivery_count.into(),
    });
    writer.delivery_annotations_over(message.delivery_annotations(), &[annotation::LOCK_TOKEN], |map| {
        if !delivery.settled {
            encode::uuid(map.symbol(annotation::LOCK_TOKEN), lock_token_uuid(delivery.token));
        }
        if let DeliveryForm::PeekedWithoutBody(_) = shown {
            map.put_long(OMITTED_BODY_SIZE, message.body_and_footer().len() as i64);
        }
    });
    writer.message_annotations_over(message.message_annotations(), BROKER_ANNOTATIONS, |map| {
        let dead_lettered = overrides.and_then(|changed| changed.enqueued_sequence);
        let enqueued = dead_lettered.or((envelope.sequence != delivery.sequence).then_some(envelope.sequence));
        map.put_long(annotation::SEQUENCE_NUMBER, delivery.sequence.0 as i64)
            .put_timestamp(annotation::ENQUEUED_TIME, to_millis(envelope.enqueued_at));
        // Only for a message with a new sequence number: in a dead-letter queue, or after it was scheduled.
        if let Some(enqueued) = enqueued {
            map.put_long(annotation::ENQUEUE_SEQUENCE_NUMBER, enqueued.0 as i64);
        }
        if let Some(session) = envelope.session.as_deref().filter(|_| message.partition_key().is_none()) {
            map.put_string(annotation::PARTITION_KEY, session);
        }
        let forwarded = overrides.and_then(|changed| changed.dead_letter_source.as_deref());
        if let Some(source) = source.or(forwarded) {
            map.put_string(annotation::DEAD_LETTER_SOURCE, source);
        }
        // A scheduled message keeps its state when it becomes active, as in Azure Service Bus.
        let scheduled = envelope.due_at.map(|_| WireMessageState::Scheduled);
        let state = match shown {
            DeliveryForm::Delivered => scheduled,
            DeliveryForm::Fetched => Some(WireMessageState::Deferred),
            DeliveryForm::Peeked(WireMessageState::Active)
            | DeliveryForm::PeekedWithoutBody(WireMessageState::Active) => scheduled.or(Some(WireMessageState::Active)),
            DeliveryForm::Peeked(state) | DeliveryForm::PeekedWithoutBody(state) => Some(state),
        };
        if let Some(state) = state {
            encode::int(map.symbol(annotation::MESSAGE_STATE), state as i32);
        }
        if !delivery.settled {
            map.put_timestamp(annotation::LOCKED_UNTIL, to_millis(delivery.locked_until));
        }
    });
    let body = match shown {
        DeliveryForm::PeekedWithoutBody(_) => Bytes::new(),
        _ => message.body_and_footer(),
    };
    let changed = overrides.filter(|changed| has_property_changes(changed));
    let properties = message.properties()?;
    if changed.is_none() && properties.message_id.is_some() {
        let omitted = message.body_and_footer().len() - body.len();
        let tail = message.after_annotations();
        return Ok(tail.slice(..tail.len() - omitted));
    }
    match properties.message_id {
        Some(_) => drop(writer.encoded(&message.properties_section())),
        // The service assigns an id if the sender did not. The JavaScript SDK relies on it.
        None => {
            let id = generated_message_id(&envelope);
            writer.properties(&Properties { message_id: Some(id.as_str().into()), ..properties });
        }
    }
    let unchanged = PropertyOverrides::default();
    let changed = changed.unwrap_or(&unchanged);
    let texts = [("DeadLetterReason", &changed.reason), ("DeadLetterErrorDescription", &changed.description)];
    let texts = texts.map(|(name, text)| (name, text.as_deref()));
    let mut replaced: Vec<&str> = changed.properties.iter().map(|(name, _)| &**name).collect();
    replaced.extend(texts.iter().filter(|(_, text)| text.is_some()).map(|(name, _)| *name));
    writer.application_properties_over(message.application_properties(), &replaced, |map| {
        for (name, text) in texts {
            if let Some(text) = text {
                encode::string(map.string(name), text);
            }
        }
        let given = |name: &str| texts.iter().any(|(own, text)| *own == name && text.is_some());
        for (name, value) in changed.properties.iter().filter(|(name, _)| !given(name)) {
            map.string(name).extend_from_slice(value);
        }
    });
    Ok(body)
}

/// The delivery annotation with the size of a body that the client did not ask for.
const OMITTED_BODY_SIZE: &str = "omitted-message-body-size";

/// Annotations that the broker writes. A sender's values for them are dropped.
const BROKER_ANNOTATIONS: &[&str] = &[
    annotation::SEQUENCE_NUMBER,
    annotation::ENQUEUED_TIME,
    annotation::ENQUEUE_SEQUENCE_NUMBER,
    annotation::LOCKED_UNTIL,
    annotation::DEAD_LETTER_SOURCE,
    annotation::MESSAGE_STATE,
];

/// The same at every delivery, because it is derived from stored values.
fn generated_message_id(envelope: &StoredEnvelope) -> String {
    format!("{:016x}{:016x}", envelope.enqueued_at.0, envelope.sequence.0)
}

fn has_property_changes(changed: &PropertyOverrides) -> bool {
    changed.reason.is_some() || changed.description.is_some() || !changed.properties.is_empty()
}

pub(super) fn to_millis(at: Timestamp) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

/// A lock token as `$management` writes it.
pub(super) fn lock_token_uuid(token: LockToken) -> Uuid {
    Uuid::from_u128(token.0)
}

/// A lock token as a delivery tag: the same GUID in .NET byte order.
pub(super) fn delivery_tag(token: LockToken) -> [u8; 16] {
    lock_token_uuid(token).to_bytes_le()
}
