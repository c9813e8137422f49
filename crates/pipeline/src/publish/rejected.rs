//! Stores events that cannot become messages, with the reason. Never drops them: an operator lists, fixes and discards them.

use bytes::Bytes;
use mongo_error::DriverError;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};

use super::message::EventMessageId;
use crate::envelope::property;
use crate::event::{ChangeEvent, Term};
use crate::stored::majority_collection;

/// The collection in the coordination database. Documents without a `reason` are further chunks of another document.
pub const COLLECTION: &str = "rejected_events";

/// Bytes of an event in one document; the rest goes into chunks.
const CHUNK: usize = 8 << 20;
const FORMAT: i32 = 1;

/// Why an event is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The document has no valid aggregate id.
    NoAggregateId,
    /// The source has a sequence, and the document has no [usable value](crate::sequence) there: its place in the aggregate is unknown.
    NoSequence,
    /// Service Bus refuses it permanently; with the error text.
    Refused(String),
    /// Too large even without its body.
    TooLarge,
}

impl RejectReason {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoAggregateId => "no_aggregate_id",
            Self::NoSequence => "no_sequence",
            Self::Refused(_) => "refused",
            Self::TooLarge => "too_large",
        }
    }

    fn detail(&self) -> Option<&str> {
        match self {
            Self::Refused(detail) => Some(detail),
            Self::NoAggregateId | Self::NoSequence | Self::TooLarge => None,
        }
    }
}

/// An event to store.
#[derive(Clone, Debug)]
pub struct RejectedEvent {
    pub message_id: String,
    pub reason: RejectReason,
    namespace: String,
    key: Option<Bson>,
    token: String,
    document: Bytes,
    /// The body is in `oversize_events`.
    oversize: bool,
}

impl RejectedEvent {
    pub fn from_event(event: &ChangeEvent, id: &EventMessageId, reason: RejectReason) -> Self {
        Self {
            message_id: id.as_str().to_owned(),
            reason,
            namespace: event.namespace.to_string(),
            key: Some(event.key.clone()),
            token: event.token.key().to_owned(),
            document: Bytes::copy_from_slice(event.document.as_bytes()),
            oversize: false,
        }
    }

    /// Restores the event from its message.
    pub fn from_message(message: &amqp::Message, reason: RejectReason) -> Self {
        let text = |name| message.application_property(name).and_then(|value| value.as_str()).unwrap_or_default();
        let id = message.properties().ok().and_then(|properties| properties.message_id);
        let key = message.application_property(property::KEY);
        let key = key.or_else(|| message.application_property(property::AGGREGATE));
        let key = key.and_then(|value| Document::from_reader(value.as_binary()?).ok());
        Self {
            message_id: id.map(|id| id.to_string()).unwrap_or_default(),
            reason,
            namespace: text(property::NAMESPACE).to_owned(),
            key: key.and_then(|mut document| document.remove("v")),
            token: text(property::TOKEN).to_owned(),
            document: message.data().next().unwrap_or_default(),
            oversize: message.application_property(property::OVERSIZE).is_some(),
        }
    }
}

/// The rejected events of one pipeline.
#[derive(Clone, Debug)]
pub struct RejectedStore {
    events: Collection<Document>,
    pipeline: String,
}

impl RejectedStore {
    pub fn new(coordination: &Database, pipeline: impl Into<String>) -> Self {
        Self { events: majority_collection(coordination, COLLECTION), pipeline: pipeline.into() }
    }

    /// Idempotent: a repeat, also by another leader, changes nothing.
    pub async fn insert(&self, rejection: &RejectedEvent, term: Term) -> Result<(), DriverError> {
        let RejectedEvent { message_id, reason, document, .. } = rejection;
        let chunks = document.chunks(CHUNK).skip(1);
        for (chunk, bytes) in (1_i64..).zip(chunks) {
            let id = doc! { "pipeline": &self.pipeline, "message": message_id, "chunk": chunk };
            self.insert_document(id, doc! { "format": FORMAT, "document": binary(bytes) }).await?;
        }
        let id = doc! { "pipeline": &self.pipeline, "message": message_id };
        let first = document.chunks(CHUNK).next().unwrap_or_default();
        let fields = doc! {
            "format": FORMAT,
            "reason": reason.code(),
            "detail": reason.detail(),
            "namespace": &rejection.namespace,
            "key": rejection.key.clone(),
            "token": &rejection.token,
            "document": binary(first),
            "chunks": i64::try_from(document.len().div_ceil(CHUNK).max(1)).unwrap_or(i64::MAX),
            "oversize": rejection.oversize,
            "term": i64::try_from(term.get()).unwrap_or(i64::MAX),
        };
        self.insert_document(id, fields).await
    }

    async fn insert_document(&self, id: Document, mut fields: Document) -> Result<(), DriverError> {
        fields.insert("at", DateTime::now());
        let update = doc! { "$setOnInsert": fields };
        self.events.update_one(doc! { "_id": id }, update).upsert(true).await?;
        Ok(())
    }
}

fn binary(bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }
}
