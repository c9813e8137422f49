//! Message signatures: HMAC-SHA-256 over envelope and body, with keys that only the pods of a pipeline have.
//!
//! The publisher signs with one key; consumers accept any key they know, so that one key can follow another. Off unless keys are configured:
//! then nothing is computed.
//!
//! The signature covers the values that a consumer reads, not their encoding, because Service Bus may encode a message anew. It covers message
//! id, session id, subject, content type, every property that begins with `headwater-`, and the body. The body of an oversize event is
//! elsewhere: its hash is one of the properties. It does not cover annotations, trace context and CloudEvents properties: consumers take nothing
//! from them that reaches a read model, and Service Bus or a client may add some.

use std::time::SystemTime;

use amqp::Message;
use amqp::codec::{ValueRef, encode};
use amqp::message::{MessageWriter, Properties};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::envelope::property;

type HmacSha256 = Hmac<Sha256>;

/// Separates these signatures from any other use of a key, and from later versions of the encoding.
const CONTEXT: &[u8] = b"headwater message signature 1";
/// The names of the properties that are signed begin with this.
const SIGNED_PREFIX: &str = "headwater-";
/// As long as the hash: a shorter key would weaken it.
const MIN_KEY_BYTES: usize = 32;
const MAX_ID_LENGTH: usize = 64;

/// The keys of a pipeline, and how they are used.
#[derive(Clone)]
pub struct MessageKeys {
    keys: Vec<MessageKey>,
    /// Index of the key that signs.
    signer: usize,
    /// Until then messages without a signature are accepted; `None`: never.
    accept_unsigned_until: Option<SystemTime>,
}

#[derive(Clone)]
struct MessageKey {
    id: String,
    /// Initialised with the key.
    mac: HmacSha256,
}

/// Why keys cannot be used. Contains nothing of the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessageKeys {
    #[error("has no key")]
    Empty,
    #[error("has a key without an id: a key is `id:base64`, and keys are separated by spaces or line breaks")]
    NoId,
    #[error("has a key id that is not 1 to {MAX_ID_LENGTH} letters, digits, `.`, `-` and `_`")]
    Id,
    #[error("has the key id `{0}` twice")]
    Duplicate(String),
    #[error("has the key `{0}`, which is not base64")]
    Encoding(String),
    #[error("has the key `{0}`, which is shorter than {MIN_KEY_BYTES} bytes")]
    Short(String),
}

/// Why a message is not accepted. Contains nothing of the message contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureProblem {
    #[error("the message has no signature")]
    Missing,
    /// Perhaps a key that this pod does not have yet.
    #[error("the message is signed with a key that this pod does not have")]
    UnknownKey,
    #[error("the signature does not match the message")]
    Invalid,
    /// Perhaps a newer pod can verify it.
    #[error("the message has a newer format, and no key of this pod verifies it")]
    NewerFormat,
}

impl SignatureProblem {
    /// Whether another pod, with a newer configuration or version, may accept the message.
    pub const fn is_fixed_elsewhere(self) -> bool {
        match self {
            Self::UnknownKey | Self::NewerFormat => true,
            Self::Missing | Self::Invalid => false,
        }
    }
}

impl MessageKeys {
    /// Parses keys as they are configured: `id:base64`, separated by white space. The first one signs.
    pub fn parse(text: &str) -> Result<Self, InvalidMessageKeys> {
        let mut keys: Vec<MessageKey> = vec![];
        for entry in text.split_whitespace() {
            let key = MessageKey::parse(entry)?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(InvalidMessageKeys::Duplicate(key.id));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(InvalidMessageKeys::Empty);
        }
        Ok(Self { keys, signer: 0, accept_unsigned_until: None })
    }

    /// Signs with this key; `None` if there is no such key.
    #[must_use]
    pub fn signing_with(self, id: &str) -> Option<Self> {
        let signer = self.keys.iter().position(|key| key.id == id)?;
        Some(Self { signer, ..self })
    }

