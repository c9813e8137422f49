//! The nouns all stations share.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use mongodb::bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf, Timestamp};

pub use lease::Term;

/// One change in the source, as capture hands it on.
#[derive(Clone, Debug)]
pub struct ChangeEvent {
    /// Where it stands. Of an event that a snapshot read: where the stream will start.
    pub token: ResumeToken,
    pub operation: Operation,
    pub namespace: Arc<Namespace>,
    /// The `_id` of the document that changed.
    pub key: Bson,
    /// Whom it belongs to; `None` when the document does not say.
    pub aggregate: Option<AggregateId>,
    /// For `documents` sources, the operation's name.
    pub event_type: Option<String>,
    /// The aggregate's own count, where the source has one and the document holds a whole number.
    pub sequence: Option<i64>,
    /// When it was committed; none for what a snapshot read.
    pub cluster_time: Option<Timestamp>,
    /// The same by the wall clock of the server that took it, in milliseconds; servers before 6.0 do not say.
    pub wall_time: Option<DateTime>,
    /// The document as it stands after the change. Of a delete, and of a document that is gone since: its key alone.
    pub document: RawDocumentBuf,
}

impl ChangeEvent {
    /// When it was committed, as exactly as the source says: to the millisecond, or else to the second. None for what a snapshot read.
    pub fn committed_at(&self) -> Option<DateTime> {
        let second = |time: Timestamp| DateTime::from_millis(i64::from(time.time) * 1_000);
        self.wall_time.or(self.cluster_time.map(second))
    }
}

/// What was done to the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Insert,
    Update,
    Replace,
    Delete,
    /// Nothing: it was there when a snapshot passed.
    Snapshot,
}

impl Operation {
    pub const ALL: [Self; 5] = [Self::Insert, Self::Update, Self::Replace, Self::Delete, Self::Snapshot];

    /// As it is written on the bus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Snapshot => "snapshot",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == name)
    }
}

/// A collection, with its database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    pub database: String,
    pub collection: String,
}

impl Namespace {
    pub fn new(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Self { database: database.into(), collection: collection.into() }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// Whom an event belongs to: the typed value the source holds. Never shown: it may be a name or a number of a person.
#[derive(Clone, PartialEq)]
pub struct AggregateId(Bson);

/// Whether a field of it has the name of an operator.
fn has_operators(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => document.iter().any(|(name, value)| name.starts_with('$') || has_operators(value)),
        Bson::Array(values) => values.iter().any(has_operators),
        _ => false,
    }
}

/// What Service Bus allows.
const LONGEST_SESSION_ID: usize = 128;

impl AggregateId {
    /// Nothing, null and undefined name nobody, and neither does what MongoDB would not take as part of an `_id`: nobody could write down
    /// how far such an aggregate has come.
    pub fn new(value: Bson) -> Option<Self> {
        match value {
            Bson::Null | Bson::Undefined => None,
            value if has_operators(&value) => None,
            value => Some(Self(value)),
        }
    }

    pub fn value(&self) -> &Bson {
        &self.0
    }

    /// The session its messages travel in: the id as text, or a hash where the bus would refuse that. Two ids that look
    /// alike as text share a session, which is harmless: cursors use the typed value.
    pub fn session_id(&self) -> String {
        let text = self.text();
        if text.is_empty() || text.len() > LONGEST_SESSION_ID {
            format!("sha256:{}", sha256_hex(&[text.as_bytes()]))
        } else {
            text
        }
    }

    fn text(&self) -> String {
        match &self.0 {
            Bson::String(text) => text.clone(),
            Bson::ObjectId(id) => id.to_hex(),
            Bson::Int32(number) => number.to_string(),
            Bson::Int64(number) => number.to_string(),
            Bson::Double(number) => number.to_string(),
            Bson::Boolean(truth) => truth.to_string(),
            Bson::Binary(binary) => match binary.to_uuid() {
                Ok(id) => id.to_string(),
                Err(_) => self.0.clone().into_canonical_extjson().to_string(),
            },
            _ => self.0.clone().into_canonical_extjson().to_string(),
        }
    }
}

impl fmt::Debug for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AggregateId(sha256:{:.12}…)", sha256_hex(&[self.text().as_bytes()]))
    }
}

