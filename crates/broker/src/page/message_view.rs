//! Messages as the page shows them: what a client would receive, as JSON.

use amqp::Message;
use amqp::codec::MapEntries;
use amqp::message::MessageId;
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::body;
use super::draft;
use crate::connection::{DeliveryForm, WireMessageState, encode_message};
use crate::core::{
    CallContext, Error, LockToken, MessageDelivery, MessageState, PeekedMessage, StoredEnvelope, Subqueue, Timestamp,
};

/// A message read from the journal, encoded as for a client.
pub(super) struct ReadMessage {
    peeked: PeekedMessage,
    envelope: StoredEnvelope,
    encoded: Bytes,
    /// The bytes that the sender sent.
    pub(super) stored: Bytes,
}

const UNREADABLE: Error = Error::NotAllowed("stored message cannot be decoded");

/// Reads a message on the engine thread. `entity` is the path of its queue or subscription.
pub(super) fn read(
    call: &CallContext<'_>,
    entity: &str,
    subqueue: Subqueue,
    peeked: PeekedMessage,
) -> Result<ReadMessage, Error> {
    let entry = call.journal.read(peeked.location)?;
    let state = match peeked.state {
        MessageState::Active => WireMessageState::Active,
        MessageState::Deferred => WireMessageState::Deferred,
        MessageState::Scheduled => WireMessageState::Scheduled,
    };
    let delivery = MessageDelivery {
        token: LockToken(0),
        sequence: peeked.sequence,
        delivery_count: peeked.delivery_count,
        locked_until: Timestamp(0),
        location: peeked.location,
        overrides: peeked.overrides.clone(),
        settled: true,
    };
    let source = (subqueue == Subqueue::DeadLetter).then_some(entity);
    let mut encoded = BytesMut::new();
    let tail = encode_message(&delivery, &entry, source, DeliveryForm::Peeked(state), &mut encoded);
    encoded.extend_from_slice(&tail.map_err(|_| UNREADABLE)?);
    let envelope = StoredEnvelope::decode(&entry.meta).map_err(|_| UNREADABLE)?;
    Ok(ReadMessage { peeked, envelope, encoded: encoded.freeze(), stored: entry.body })
}

impl ReadMessage {
    fn parse(&self) -> Result<Message, Error> {
        Message::parse(self.encoded.clone()).map_err(|_| UNREADABLE)
    }

    /// One row of a list.
    pub(super) fn summary(&self) -> Result<Value, Error> {
        let message = self.parse()?;
        let properties = message.properties().map_err(|_| UNREADABLE)?;
        let text = |name: &str| message.application_property(name).and_then(|value| value.as_text().map(str::to_owned));
        let state = match self.peeked.state {
            MessageState::Active => "active",
            MessageState::Deferred => "deferred",
            MessageState::Scheduled => "scheduled",
        };
        let expires_at = self.envelope.time_to_live.and_then(|ttl| {
            let from = self.envelope.due_at.unwrap_or(self.envelope.enqueued_at);
            from.0.checked_add(ttl)
        });
        Ok(json!({
            "sequence": self.peeked.sequence.0.to_string(),
            "state": state,
            "locked": self.peeked.is_locked,
            "delivery_count": self.peeked.delivery_count,
            "enqueued_at": self.envelope.enqueued_at.0,
            "scheduled_for": self.envelope.due_at.map(|due| due.0),
            "expires_at": expires_at,
            "size": body::content(&message).1.len(),
            "message_id": properties.message_id.as_ref().map(id_text),
            "session_id": properties.group_id,
            "subject": properties.subject,
            "content_type": properties.content_type,
            "dead_letter_reason": text("DeadLetterReason"),
            "dead_letter_description": text("DeadLetterErrorDescription"),
        }))
    }

    /// Everything about one message, with the start of its body.
    pub(super) fn details(&self) -> Result<Value, Error> {
        let message = self.parse()?;
        let properties = message.properties().map_err(|_| UNREADABLE)?;
        let (kind, content) = body::content(&message);
        let mut details = self.summary()?;
        let more = json!({
            "time_to_live": self.envelope.time_to_live,
            "correlation_id": properties.correlation_id.as_ref().map(id_text),
            "to": properties.to,
            "reply_to": properties.reply_to,
            "reply_to_session_id": properties.reply_to_group_id,
            "partition_key": message.partition_key(),
            "content_encoding": properties.content_encoding,
            "properties": entries(message.application_properties()),
            "annotations": entries(message.message_annotations()),
            "body_kind": kind,
            "body": body::shown(&content),
            "editable": draft::can_edit(&message, kind, &content),
        });
        if let (Value::Object(details), Value::Object(more)) = (&mut details, more) {
            details.extend(more);
        }
        Ok(details)
    }
}

/// Name, type and value of each entry, as text.
fn entries(map: MapEntries<'_>) -> Vec<Value> {
    let describe = |(name, value): (amqp::codec::ValueRef<'_>, amqp::codec::ValueRef<'_>)| {
        let name = name.to_value().map(|name| body::describe(&name).1).unwrap_or_default();
        let (kind, text) = value.to_value().map_or(("unreadable", String::new()), |value| body::describe(&value));
        json!({"name": name, "type": kind, "value": text})
    };
    map.map(describe).collect()
}

fn id_text(id: &MessageId<'_>) -> String {
    id.as_str().map_or_else(|| body::describe(&id.to_value()).1, str::to_owned)
}
