//! Encodes an event as a message: the same bytes from every leader, except for the term, and the signature if messages are signed.
//!
//! This is the hot path. The encoder writes each message into one buffer, copies the document bytes unchanged, and caches the properties that
//! consecutive events share.

use std::sync::Arc;

use amqp::codec::{MapWriter, encode};
use amqp::message::{MessageWriter, Properties, annotation};
use bytes::{Bytes, BytesMut};
use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, cstr};
use sha2::{Digest, Sha256};

use super::config::{BodyFormat, SessionMapping};
use crate::checkpoint::ReplayCounter;
use crate::envelope::{self, content_type, property};
use crate::event::{AggregateId, ChangeEvent, Epoch, Namespace, Operation, Term};
use crate::failpoints::Failpoint;
use crate::signing::{MessageKeys, body_hash};
use crate::trace::TraceSampling;

/// The message id: SHA-256 in hexadecimal. For a change, of the resume token; once an operator has moved the checkpoint, of the replay counter and the token. For a snapshot event, of run, namespace, `_id` and, if they differ from it,
/// aggregate and sequence; for a sweep delete, also of the word `sweep`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventMessageId([u8; 64]);

impl EventMessageId {
    /// `run` is the snapshot run that read the event, if any.
    pub fn for_event(event: &ChangeEvent, run: Option<&str>) -> Self {
        Self::for_replay(event, run, ReplayCounter::default())
    }

    /// As [`for_event`](Self::for_event), after an operator has moved the checkpoint.
    pub fn for_replay(event: &ChangeEvent, run: Option<&str>, replay: ReplayCounter) -> Self {
        let mut hash = Sha256::new();
        if Failpoint::RandomMessageIds.is_enabled() {
            hash.update(rand::random::<u64>().to_be_bytes());
        }
        match run {
            None => {
                if replay > ReplayCounter::default() {
                    hash.update(replay.get().to_be_bytes());
                }
                hash.update(event.token.key());
            }
            Some(run) => {
                let Namespace { database, collection } = &*event.namespace;
                // Names contain no zero byte, so the separator keeps different lists apart.
                for part in [run, database, collection] {
                    hash.update(part);
                    hash.update([0]);
                }
                hash.update(encode_typed(&event.key).as_bytes());
                // Events sharded by aggregate may share an `_id`, which is unique only per shard.
                if let Some(aggregate) = event.aggregate.as_ref().filter(|aggregate| *aggregate.value() != event.key) {
                    hash.update(encode_typed(aggregate.value()).as_bytes());
                    hash.update(event.sequence.unwrap_or_default().to_be_bytes());
                }
                // The scan of the same run may have read the same key.
                if event.operation == Operation::Delete {
                    hash.update("sweep");
                }
            }
        }
        Self(to_hex(&hash.finalize()))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits")
    }
}

impl std::fmt::Debug for EventMessageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

fn to_hex(digest: &[u8]) -> [u8; 64] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// Where the body of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLocation {
    Inline,
    /// The body is in `oversize_events`.
    ClaimCheck,
}

/// Encodes the messages of one term.
#[derive(Debug)]
pub struct Encoder {
    body: BodyFormat,
    sessions: SessionMapping,
    epoch: Epoch,
    term: Term,
    /// Small messages share allocations; each message keeps its allocation alive.
    buffer: BytesMut,
    common: Option<CommonProperties>,
    sampling: TraceSampling,
    /// `None`: messages are not signed.
    keys: Option<Arc<MessageKeys>>,
}

/// The encoded properties that events of one namespace and operation share.
#[derive(Debug)]
struct CommonProperties {
    operation: Operation,
    namespace: Arc<Namespace>,
    entries: u32,
    bytes: BytesMut,
}

/// About eight small messages share one buffer: more would save little time and hold much memory. Larger messages get their own buffer.
const SHARED_BUFFER: usize = 8 << 10;

impl SessionMapping {
    /// The session of an aggregate.
    pub fn session_id(self, aggregate: &AggregateId) -> String {
        let text = aggregate.session_id();
        match self {
            Self::Aggregate => text,
            Self::Buckets(count) => {
                let digest = Sha256::digest(&text);
                let (head, _) = digest.split_first_chunk::<8>().expect("a digest has 32 bytes");
                format!("bucket-{}", u64::from_be_bytes(*head) % u64::from(count.get()))
            }
        }
    }
}

impl Encoder {
    pub fn new(body: BodyFormat, sessions: SessionMapping, epoch: Epoch, term: Term) -> Self {
        let (buffer, sampling) = (BytesMut::new(), TraceSampling::NONE);
        Self { body, sessions, epoch, term, buffer, common: None, sampling, keys: None }
    }

    /// Marks the messages of sampled events as traced.
    #[must_use]
    pub fn sampling(self, sampling: TraceSampling) -> Self {
        Self { sampling, ..self }
    }

