//! Messages to send, and received messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amqp::codec::ValueRef;
use amqp::message::{BATCH_FORMAT, FORMAT, Header, MessageId, MessageWriter, Properties, annotation};
use amqp::{Delivery, Value};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;

/// A message to be sent.
#[derive(Debug, Clone, Default)]
pub struct Message {
    pub message_id: Option<String>,
    pub session_id: Option<String>,
    pub partition_key: Option<String>,
    pub subject: Option<String>,
    pub content_type: Option<String>,
    pub correlation_id: Option<String>,
    pub to: Option<String>,
    pub reply_to: Option<String>,
    pub time_to_live: Option<Duration>,
    pub scheduled_enqueue_time: Option<SystemTime>,
    pub application_properties: Vec<(String, Value)>,
    pub body: Bytes,
}

/// An encoded message or batch. Sending it again sends the same bytes.
#[derive(Debug, Clone)]
pub struct EncodedMessage {
    pub(crate) bytes: Bytes,
    pub(crate) format: u32,
}

impl EncodedMessage {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn is_batch(&self) -> bool {
        self.format == BATCH_FORMAT
    }

    /// Wraps one message that is already encoded.
    pub fn message(bytes: Bytes) -> Self {
        Self { bytes, format: FORMAT }
    }

    /// Wraps a batch that is already encoded: see [`BatchBuilder`](amqp::message::BatchBuilder).
    pub fn batch(bytes: Bytes) -> Self {
        Self { bytes, format: BATCH_FORMAT }
    }
}

impl Message {
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    #[must_use]
    pub fn with_session(mut self, id: impl Into<String>) -> Self {
        self.session_id = Some(id.into());
        self
    }

    #[must_use]
    pub fn with_partition_key(mut self, key: impl Into<String>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.application_properties.push((name.into(), value.into()));
        self
    }

    pub fn encode(&self) -> EncodedMessage {
        let mut buffer = BytesMut::with_capacity(self.body.len() + 256);
        let mut writer = MessageWriter::new(&mut buffer);
        if let Some(ttl) = self.time_to_live {
            let ttl = Some(u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX));
            writer.header(&Header { durable: Some(true), ttl, ..Header::default() });
        }
        writer.message_annotations(|map| {
            if let Some(key) = &self.partition_key {
                map.put_string(annotation::PARTITION_KEY, key);
            }
            if let Some(at) = self.scheduled_enqueue_time {
                map.put_timestamp(annotation::SCHEDULED_ENQUEUE_TIME, millis(at));
            }
        });
        writer.properties(&Properties {
            message_id: self.message_id.as_deref().map(Into::into),
            to: self.to.as_deref(),
            subject: self.subject.as_deref(),
            reply_to: self.reply_to.as_deref(),
            correlation_id: self.correlation_id.as_deref().map(Into::into),
            content_type: self.content_type.as_deref(),
            group_id: self.session_id.as_deref(),
            ..Properties::default()
        });
        writer.application_properties(|map| {
            for (name, value) in &self.application_properties {
                value.encode(map.string(name));
            }
        });
        writer.data(&self.body);
        EncodedMessage::message(buffer.freeze())
    }
}

/// The value of `x-opt-message-state` of a deferred message.
const DEFERRED: i64 = 1;

/// A message from Service Bus, locked for this receiver until it is settled or its lock expires (the session's lock, if it has one).
#[derive(Debug)]
pub struct ReceivedMessage {
    message: amqp::Message,
    pub(crate) delivery_id: u32,
    /// The number of the delivery queue it came from.
    pub(crate) link: u64,
    lock_token: Uuid,
    sequence_number: i64,
    delivery_count: u32,
}

impl ReceivedMessage {
    pub(crate) fn read(delivery: Delivery, link: u64) -> Result<Self, amqp::codec::DecodeError> {
        let message = amqp::Message::parse(delivery.payload)?;
        // Decoded once here, so that later reads cannot fail.
        message.properties()?;
        let delivery_count = message.header()?.delivery_count;
        let sequence_number = message.annotation(annotation::SEQUENCE_NUMBER).and_then(|value| value.as_integer());
        Ok(Self {
            delivery_id: delivery.id,
            link,
            lock_token: lock_token(&delivery.tag),
            sequence_number: sequence_number.unwrap_or(0),
            delivery_count,
            message,
        })
    }

