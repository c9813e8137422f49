//! A message as the page's form describes it, and its AMQP bytes.

use amqp::message::{Header, MessageWriter, Properties, annotation};
use amqp::{Message, Value};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use uuid::Uuid;

use super::{PageError, body};
use crate::connection::decode_message;
use crate::core::IncomingMessage;

/// A new message. An empty text is the same as a missing one: forms have no other way to say it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Draft {
    body: String,
    /// The body is base64 of bytes, not text.
    base64: bool,
    /// Send the body as an AMQP string, not as bytes.
    as_string: bool,
    content_type: String,
    message_id: String,
    session_id: String,
    partition_key: String,
    subject: String,
    correlation_id: String,
    to: String,
    reply_to: String,
    reply_to_session_id: String,
    /// In milliseconds.
    time_to_live: Option<u64>,
    /// In milliseconds since the Unix epoch.
    scheduled_for: Option<i64>,
    properties: Vec<DraftProperty>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftProperty {
    name: String,
    r#type: String,
    value: String,
}

impl DraftProperty {
    fn parse(&self) -> Result<Value, PageError> {
        let text = self.value.as_str();
        let parsed = match self.r#type.as_str() {
            "string" => Some(Value::String(text.to_owned())),
            "ubyte" => text.parse().ok().map(Value::Ubyte),
            "ushort" => text.parse().ok().map(Value::Ushort),
            "uint" => text.parse().ok().map(Value::Uint),
            "ulong" => text.parse().ok().map(Value::Ulong),
            "byte" => text.parse().ok().map(Value::Byte),
            "short" => text.parse().ok().map(Value::Short),
            "int" => text.parse().ok().map(Value::Int),
            "long" => text.parse().ok().map(Value::Long),
            "float" => text.parse().ok().map(Value::Float),
            "double" => text.parse().ok().map(Value::Double),
            "boolean" => text.parse().ok().map(Value::Boolean),
            "uuid" => Uuid::parse_str(text).ok().map(Value::Uuid),
            "timestamp" => text.parse().ok().map(Value::Timestamp),
            _ => None,
        };
        let wrong = || PageError::invalid(format!("the value of property `{}` is not a {}", self.name, self.r#type));
        parsed.ok_or_else(wrong)
    }
}

/// Types that [`DraftProperty`] has.
const TYPES: [&str; 14] = [
    "string",
    "ubyte",
    "ushort",
    "uint",
    "ulong",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "boolean",
    "uuid",
    "timestamp",
];

/// Whether a form can hold all of a message, so that nothing is lost when it is edited.
pub(super) fn can_edit(message: &Message, kind: &str, content: &Bytes) -> bool {
    let has_text = matches!(kind, "data" | "text" | "empty")
        && content.len() <= body::MAX_SHOWN
        && std::str::from_utf8(content).is_ok();
    let mut properties = message.application_properties();
    let known =
        properties.all(|(_, value)| value.to_value().is_ok_and(|value| TYPES.contains(&body::describe(&value).0)));
    has_text && known && message.footer().next().is_none()
}

impl Draft {
    pub(super) fn encode(&self) -> Result<IncomingMessage, PageError> {
        let body = match self.base64 {
            true => BASE64_STANDARD.decode(&self.body).map_err(|_| PageError::invalid("the body is not base64"))?,
            false => self.body.clone().into_bytes(),
        };
        let mut properties = Vec::with_capacity(self.properties.len());
        for property in &self.properties {
            if property.name.is_empty() {
                return Err(PageError::invalid("a property has no name"));
            }
            properties.push((property.name.as_str(), property.parse()?));
        }
        let mut buffer = BytesMut::new();
        let mut writer = MessageWriter::new(&mut buffer);
        let ttl = self.time_to_live.map(|ttl| u32::try_from(ttl).unwrap_or(u32::MAX));
        writer.header(&Header { durable: Some(true), ttl, ..Header::default() });
        writer.message_annotations(|map| {
            if let Some(key) = some(&self.partition_key) {
                map.put_string(annotation::PARTITION_KEY, key);
            }
            if let Some(at) = self.scheduled_for {
                map.put_timestamp(annotation::SCHEDULED_ENQUEUE_TIME, at);
            }
        });
        writer.properties(&Properties {
            message_id: some(&self.message_id).map(Into::into),
            to: some(&self.to),
            subject: some(&self.subject),
            reply_to: some(&self.reply_to),
            correlation_id: some(&self.correlation_id).map(Into::into),
            content_type: some(&self.content_type),
            group_id: some(&self.session_id),
            reply_to_group_id: some(&self.reply_to_session_id),
            ..Properties::default()
        });
        if !properties.is_empty() {
            writer.application_properties(|map| {
                properties.iter().for_each(|(name, value)| Value::write(map.string(name), value))
            });
        }
        match (self.as_string, String::from_utf8(body)) {
            (true, Ok(text)) => writer.value(&Value::String(text)),
            (_, Ok(text)) => writer.data(text.as_bytes()),
            (_, Err(bytes)) => writer.data(bytes.as_bytes()),
        };
        to_incoming(buffer.freeze())
    }
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A message of encoded bytes, with the properties that the core needs.
pub(super) fn to_incoming(encoded: Bytes) -> Result<IncomingMessage, PageError> {
    let message = Message::parse(encoded).and_then(|message| decode_message(&message));
    message.map_err(|error| PageError::invalid(format!("the message cannot be encoded: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(json: &str) -> Draft {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_draft_becomes_the_message_that_it_describes() {
        let draft = draft(
            r#"{"body": "{\"a\":1}", "content_type": "application/json", "message_id": "m1", "session_id": "s", "subject": "Placed", "to": "", "time_to_live": 1000, "scheduled_for": 77,
                "properties": [{"name": "n", "type": "int", "value": "7"}, {"name": "t", "type": "string", "value": "x"}]}"#,
        );
        let incoming = draft.encode().unwrap();
        assert_eq!((incoming.message_id.as_deref(), incoming.session_id.as_deref()), (Some("m1"), Some("s")));
        assert_eq!((incoming.time_to_live, incoming.scheduled_for.map(|at| at.0)), (Some(1000), Some(77)));
        let message = Message::parse(incoming.body).unwrap();
        let properties = message.properties().unwrap();
        assert_eq!((properties.subject, properties.to), (Some("Placed"), None));
        assert_eq!(message.application_property("n").unwrap().as_int(), Some(7));
        let (kind, content) = body::content(&message);
        assert_eq!((kind, &content[..]), ("data", &b"{\"a\":1}"[..]));
        assert!(can_edit(&message, kind, &content));
    }

    #[test]
    fn wrong_values_are_refused_with_their_name() {
        for (kind, value) in
            [("int", "x"), ("long", "1.5"), ("boolean", "yes"), ("uuid", "7"), ("timestamp", ""), ("odd", "x")]
        {
            let draft = draft(&format!(r#"{{"properties": [{{"name": "p", "type": "{kind}", "value": "{value}"}}]}}"#));
            let error = draft.encode().unwrap_err();
            assert!(error.text.contains("`p`"), "{}", error.text);
        }
        assert!(draft(r#"{"body": "***", "base64": true}"#).encode().is_err());
        assert!(draft(r#"{"properties": [{"name": "", "type": "string", "value": ""}]}"#).encode().is_err());
    }

    #[test]
    fn a_message_that_a_form_cannot_hold_is_not_editable() {
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .application_properties(|map| {
                map.put_symbol("s", "x");
            })
            .data(b"text");
        let message = Message::parse(buffer.freeze()).unwrap();
        let (kind, content) = body::content(&message);
        assert!(!can_edit(&message, kind, &content), "a symbol would become a string");
        assert!(!can_edit(&Message::parse(Bytes::new()).unwrap(), "data", &Bytes::from_static(b"\xff")), "not text");
    }
}
