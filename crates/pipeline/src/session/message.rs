//! Reads a Service Bus message back into an event: the reverse of [`crate::publish::message`].
//!
//! A message that cannot be read, or nests deeper or is larger than `input_limits` allows, must neither block its session nor get lost:
//! - foreign message, or broken envelope: it has no position in any order. It is dead-lettered, and the session continues.
//! - readable envelope, unreadable body: the aggregate is parked at this event, as if the body were missing, and the message is also
//!   dead-lettered, so that its bytes can be inspected.
//! - missing or wrong signature, while messages are signed: dead-lettered. Signed with a key that this pod does not have: the session is released
//!   a few times, as a pod with a newer configuration may have it.
//! - newer format: not touched. The session is released for a pod of that version; only a few times if its signature cannot be verified.

use std::sync::Arc;

use amqp::Message;
use amqp::codec::ValueRef;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf};

use crate::envelope::{FORMAT, content_type, property};
use crate::error_chain::error_chain;
use crate::event::{AggregateId, Epoch, Namespace, Operation, Term};
use crate::input_limits;
use crate::signing::{self, MessageKeys, SignatureProblem};
use crate::stored::{ClaimCheckStore, claim_check};
use crate::trace::TraceContext;
use crate::view::{DeliveredEvent, EventBody, PositionKey};

/// Why a message is not an event. Contains nothing of the message contents.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableMessage {
    #[error("the message was not published by Headwater: property `{}` is missing", property::FORMAT)]
    NotHeadwater,
    #[error("the message has format {format}; this version reads up to {FORMAT}")]
    NewerFormat { format: i64 },
    #[error("property `{name}` is missing or cannot be read")]
    Property { name: &'static str },
    #[error(transparent)]
    Signature(SignatureProblem),
    /// The event without its body.
    #[error("the body does not match its content type")]
    Body(Box<DeliveredEvent>),
}

/// Reads messages; caches what consecutive messages share.
#[derive(Debug, Default)]
pub struct MessageReader {
    namespace: Option<(String, Arc<Namespace>)>,
    reads_traces: bool,
    /// `None`: signatures are not verified.
    keys: Option<Arc<MessageKeys>>,
}

impl MessageReader {
    /// Reads the trace context only if somebody records traces.
    pub fn with_tracing(reads_traces: bool) -> Self {
        Self { reads_traces, ..Self::default() }
    }

    /// Verifies signatures, if there are keys.
    #[must_use]
    pub fn verifying(self, keys: Option<Arc<MessageKeys>>) -> Self {
        Self { keys, ..self }
    }