/// SHA-256 of the parts, one after the other, in hexadecimal.
pub fn sha256_hex(parts: &[&[u8]]) -> String {
    use std::fmt::Write;

    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Where a change stream can be taken up again. Opaque but for its order: the server's key strings sort, as text, in the
/// order of commits, also inside one transaction.
#[derive(Clone)]
pub struct ResumeToken {
    raw: RawDocumentBuf,
}

/// Not a resume token: it has no text `_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a resume token is a document with a text `_data`")]
pub struct InvalidResumeToken;

impl ResumeToken {
    /// The token as the server gave it.
    pub fn as_raw(&self) -> &RawDocument {
        &self.raw
    }

    pub fn to_document(&self) -> Document {
        Document::try_from(&*self.raw).expect("its bytes were a document when it was made")
    }

    /// What orders it; compared byte by byte.
    pub fn key(&self) -> &str {
        self.raw.get_str("_data").expect("checked when the token was made")
    }

    /// The cluster time a token begins with; `None` if the server writes tokens that this version does not know.
    pub fn cluster_time(&self) -> Option<Timestamp> {
        let digits = self.key().strip_prefix("82").filter(|digits| digits.is_ascii())?;
        let number = |at: std::ops::Range<usize>| u32::from_str_radix(digits.get(at)?, 16).ok();
        Some(Timestamp { time: number(0..8)?, increment: number(8..16)? })
    }
}

impl TryFrom<&RawDocument> for ResumeToken {
    type Error = InvalidResumeToken;

    fn try_from(raw: &RawDocument) -> Result<Self, InvalidResumeToken> {
        match raw.get_str("_data") {
            Ok(_) => Ok(Self { raw: raw.to_owned() }),
            Err(_) => Err(InvalidResumeToken),
        }
    }
}

impl TryFrom<Document> for ResumeToken {
    type Error = InvalidResumeToken;

    fn try_from(document: Document) -> Result<Self, InvalidResumeToken> {
        let raw = RawDocumentBuf::try_from(&document).map_err(|_| InvalidResumeToken)?;
        Self::try_from(&*raw)
    }
}

impl PartialEq for ResumeToken {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ResumeToken {}

impl PartialOrd for ResumeToken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ResumeToken {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

/// Tokens contain document keys, which are not for logs: only the beginning is shown, which is the cluster time.
impl fmt::Debug for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResumeToken({:.18}…)", self.key())
    }
}

/// One unbroken history of the source. Tokens of different epochs cannot be compared: a new one begins when the history was
/// lost, or an operator set the checkpoint by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    pub const FIRST: Self = Self(1);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where an event stands in the order of all events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub epoch: Epoch,
    pub token: ResumeToken,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{doc, oid::ObjectId, uuid::Uuid};

    fn token(data: &str) -> ResumeToken {
        ResumeToken::try_from(doc! { "_data": data }).unwrap()
    }

    #[test]
    fn a_later_epoch_is_later_whatever_the_token() {
        let early = Position { epoch: Epoch::new(1), token: token("82FF") };
        let late = Position { epoch: Epoch::new(2), token: token("8200") };
        assert!(early < late);
        assert!(token("8200") < token("8200A"));
    }

    #[test]
    fn what_has_no_text_data_is_no_token() {
        assert!(ResumeToken::try_from(doc! { "_data": 5 }).is_err());
        assert!(ResumeToken::try_from(doc! {}).is_err());
    }

    #[test]
    fn a_token_begins_with_its_cluster_time() {
        let time = token("82690B1C2D000000012B042C0100296E5A1004").cluster_time();
        assert_eq!(time, Some(Timestamp { time: 0x690B_1C2D, increment: 1 }));
        assert_eq!(token("82690B").cluster_time(), None);
    }

    #[test]
    fn a_token_shows_no_document_key() {
        let shown = format!("{:?}", token("82690B1C2D000000012B042C0100296E5A1004SECRETKEY"));
        assert_eq!(shown, "ResumeToken(82690B1C2D00000001…)");
    }

    fn session_of(value: impl Into<Bson>) -> String {
        AggregateId::new(value.into()).unwrap().session_id()
    }

    #[test]
    fn an_aggregate_id_of_any_type_has_a_session() {
        assert_eq!(session_of("order-7"), "order-7");
        assert_eq!(session_of(7), "7");
        assert_eq!(session_of(7_i64), "7");
        assert_eq!(session_of(7.0), "7");
        let id = ObjectId::new();
        assert_eq!(session_of(id), id.to_hex());
        let id = Uuid::new();
        assert_eq!(session_of(id), id.to_string());
        assert!(AggregateId::new(Bson::Null).is_none());
    }

    #[test]
    fn what_cannot_be_part_of_an_id_names_nobody() {
        let named = |value: Document| AggregateId::new(value.into()).is_some();
        assert!(named(doc! { "tenant": 1, "order": ["a", { "b": 2 }] }));
        assert!(!named(doc! { "$gt": 1 }));
        assert!(!named(doc! { "tenant": { "$gt": 1 } }));
        assert!(!named(doc! { "order": ["a", { "$b": 2 }] }));
    }

    #[test]
    fn an_id_the_bus_would_refuse_as_a_session_is_hashed() {
        assert_eq!(session_of("x".repeat(128)), "x".repeat(128));
        let long = session_of("x".repeat(4096));
        assert!(long.starts_with("sha256:") && long.len() == 71, "{long}");
        assert_ne!(long, session_of("x".repeat(4097)));
        assert!(session_of("").starts_with("sha256:"));
    }

    #[test]
    fn an_aggregate_id_is_not_shown() {
        assert!(!format!("{:?}", AggregateId::new("alice@example.com".into())).contains("alice"));
    }
}