    /// Signs the messages, if there are keys.
    #[must_use]
    pub fn signing(self, keys: Option<Arc<MessageKeys>>) -> Self {
        Self { keys, ..self }
    }

    pub fn session_id(&self, aggregate: &AggregateId) -> String {
        let session = self.sessions.session_id(aggregate);
        match Failpoint::SessionsPerAggregate.is_enabled() {
            true => format!("{session}-{}", rand::random::<u8>() % 4),
            false => session,
        }
    }

    /// The encoded body, if it differs from the document bytes.
    pub fn body(&self, event: &ChangeEvent) -> Option<Vec<u8>> {
        match self.body {
            BodyFormat::Bson => None,
            BodyFormat::Json => Some(relaxed_json(event)),
        }
    }

    pub fn content_type(&self) -> &'static str {
        match self.body {
            BodyFormat::Bson => content_type::BSON,
            BodyFormat::Json => content_type::JSON,
        }
    }

    /// Encodes one message, and signs it if there are keys.
    pub fn encode(
        &mut self,
        event: &ChangeEvent,
        aggregate: &AggregateId,
        id: &EventMessageId,
        session: &str,
        content: BodyLocation,
    ) -> Bytes {
        let message = self.encode_unsigned(event, aggregate, id, session, content);
        sign(message, self.keys.as_deref())
    }

    fn encode_unsigned(
        &mut self,
        event: &ChangeEvent,
        aggregate: &AggregateId,
        id: &EventMessageId,
        session: &str,
        content: BodyLocation,
    ) -> Bytes {
        let json = (content == BodyLocation::Inline).then(|| self.body(event)).flatten();
        let body: &[u8] = match (content, &json) {
            (BodyLocation::Inline, Some(json)) => json,
            (BodyLocation::Inline, None) => event.document.as_bytes(),
            (BodyLocation::ClaimCheck, _) => &[],
        };
        let oversize_hash = self.oversize_hash(event, content);
        self.cache_common(event);
        let common = self.common.as_ref().expect("cached right before");
        let expected = body.len() + common.bytes.len() + event.token.key().len() + 2 * session.len() + 640;
        let content_type = self.content_type();
        let large = expected > SHARED_BUFFER / 4;
        let mut own = BytesMut::new();
        let buffer = if large { &mut own } else { &mut self.buffer };
        if buffer.capacity() - buffer.len() < expected {
            buffer.reserve(if large { expected } else { SHARED_BUFFER });
        }
        let mut writer = MessageWriter::new(buffer);
        writer.message_annotations(|map| {
            map.put_string(annotation::PARTITION_KEY, session);
        });
        writer.properties(&Properties {
            message_id: Some(id.as_str().into()),
            subject: event.event_type.as_deref(),
            content_type: Some(content_type),
            group_id: Some(session),
            ..Properties::default()
        });
        writer.application_properties(|map| {
            common.write(map);
            write_event(map, event, aggregate, id, content);
            if let Some(hash) = &oversize_hash {
                encode::binary(map.string(property::OVERSIZE_HASH), hash);
            }
            write_trace(map, id, self.sampling.includes(id));
        });
        writer.data(body);
        if large { own.freeze() } else { self.buffer.split().freeze() }
    }

    /// The signature covers a body that is stored elsewhere by its hash.
    fn oversize_hash(&self, event: &ChangeEvent, content: BodyLocation) -> Option<[u8; 32]> {
        let is_needed = self.keys.is_some() && content == BodyLocation::ClaimCheck;
        is_needed.then(|| body_hash(self.body(event).as_deref().unwrap_or(event.document.as_bytes())))
    }

    /// A message without a body that replaces a refused one: it keeps session and position, and drops everything that may have caused the
    /// refusal. `None` if `refused` is a marker itself, or is not ours.
    pub fn rejected_marker(&self, refused: &amqp::Message) -> Option<Bytes> {
        rejected_marker(refused).map(|marker| sign(marker, self.keys.as_deref()))
    }

    /// Encodes the common properties, unless the last event had the same ones.
    fn cache_common(&mut self, event: &ChangeEvent) {
        let same =
            |common: &CommonProperties| common.operation == event.operation && common.namespace == event.namespace;
        if !self.common.as_ref().is_some_and(same) {
            self.common = Some(CommonProperties::new(event.operation, &event.namespace, self.epoch, self.term));
        }
    }
}