    /// `delivery_count`: earlier deliveries by the bus. An oversize body is not read here: see [`fetch_oversize_body`].
    pub fn read(&mut self, message: &Message, delivery_count: u32) -> Result<DeliveredEvent, UnreadableMessage> {
        let envelope = EnvelopeProperties::read(message);
        let format = envelope.format.and_then(|value| value.as_integer()).ok_or(UnreadableMessage::NotHeadwater)?;
        // Before anything else is read: a newer format may have renamed the other properties.
        let is_newer = format > i64::from(FORMAT);
        if let Some(keys) = &self.keys {
            // A newer format may be signed in another way. Only a message that is certainly ours may wait for a newer pod without a limit.
            let problem = |problem| if is_newer { SignatureProblem::NewerFormat } else { problem };
            keys.verify(message).map_err(|found| UnreadableMessage::Signature(problem(found)))?;
        }
        if is_newer {
            return Err(UnreadableMessage::NewerFormat { format });
        }
        let properties = message.properties().map_err(|_| UnreadableMessage::Property { name: "message-id" })?;
        let message_id = properties.message_id.as_ref().and_then(|id| id.as_str());
        let aggregate = read_typed_value(envelope.aggregate, property::AGGREGATE)?;
        let aggregate =
            aggregate.and_then(AggregateId::new).ok_or(UnreadableMessage::Property { name: property::AGGREGATE })?;
        let key = read_typed_value(envelope.key, property::KEY)?.unwrap_or_else(|| aggregate.value().clone());
        let epoch = read_number(envelope.epoch, property::EPOCH)?;
        let token = read_text(envelope.token, property::TOKEN)?;
        let committed = envelope.committed.and_then(|value| value.as_timestamp());
        let operation = Operation::from_name(read_text(envelope.operation, property::OPERATION)?);
        let trace = envelope.traceparent.filter(|_| self.reads_traces).and_then(|value| value.as_str());
        let mut event = DeliveredEvent {
            message_id: message_id.ok_or(UnreadableMessage::Property { name: "message-id" })?.to_owned(),
            operation: operation.ok_or(UnreadableMessage::Property { name: property::OPERATION })?,
            namespace: self.namespace(read_text(envelope.namespace, property::NAMESPACE)?)?,
            aggregate,
            key,
            event_type: properties.subject.map(str::to_owned),
            sequence: envelope.sequence.and_then(|value| value.as_integer()),
            position: Some(PositionKey::new(Epoch::new(epoch), token)),
            term: Term::new(read_number(envelope.term, property::TERM)?),
            // Placeholder; the body is set below, once the envelope is complete.
            body: EventBody::Oversize(String::new()),
            committed: committed.map(DateTime::from_millis),
            delivery_count,
            dead_lettered: false,
            trace: trace.and_then(TraceContext::parse),
        };
        let id = |property: Option<ValueRef<'_>>| property.and_then(|value| value.as_str()).map(str::to_owned);
        event.body = match (id(envelope.marker), id(envelope.oversize)) {
            // A marker replaces a refused message, so it wins over the oversize reference copied from it.
            (Some(id), _) => EventBody::Marker(id),
            (None, Some(id)) => EventBody::Oversize(id),
            (None, None) => match parse_document(properties.content_type, read_body_bytes(message)) {
                Some(document) => EventBody::Document(document),
                None => {
                    // An event without a readable body is parked like one whose oversize body is missing.
                    event.body = EventBody::Oversize(event.message_id.clone());
                    return Err(UnreadableMessage::Body(Box::new(event)));
                }
            },
        };
        Ok(event)
    }

    fn namespace(&mut self, name: &str) -> Result<Arc<Namespace>, UnreadableMessage> {
        if let Some((known, namespace)) = &self.namespace
            && known == name
        {
            return Ok(Arc::clone(namespace));
        }
        // A database name has no dot; a collection name may have.
        let (database, collection) =
            name.split_once('.').ok_or(UnreadableMessage::Property { name: property::NAMESPACE })?;
        let namespace = Arc::new(Namespace::new(database, collection));
        self.namespace = Some((name.to_owned(), Arc::clone(&namespace)));
        Ok(namespace)
    }
}

/// What the store had for an oversize event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OversizeFetch {
    Found,
    /// Nothing usable: the event stays without a body and will be parked.
    Missing,
    /// Another body than the signed one: likewise.
    Altered,
}

/// Fetches an oversize body. An error means that the store could not be read.
pub async fn fetch_oversize_body(
    oversize_store: &ClaimCheckStore,
    message: &Message,
    event: &mut DeliveredEvent,
) -> Result<OversizeFetch, claim_check::Error> {
    let EventBody::Oversize(id) = &event.body else { return Ok(OversizeFetch::Found) };
    match oversize_store.read(id).await {
        Ok(bytes) if !signing::is_body_of(message, &bytes) => {
            tracing::warn!("oversize body is not the one that was signed; the event will be parked");
            Ok(OversizeFetch::Altered)
        }
        Ok(bytes) => {
            let content_type = message.properties().ok().and_then(|properties| properties.content_type);
            if let Some(document) = parse_document(content_type, bytes) {
                event.body = EventBody::Document(document);
                return Ok(OversizeFetch::Found);
            }
            Ok(OversizeFetch::Missing)
        }
        Err(error @ (claim_check::Error::Missing { .. } | claim_check::Error::Unreadable { .. })) => {
            tracing::warn!(error = error_chain(&error), "oversize body is missing; the event will be parked");
            Ok(OversizeFetch::Missing)
        }
        Err(error @ claim_check::Error::Store { .. }) => Err(error),
    }
}

