//! AMQP values and bodies as text for display.

use amqp::message::BodyKind;
use amqp::{Message, Value};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use serde_json::json;

/// Bytes of a body that the page gets.
pub(super) const MAX_SHOWN: usize = 64 << 10;

/// The name of a value's type, and the value as text.
pub(super) fn describe(value: &Value) -> (&'static str, String) {
    match value {
        Value::Null => ("null", String::new()),
        Value::Boolean(value) => ("boolean", value.to_string()),
        Value::Ubyte(value) => ("ubyte", value.to_string()),
        Value::Ushort(value) => ("ushort", value.to_string()),
        Value::Uint(value) => ("uint", value.to_string()),
        Value::Ulong(value) => ("ulong", value.to_string()),
        Value::Byte(value) => ("byte", value.to_string()),
        Value::Short(value) => ("short", value.to_string()),
        Value::Int(value) => ("int", value.to_string()),
        Value::Long(value) => ("long", value.to_string()),
        Value::Float(value) => ("float", value.to_string()),
        Value::Double(value) => ("double", value.to_string()),
        Value::Decimal32(bytes) => ("decimal32", hex(bytes)),
        Value::Decimal64(bytes) => ("decimal64", hex(bytes)),
        Value::Decimal128(bytes) => ("decimal128", hex(bytes)),
        Value::Char(value) => ("char", value.to_string()),
        Value::Timestamp(millis) => ("timestamp", millis.to_string()),
        Value::Uuid(value) => ("uuid", value.to_string()),
        Value::Binary(bytes) => ("binary", hex(&bytes[..bytes.len().min(1024)])),
        Value::String(text) => ("string", text.clone()),
        Value::Symbol(symbol) => ("symbol", symbol.to_string()),
        Value::List(_) => ("list", to_json(value).to_string()),
        Value::Map(_) => ("map", to_json(value).to_string()),
        Value::Array(_) => ("array", to_json(value).to_string()),
        Value::Described(described) => ("described", to_json(&described.value).to_string()),
    }
}

/// A value as JSON. Numbers that JSON cannot hold exactly are text.
fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Boolean(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Double(value) => json!(value),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Array(array) => array.items().iter().map(to_json).collect(),
        Value::Map(map) => {
            let entries = map.iter().map(|(key, value)| (describe(key).1, to_json(value)));
            serde_json::Value::Object(entries.collect())
        }
        Value::Described(described) => to_json(&described.value),
        other => match other.as_integer().filter(|number| number.unsigned_abs() < 1 << 53) {
            Some(number) => json!(number),
            None => json!(describe(other).1),
        },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The content of a body as bytes, and how the message carries it.
pub(super) fn content(message: &Message) -> (&'static str, Bytes) {
    match message.body() {
        BodyKind::Empty => ("empty", Bytes::new()),
        BodyKind::Data => {
            let mut sections = message.data();
            let first = sections.next().unwrap_or_default();
            // One section, as nearly always, is not copied.
            let Some(second) = sections.next() else { return ("data", first) };
            let mut all = BytesMut::from(&first[..]);
            all.extend_from_slice(&second);
            sections.for_each(|section| all.extend_from_slice(&section));
            ("data", all.freeze())
        }
        BodyKind::Value => match message.value().and_then(|value| value.to_value().ok()) {
            Some(Value::String(text)) => ("text", Bytes::from(text)),
            Some(Value::Binary(bytes)) => ("binary", bytes),
            Some(value) => ("value", Bytes::from(to_json(&value).to_string())),
            None => ("value", Bytes::new()),
        },
        BodyKind::Sequence => ("sequence", message.body_and_footer()),
    }
}

/// Bytes for display: the first of them, and how many there are.
pub(super) fn shown(bytes: &Bytes) -> serde_json::Value {
    let start = &bytes[..bytes.len().min(MAX_SHOWN)];
    json!({"size": bytes.len(), "base64": BASE64_STANDARD.encode(start), "truncated": start.len() < bytes.len()})
}
