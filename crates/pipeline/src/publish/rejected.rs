//! Events that could not become messages, kept with the reason. Never dropped: an operator lists, mends and discards them.

use bytes::Bytes;
use mongo_error::DriverError;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};

use super::majority;
use super::message::EventMessageId;
use crate::envelope::property;
use crate::event::{ChangeEvent, Term};

/// The collection of the coordination database. Documents without a `reason` are chunks of one that has.
pub const COLLECTION: &str = "rejected_events";

/// What of an event fits beside the other fields; the rest goes into chunks.
const CHUNK: usize = 8 << 20;
const FORMAT: i32 = 1;

/// Why an event is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// It does not say whom it belongs to.
    NoAggregateId,
    /// The bus will not have it, whatever is tried; in its own words.
    Refused(String),
    /// Too large, even without its body.
    TooLarge,
}

impl RejectReason {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoAggregateId => "no_aggregate_id",
            Self::Refused(_) => "refused",
            Self::TooLarge => "too_large",
        }
    }

    fn detail(&self) -> Option<&str> {
        match self {
            Self::Refused(words) => Some(words),
            Self::NoAggregateId | Self::TooLarge => None,
        }
    }
}

/// An event that is to be kept.
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

    /// Everything there is to know of an event is on its message.
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
        Self { events: majority(coordination, COLLECTION), pipeline: pipeline.into() }
    }

    /// Keeps it. Done again, by this leader or another, it changes nothing.
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
        let kept = doc! { "$setOnInsert": fields };
        self.events.update_one(doc! { "_id": id }, kept).upsert(true).await?;
        Ok(())
    }
}

fn binary(bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }
}