fn parse_document(kind: Option<&str>, bytes: Vec<u8>) -> Option<RawDocumentBuf> {
    match kind? {
        content_type::BSON => {
            input_limits::bson_body(&bytes)?;
            RawDocumentBuf::from_bytes(bytes).ok()
        }
        content_type::JSON if input_limits::is_json_size_allowed(&bytes) => {
            let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes).ok()?;
            let document = RawDocumentBuf::try_from(&Document::try_from(json).ok()?).ok()?;
            input_limits::bson_body(document.as_bytes()).is_some().then_some(document)
        }
        _ => None,
    }
}

fn read_body_bytes(message: &Message) -> Vec<u8> {
    let mut sections = message.data();
    let mut body = sections.next().map_or_else(Vec::new, |first| first.to_vec());
    sections.for_each(|section| body.extend_from_slice(&section));
    body
}

/// The application properties, read in one pass: looking up each name would scan them all every time.
#[derive(Default)]
struct EnvelopeProperties<'a> {
    format: Option<ValueRef<'a>>,
    operation: Option<ValueRef<'a>>,
    namespace: Option<ValueRef<'a>>,
    aggregate: Option<ValueRef<'a>>,
    key: Option<ValueRef<'a>>,
    token: Option<ValueRef<'a>>,
    epoch: Option<ValueRef<'a>>,
    sequence: Option<ValueRef<'a>>,
    term: Option<ValueRef<'a>>,
    committed: Option<ValueRef<'a>>,
    oversize: Option<ValueRef<'a>>,
    marker: Option<ValueRef<'a>>,
    traceparent: Option<ValueRef<'a>>,
}

impl<'a> EnvelopeProperties<'a> {
    fn read(message: &'a Message) -> Self {
        let mut envelope = Self::default();
        for (name, value) in message.application_properties() {
            let slot = match name.as_str() {
                Some(property::FORMAT) => &mut envelope.format,
                Some(property::OPERATION) => &mut envelope.operation,
                Some(property::NAMESPACE) => &mut envelope.namespace,
                Some(property::AGGREGATE) => &mut envelope.aggregate,
                Some(property::KEY) => &mut envelope.key,
                Some(property::TOKEN) => &mut envelope.token,
                Some(property::EPOCH) => &mut envelope.epoch,
                Some(property::SEQUENCE) => &mut envelope.sequence,
                Some(property::TERM) => &mut envelope.term,
                Some(property::COMMITTED) => &mut envelope.committed,
                Some(property::OVERSIZE) => &mut envelope.oversize,
                Some(property::MARKER) => &mut envelope.marker,
                Some(property::TRACEPARENT) => &mut envelope.traceparent,
                Some(_) | None => continue,
            };
            *slot = Some(value);
        }
        envelope
    }
}

fn read_text<'a>(property: Option<ValueRef<'a>>, name: &'static str) -> Result<&'a str, UnreadableMessage> {
    property.and_then(|value| value.as_str()).ok_or(UnreadableMessage::Property { name })
}

fn read_number(property: Option<ValueRef<'_>>, name: &'static str) -> Result<u64, UnreadableMessage> {
    let read_number =
        property.and_then(|value| value.as_integer()).and_then(|read_number| u64::try_from(read_number).ok());
    read_number.ok_or(UnreadableMessage::Property { name })
}

/// A value with its BSON type, sent as the document `{v: value}`. `None` if absent.
fn read_typed_value(property: Option<ValueRef<'_>>, name: &'static str) -> Result<Option<Bson>, UnreadableMessage> {
    let Some(property) = property else { return Ok(None) };
    let read = || {
        let raw = input_limits::bson_property(property.as_binary()?)?;
        Bson::try_from(raw.get("v").ok()??).ok()
    };
    read().map(Some).ok_or(UnreadableMessage::Property { name })
}

#[cfg(test)]
mod tests;
