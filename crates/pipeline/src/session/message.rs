//! A message back into the event it was made of: the twin of [`crate::publish::message`].
//!
//! What cannot be read gets a verdict, so that it neither blocks its session for ever nor is lost:
//! - not ours, or its envelope is broken: it has no place in any order; it goes to the dead letters, and the session goes on;
//! - its envelope can be read and its body cannot: its aggregate is parked in its place, as if the body were gone, and the message goes to
//!   the dead letters besides, where its bytes can be looked at;
//! - written by a newer version: not touched. The session is let go, for a pod of that version to take it.

use std::sync::Arc;

use amqp::Message;
use mongodb::bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf};

use crate::chain::chain;
use crate::envelope::{FORMAT, content_type, property};
use crate::event::{AggregateId, Epoch, Namespace, Operation, Term};
use crate::publish::{Oversize, oversize};
use crate::trace::Context;
use crate::view::{Body, Delivered, PositionKey};

/// Why a message is not an event. Nothing of its contents is in it.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it was not published by headwater: property `{}` is missing", property::FORMAT)]
    NotOurs,
    #[error("it has format {format}, and this version knows {FORMAT}")]
    Newer { format: i64 },
    #[error("property `{name}` is missing or cannot be read")]
    Property { name: &'static str },
    /// The event, without its body.
    #[error("its body is not a document of its content type")]
    Body(Box<Delivered>),
}

/// Reads messages; remembers what the last one had in common with the next.
#[derive(Debug, Default)]
pub struct Reader {
    namespace: Option<(String, Arc<Namespace>)>,
    traced: bool,
}

impl Reader {
    /// Reads where an event's trace goes on only if that is of use.
    pub fn traced(traced: bool) -> Self {
        Self { namespace: None, traced }
    }

    /// `delivery_count`: how often the bus has given it out before. A body that is kept apart is left there: see [`fetch`].
    pub fn read(&mut self, message: &Message, delivery_count: u32) -> Result<Delivered, Unreadable> {
        let format = integer(message, property::FORMAT).ok_or(Unreadable::NotOurs)?;
        if format > i64::from(FORMAT) {
            return Err(Unreadable::Newer { format });
        }
        let properties = message.properties().map_err(|_| Unreadable::Property { name: "message-id" })?;
        let message_id = properties.message_id.as_ref().and_then(|id| id.as_str());
        let aggregate = typed(message, property::AGGREGATE)?;
        let aggregate =
            aggregate.and_then(AggregateId::new).ok_or(Unreadable::Property { name: property::AGGREGATE })?;
        let key = typed(message, property::KEY)?.unwrap_or_else(|| aggregate.value().clone());
        let epoch = number(message, property::EPOCH)?;
        let token = text(message, property::TOKEN)?;
        let committed = message.application_property(property::COMMITTED).and_then(|value| value.as_timestamp());
        let trace =
            if self.traced { optional_text(message, property::TRACEPARENT).and_then(Context::read) } else { None };
        let mut event = Delivered {
            message_id: message_id.ok_or(Unreadable::Property { name: "message-id" })?.to_owned(),
            operation: operation(message)?,
            namespace: self.namespace(text(message, property::NAMESPACE)?)?,
            aggregate,
            key,
            event_type: properties.subject.map(str::to_owned),
            sequence: integer(message, property::SEQUENCE),
            position: Some(PositionKey::new(Epoch::new(epoch), token)),
            term: Term::new(number(message, property::TERM)?),
            body: Body::Oversize(String::new()),
            committed: committed.map(DateTime::from_millis),
            delivery_count,
            dead_lettered: false,
            trace,
        };
        event.body = match (optional_text(message, property::MARKER), optional_text(message, property::OVERSIZE)) {
            (Some(id), _) => Body::Marker(id.to_owned()),
            (None, Some(id)) => Body::Oversize(id.to_owned()),
            (None, None) => match document(properties.content_type, data(message)) {
                Some(document) => Body::Document(document),
                None => {
                    event.body = Body::Oversize(event.message_id.clone());
                    return Err(Unreadable::Body(Box::new(event)));
                }
            },
        };
        Ok(event)
    }

    fn namespace(&mut self, name: &str) -> Result<Arc<Namespace>, Unreadable> {
        if let Some((known, namespace)) = &self.namespace
            && known == name
        {
            return Ok(Arc::clone(namespace));
        }
        // A database's name has no dot; a collection's may.
        let (database, collection) = name.split_once('.').ok_or(Unreadable::Property { name: property::NAMESPACE })?;
        let namespace = Arc::new(Namespace::new(database, collection));
        self.namespace = Some((name.to_owned(), Arc::clone(&namespace)));
        Ok(namespace)
    }
}

/// Fetches the body of an event that is kept apart. One that is gone stays so, and the event is parked for it; an error means that the
/// store could not be asked.
pub async fn fetch(kept: &Oversize, message: &Message, event: &mut Delivered) -> Result<(), oversize::Error> {
    let Body::Oversize(id) = &event.body else { return Ok(()) };
    match kept.read(id).await {
        Ok(bytes) => {
            let content_type = message.properties().ok().and_then(|properties| properties.content_type);
            if let Some(document) = document(content_type, bytes) {
                event.body = Body::Document(document);
            }
            Ok(())
        }
        Err(error @ (oversize::Error::Missing { .. } | oversize::Error::Unreadable { .. })) => {
            tracing::warn!(error = chain(&error), "an event's body is gone");
            Ok(())
        }
        Err(error @ oversize::Error::Store { .. }) => Err(error),
    }
}

fn document(kind: Option<&str>, bytes: Vec<u8>) -> Option<RawDocumentBuf> {
    match kind? {
        content_type::BSON => RawDocumentBuf::from_bytes(bytes).ok(),
        content_type::JSON => {
            let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes).ok()?;
            let document = Document::try_from(json).ok()?;
            RawDocumentBuf::try_from(&document).ok()
        }
        _ => None,
    }
}

fn data(message: &Message) -> Vec<u8> {
    let mut body = Vec::new();
    message.data().for_each(|section| body.extend_from_slice(&section));
    body
}

fn optional_text<'a>(message: &'a Message, name: &'static str) -> Option<&'a str> {
    message.application_property(name)?.as_str()
}

fn text<'a>(message: &'a Message, name: &'static str) -> Result<&'a str, Unreadable> {
    optional_text(message, name).ok_or(Unreadable::Property { name })
}

fn integer(message: &Message, name: &'static str) -> Option<i64> {
    message.application_property(name)?.as_integer()
}

fn number(message: &Message, name: &'static str) -> Result<u64, Unreadable> {
    integer(message, name).and_then(|number| u64::try_from(number).ok()).ok_or(Unreadable::Property { name })
}

fn operation(message: &Message) -> Result<Operation, Unreadable> {
    let name = property::OPERATION;
    Operation::read(text(message, name)?).ok_or(Unreadable::Property { name })
}

/// A value with its type: the document `{v: value}`. `None` if it is not there.
fn typed(message: &Message, name: &'static str) -> Result<Option<Bson>, Unreadable> {
    let Some(property) = message.application_property(name) else { return Ok(None) };
    let read = || {
        let raw = RawDocument::from_bytes(property.as_binary()?).ok()?;
        Bson::try_from(raw.get("v").ok()??).ok()
    };
    read().map(Some).ok_or(Unreadable::Property { name })
}

#[cfg(test)]
mod tests;