    #[must_use]
    pub fn accepting_unsigned_until(self, time: SystemTime) -> Self {
        Self { accept_unsigned_until: Some(time), ..self }
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    /// The message with a signature. A signature that it has already is replaced.
    pub(crate) fn sign(&self, message: &Message) -> Bytes {
        let key = &self.keys[self.signer];
        let properties = message.properties().unwrap_or_default();
        let signature = authenticate(&key.mac, message, &properties).finalize().into_bytes();
        let signature = format!("{}:{}", key.id, BASE64.encode(signature));
        let mut buffer = BytesMut::with_capacity(message.encoded().len() + signature.len() + 64);
        MessageWriter::new(&mut buffer)
            .message_annotations_over(message.message_annotations(), &[], |_| {})
            .encoded(&message.properties_section())
            .application_properties_over(message.application_properties(), &[property::SIGNATURE], |map| {
                encode::string(map.string(property::SIGNATURE), &signature);
            })
            .encoded(&message.body_and_footer());
        buffer.freeze()
    }

    /// Whether the message comes from a pod of this pipeline, as it is. The comparison takes constant time.
    pub(crate) fn verify(&self, message: &Message) -> Result<(), SignatureProblem> {
        let Some(signature) = string_property(message, property::SIGNATURE) else {
            return if self.accepts_unsigned(wall_clock()) { Ok(()) } else { Err(SignatureProblem::Missing) };
        };
        let (id, code) = signature.as_str().and_then(|text| text.split_once(':')).ok_or(SignatureProblem::Invalid)?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or(SignatureProblem::UnknownKey)?;
        let code = BASE64.decode(code).map_err(|_| SignatureProblem::Invalid)?;
        let properties = message.properties().map_err(|_| SignatureProblem::Invalid)?;
        authenticate(&key.mac, message, &properties).verify_slice(&code).map_err(|_| SignatureProblem::Invalid)
    }

    fn accepts_unsigned(&self, now: SystemTime) -> bool {
        self.accept_unsigned_until.is_some_and(|until| now < until)
    }
}

#[expect(clippy::disallowed_methods, reason = "the operator gives the end as a date; no order of events depends on it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

impl MessageKey {
    fn parse(entry: &str) -> Result<Self, InvalidMessageKeys> {
        let (id, key) = entry.split_once(':').ok_or(InvalidMessageKeys::NoId)?;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if !(1..=MAX_ID_LENGTH).contains(&id.len()) || !id.chars().all(is_plain) {
            return Err(InvalidMessageKeys::Id);
        }
        let key = BASE64.decode(key).map_err(|_| InvalidMessageKeys::Encoding(id.to_owned()))?;
        if key.len() < MIN_KEY_BYTES {
            return Err(InvalidMessageKeys::Short(id.to_owned()));
        }
        let mac = HmacSha256::new_from_slice(&key).expect("HMAC takes a key of any length");
        Ok(Self { id: id.to_owned(), mac })
    }
}

/// Never shows a key.
impl std::fmt::Debug for MessageKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageKeys")
            .field("ids", &self.ids().collect::<Vec<_>>())
            .field("signer", &self.keys[self.signer].id)
            .field("accept_unsigned_until", &self.accept_unsigned_until)
            .finish()
    }
}

/// The hash of an oversize body, as it is in [`property::OVERSIZE_HASH`].
pub(crate) fn body_hash(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// Whether this is the body that the message was published with. A message without a hash was published without signing.
pub(crate) fn is_body_of(message: &Message, body: &[u8]) -> bool {
    string_property(message, property::OVERSIZE_HASH).is_none_or(|hash| hash.as_binary() == Some(&body_hash(body)))
}

/// The property with this name as a string: a name of another type is not signed. The last one counts, as for the reader of the envelope.
fn string_property<'a>(message: &'a Message, name: &str) -> Option<ValueRef<'a>> {
    message.application_properties().filter(|(key, _)| key.as_str() == Some(name)).last().map(|(_, value)| value)
}

/// Feeds the signed fields, each with its length or type, so that no two different messages have the same encoding.
fn authenticate(mac: &HmacSha256, message: &Message, properties: &Properties<'_>) -> HmacSha256 {
    let mut fields = SignedFields(mac.clone());
    fields.bytes(CONTEXT);
    fields.optional_text(properties.message_id.as_ref().and_then(|id| id.as_str()));
    fields.optional_text(properties.group_id);
    fields.optional_text(properties.subject);
    fields.optional_text(properties.content_type);
    let mut signed: Vec<(&str, ValueRef<'_>)> = message
        .application_properties()
        .filter_map(|(name, value)| Some((name.as_str()?, value)))
        .filter(|(name, _)| name.starts_with(SIGNED_PREFIX) && *name != property::SIGNATURE)
        .collect();
    // Service Bus does not promise to keep the order. The sort is stable: of two with one name the last one counts, here as for the reader.
    signed.sort_by_key(|(name, _)| *name);
    fields.length(signed.len());
    for (name, value) in signed {
        fields.bytes(name.as_bytes());
        fields.value(value);
    }
    fields.length(message.data().map(|section| section.len()).sum());
    message.data().for_each(|section| fields.0.update(&section));
    fields.0
}

struct SignedFields(HmacSha256);

impl SignedFields {
    fn length(&mut self, length: usize) {
        self.0.update(&(length as u64).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.update(bytes);
    }

    fn optional_text(&mut self, text: Option<&str>) {
        self.0.update(&[u8::from(text.is_some())]);
        self.bytes(text.unwrap_or_default().as_bytes());
    }

    /// By meaning: an integer of any width is the same integer.
    fn value(&mut self, value: ValueRef<'_>) {
        if let Some(text) = value.as_str() {
            self.0.update(b"s");
            self.bytes(text.as_bytes());
        } else if let Some(bytes) = value.as_binary() {
            self.0.update(b"b");
            self.bytes(bytes);
        } else if let Some(time) = value.as_timestamp() {
            self.0.update(b"t");
            self.bytes(&time.to_be_bytes());
        } else if let Some(number) = value.as_integer() {
            self.0.update(b"i");
            self.bytes(&number.to_be_bytes());
        } else {
            // No property of this version; of another one it is signed as it is encoded.
            self.0.update(b"x");
            self.bytes(value.encoded());
        }
    }
}

#[cfg(test)]
mod tests;