    /// A message of a response of `$management`.
    pub(crate) fn from_response(bytes: Bytes, lock_token: Uuid) -> Result<Self, amqp::codec::DecodeError> {
        let message = amqp::Message::parse(bytes)?;
        message.properties()?;
        let delivery_count = message.header()?.delivery_count;
        let sequence_number = message.annotation(annotation::SEQUENCE_NUMBER).and_then(|value| value.as_integer());
        let sequence_number = sequence_number.unwrap_or(0);
        // No delivery queue has the number 0, so no settler takes it for one of its own.
        Ok(Self { delivery_id: 0, link: 0, lock_token, sequence_number, delivery_count, message })
    }

    /// Whether it was deferred: it stays where it is until somebody receives it by its number.
    pub fn is_deferred(&self) -> bool {
        let state = self.message.annotation(annotation::MESSAGE_STATE).and_then(|value| value.as_integer());
        state == Some(DEFERRED)
    }

    /// Assigned by Service Bus. In a partitioned entity the top 16 bits are the partition.
    pub fn sequence_number(&self) -> i64 {
        self.sequence_number
    }

    /// Failed earlier deliveries; 0 the first time.
    pub fn delivery_count(&self) -> u32 {
        self.delivery_count
    }

    pub fn lock_token(&self) -> Uuid {
        self.lock_token
    }

    pub fn enqueued_time(&self) -> Option<SystemTime> {
        self.moment(annotation::ENQUEUED_TIME)
    }

    /// End of the message's own lock, by the clock of Service Bus.
    pub fn locked_until(&self) -> Option<SystemTime> {
        self.moment(annotation::LOCKED_UNTIL)
    }

    pub fn message_id(&self) -> Option<String> {
        self.properties().message_id.as_ref().map(MessageId::to_string)
    }

    pub fn session_id(&self) -> Option<&str> {
        self.properties().group_id
    }

    pub fn partition_key(&self) -> Option<&str> {
        self.message.partition_key()
    }

    pub fn subject(&self) -> Option<&str> {
        self.properties().subject
    }

    pub fn content_type(&self) -> Option<&str> {
        self.properties().content_type
    }

    pub fn correlation_id(&self) -> Option<String> {
        self.properties().correlation_id.as_ref().map(MessageId::to_string)
    }

    pub fn application_property(&self, name: &str) -> Option<ValueRef<'_>> {
        self.message.application_property(name)
    }

    pub fn dead_letter_reason(&self) -> Option<&str> {
        self.application_property("DeadLetterReason")?.as_str()
    }

    pub fn dead_letter_description(&self) -> Option<&str> {
        self.application_property("DeadLetterErrorDescription")?.as_str()
    }

    /// The data sections. A single section, the usual case, is not copied.
    pub fn body(&self) -> Bytes {
        let mut sections = self.message.data();
        let first = sections.next().unwrap_or_default();
        let rest: Vec<Bytes> = sections.collect();
        if rest.is_empty() {
            return first;
        }
        let mut body = BytesMut::from(&first[..]);
        rest.iter().for_each(|section| body.extend_from_slice(section));
        body.freeze()
    }

    /// The whole message as received.
    pub fn raw(&self) -> &amqp::Message {
        &self.message
    }

    fn properties(&self) -> Properties<'_> {
        self.message.properties().unwrap_or_default()
    }

    fn moment(&self, name: &str) -> Option<SystemTime> {
        from_millis(self.message.annotation(name)?.as_timestamp()?)
    }
}

/// The delivery tag is a GUID in .NET byte order: the first three groups are byte-swapped.
fn lock_token(tag: &[u8]) -> Uuid {
    <[u8; 16]>::try_from(tag).map_or(Uuid::nil(), Uuid::from_bytes_le)
}

pub(crate) fn from_millis(millis: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(millis).ok()?))
}

fn millis(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0)
}