impl CommonProperties {
    fn new(operation: Operation, namespace: &Arc<Namespace>, epoch: Epoch, term: Term) -> Self {
        let mut bytes = BytesMut::new();
        let name = namespace.to_string();
        let mut entries = 0;
        let mut key = |bytes: &mut BytesMut, key| {
            entries += 1;
            encode::string(bytes, key);
        };
        key(&mut bytes, property::FORMAT);
        encode::int(&mut bytes, envelope::FORMAT);
        key(&mut bytes, property::OPERATION);
        encode::string(&mut bytes, operation.as_str());
        key(&mut bytes, property::NAMESPACE);
        encode::string(&mut bytes, &name);
        key(&mut bytes, property::EPOCH);
        encode::long(&mut bytes, to_i64(epoch.get()));
        key(&mut bytes, property::TERM);
        encode::long(&mut bytes, to_i64(term.get()));
        key(&mut bytes, property::CLOUD_EVENTS_VERSION);
        encode::string(&mut bytes, "1.0");
        key(&mut bytes, property::CLOUD_EVENTS_SOURCE);
        encode::string(&mut bytes, &format!("mongodb:{name}"));
        Self { operation, namespace: Arc::clone(namespace), entries, bytes }
    }

    fn write(&self, map: &mut MapWriter<'_>) {
        for _ in 1..self.entries {
            map.entry();
        }
        map.entry().extend_from_slice(&self.bytes);
    }
}

/// Writes the properties of this event only.
fn write_event(
    map: &mut MapWriter<'_>,
    event: &ChangeEvent,
    aggregate: &AggregateId,
    id: &EventMessageId,
    content: BodyLocation,
) {
    encode::binary(map.string(property::AGGREGATE), encode_typed(aggregate.value()).as_bytes());
    if event.key != *aggregate.value() {
        encode::binary(map.string(property::KEY), encode_typed(&event.key).as_bytes());
    }
    encode::string(map.string(property::TOKEN), event.token.key());
    if let Some(sequence) = event.sequence {
        encode::long(map.string(property::SEQUENCE), sequence);
    }
    if let Some(time) = event.committed_at() {
        encode::timestamp(map.string(property::COMMITTED), time.timestamp_millis());
    }
    encode::string(map.string(property::CLOUD_EVENTS_ID), id.as_str());
    if content == BodyLocation::ClaimCheck {
        encode::string(map.string(property::OVERSIZE), id.as_str());
    }
    let kind = event.event_type.as_deref().unwrap_or(event.operation.as_str());
    encode::string(map.string(property::CLOUD_EVENTS_TYPE), kind);
}

/// Adds a signature, if there are keys.
fn sign(message: Bytes, keys: Option<&MessageKeys>) -> Bytes {
    match keys {
        None => message,
        Some(keys) => keys.sign(&amqp::Message::parse(message).expect("a message we encoded can be decoded")),
    }
}

fn rejected_marker(refused: &amqp::Message) -> Option<Bytes> {
    let properties = refused.properties().ok()?;
    let id = properties.message_id.as_ref()?.as_str()?.to_owned();
    if refused.application_property(property::MARKER).is_some() {
        return None;
    }
    let mut buffer = BytesMut::new();
    MessageWriter::new(&mut buffer)
        .message_annotations_over(refused.message_annotations(), &[], |_| {})
        .properties(&Properties {
            message_id: Some((&*id).into()),
            group_id: properties.group_id,
            ..Properties::default()
        })
        .application_properties_over(
            refused.application_properties(),
            &[property::CLOUD_EVENTS_TYPE, property::SIGNATURE],
            |map| {
                encode::string(map.string(property::MARKER), &id);
            },
        )
        .data(&[]);
    Some(buffer.freeze())
}

/// Whether the message replaces a rejected event.
pub fn is_marker(message: Bytes) -> bool {
    amqp::Message::parse(message).is_ok_and(|message| message.application_property(property::MARKER).is_some())
}

/// Writes the trace context: see [`crate::trace`]. Hand-written for speed, since every message has one.
fn write_trace(map: &mut MapWriter<'_>, id: &EventMessageId, sampled: bool) {
    let (digits, rest) = id.as_str().split_at(32);
    let span = &rest[..16];
    let mut text = String::with_capacity(55);
    for part in ["00-", digits, "-", span, if sampled { "-01" } else { "-00" }] {
        text.push_str(part);
    }
    encode::string(map.string(property::TRACEPARENT), &text);
    if sampled {
        encode::string(map.string(property::DIAGNOSTIC_ID), &text);
    }
}

/// A value with its type: the document `{v: value}`.
fn encode_typed(value: &Bson) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    match value {
        Bson::String(text) => document.append(cstr!("v"), text.as_str()),
        Bson::ObjectId(id) => document.append(cstr!("v"), *id),
        other => match RawBson::try_from(other.clone()) {
            Ok(raw) => document.append(cstr!("v"), raw),
            // Fails only for a zero byte in a name, which valid BSON cannot contain.
            Err(_) => document.append(cstr!("v"), RawBson::Null),
        },
    }
    document
}

fn relaxed_json(event: &ChangeEvent) -> Vec<u8> {
    match Document::try_from(&*event.document) {
        Ok(document) => Bson::Document(document).into_relaxed_extjson().to_string().into_bytes(),
        // Not readable as a document: pass the bytes through.
        Err(_) => event.document.as_bytes().to_vec(),
    }
}

/// AMQP and BSON integers are signed; terms and epochs stay far below the limit.
fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
