//! Types that all stations share.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use mongodb::bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf, Timestamp};

pub use lease::Term;

use crate::stored::identity::normalize;

/// One change in the source.
#[derive(Clone, Debug)]
pub struct ChangeEvent {
    /// The resume token. For a snapshot event: the token at which the stream will start.
    pub token: ResumeToken,
    pub operation: Operation,
    pub namespace: Arc<Namespace>,
    /// The `_id` of the document that changed.
    pub key: Bson,
    /// `None` if the document has no valid aggregate id.
    pub aggregate: Option<AggregateId>,
    /// For `documents` sources, the name of the operation.
    pub event_type: Option<String>,
    /// The sequence within the aggregate, if the source has one and the value is a whole number.
    pub sequence: Option<i64>,
    /// The commit time; `None` for snapshot events.
    pub cluster_time: Option<Timestamp>,
    /// The commit time by the wall clock of the server; servers before 6.0 do not send it.
    pub wall_time: Option<DateTime>,
    /// The document after the change. Only its key for a delete, and for a document deleted since.
    pub document: RawDocumentBuf,
}

impl ChangeEvent {
    /// The commit time to the millisecond, or else to the second. `None` for snapshot events.
    pub fn committed_at(&self) -> Option<DateTime> {
        let second = |time: Timestamp| DateTime::from_millis(i64::from(time.time) * 1_000);
        self.wall_time.or(self.cluster_time.map(second))
    }
}

/// The operation on the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Insert,
    Update,
    Replace,
    Delete,
    /// Read by a snapshot.
    Snapshot,
}

impl Operation {
    pub const ALL: [Self; 5] = [Self::Insert, Self::Update, Self::Replace, Self::Delete, Self::Snapshot];

    /// The name on the message.
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

/// A database and a collection.
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

/// The typed aggregate id. Never logged: it may contain personal data.
#[derive(Clone, PartialEq)]
pub struct AggregateId(Bson);

/// Deeper ids leave no room for the documents of MongoDB and of messages that contain them.
const MAX_ID_NESTING: usize = 90;

/// Whether a field name starts with `$`, or more than so many levels nest.
fn is_unstorable(value: &Bson, levels: usize) -> bool {
    let Some(levels_below) = levels.checked_sub(1) else { return true };
    match value {
        Bson::Document(document) => {
            document.iter().any(|(name, value)| name.starts_with('$') || is_unstorable(value, levels_below))
        }
        Bson::Array(values) => values.iter().any(|value| is_unstorable(value, levels_below)),
        _ => false,
    }
}

/// Service Bus limit.
const MAX_SESSION_ID: usize = 128;

impl AggregateId {
    /// Refuses null and undefined, and values that MongoDB does not accept in an `_id`: their cursor could not be stored.
    pub fn new(value: Bson) -> Option<Self> {
        match value {
            Bson::Null | Bson::Undefined => None,
            value if is_unstorable(&value, MAX_ID_NESTING) => None,
            value => Some(Self(value)),
        }
    }

    pub fn value(&self) -> &Bson {
        &self.0
    }

    /// The session id: the aggregate id as text, or a hash if Service Bus would refuse the text. Ids that MongoDB treats as equal have one
    /// cursor, so they must have one session. Other ids with the same text share a session, which is harmless.
    pub fn session_id(&self) -> String {
        let text = self.text();
        if text.is_empty() || text.len() > MAX_SESSION_ID {
            format!("sha256:{}", sha256_hex(&[text.as_bytes()]))
        } else {
            text
        }
    }

    fn text(&self) -> String {
        match &self.0 {
            // The common cases, without a copy of the value.
            Bson::String(text) => text.clone(),
            Bson::ObjectId(id) => id.to_hex(),
            Bson::Int32(number) => number.to_string(),
            Bson::Int64(number) => number.to_string(),
            value => text_of(normalize(value)),
        }
    }
}

/// The text of a normal value. It names sessions that hold messages, so it must not change for strings, object ids, whole numbers, booleans and UUIDs.
fn text_of(value: Bson) -> String {
    match value {
        Bson::String(text) => text,
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        Bson::Double(number) => number.to_string(),
        Bson::Boolean(truth) => truth.to_string(),
        Bson::Binary(binary) => match binary.to_uuid() {
            Ok(id) => id.to_string(),
            Err(_) => Bson::Binary(binary).into_canonical_extjson().to_string(),
        },
        other => other.into_canonical_extjson().to_string(),
    }
}

impl fmt::Debug for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AggregateId(sha256:{:.12}…)", sha256_hex(&[self.text().as_bytes()]))
    }
}

/// SHA-256 of the concatenated parts, in hexadecimal.
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

/// A MongoDB resume token. Opaque except for its order: the key strings sort as text in commit order, also within a transaction.
#[derive(Clone)]
pub struct ResumeToken {
    raw: RawDocumentBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a resume token: it has no string field `_data`")]
pub struct InvalidResumeToken;

impl ResumeToken {
    /// The token as the server sent it.
    pub fn as_raw(&self) -> &RawDocument {
        &self.raw
    }

    pub fn to_document(&self) -> Document {
        Document::try_from(&*self.raw).expect("its bytes were a document when it was made")
    }

    /// The order key, compared byte by byte.
    pub fn key(&self) -> &str {
        self.raw.get_str("_data").expect("checked when the token was made")
    }

    /// The cluster time at the start of the key; `None` for an unknown token format.
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

/// Shows only the cluster time: the rest contains the document key, which must not be logged.
impl fmt::Debug for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResumeToken({:.18}…)", self.key())
    }
}

/// One continuous history of the source. Tokens of different epochs are not comparable. A new epoch starts when the history is lost, or when an
/// operator moves the checkpoint; without a sequence, `checkpoint set` keeps it.
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

/// The position of an event in the order of all events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub epoch: Epoch,
    pub token: ResumeToken,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::Identity;
    use mongodb::bson::{doc, oid::ObjectId, uuid::Uuid};

    fn token(data: &str) -> ResumeToken {
        ResumeToken::try_from(doc! { "_data": data }).unwrap()
    }

    #[test]
    fn a_later_epoch_orders_after_any_token() {
        let early = Position { epoch: Epoch::new(1), token: token("82FF") };
        let late = Position { epoch: Epoch::new(2), token: token("8200") };
        assert!(early < late);
        assert!(token("8200") < token("8200A"));
    }

    #[test]
    fn a_token_needs_a_string_data_field() {
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
    fn debug_of_a_token_hides_the_document_key() {
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

    /// Sessions with these names hold messages of earlier versions.
    #[test]
    fn the_session_ids_of_common_types_never_change() {
        let id = ObjectId::parse_str("65f0a1b2c3d4e5f607182930").unwrap();
        let uuid = Uuid::parse_str("12345678-9abc-4def-8123-456789abcdef").unwrap();
        let table: [(Bson, &str); 14] = [
            ("order-7".into(), "order-7"),
            ("ü".into(), "ü"),
            (id.into(), "65f0a1b2c3d4e5f607182930"),
            (7.into(), "7"),
            ((-7).into(), "-7"),
            (7_i64.into(), "7"),
            (7.0.into(), "7"),
            (i64::MAX.into(), "9223372036854775807"),
            (i64::MIN.into(), "-9223372036854775808"),
            (9_007_199_254_740_992.0.into(), "9007199254740992"),
            (true.into(), "true"),
            (uuid.into(), "12345678-9abc-4def-8123-456789abcdef"),
            (0.5.into(), "0.5"),
            (doc! { "t": 1, "o": "a" }.into(), r#"{"t":{"$numberInt":"1"},"o":"a"}"#),
        ];
        for (value, expected) in table {
            assert_eq!(session_of(value.clone()), expected, "{value:?}");
        }
    }

    #[test]
    fn ids_with_one_cursor_have_one_session() {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        let equal: Vec<Vec<Bson>> = vec![
            vec![1.into(), 1_i64.into(), 1.0.into(), decimal("1"), decimal("1.00")],
            vec![0.into(), 0.0.into(), (-0.0).into(), decimal("-0")],
            vec![doc! { "t": 1 }.into(), doc! { "t": 1_i64 }.into(), doc! { "t": 1.0 }.into()],
            vec![doc! { "t": [{ "u": 0 }] }.into(), doc! { "t": [{ "u": -0.0 }] }.into()],
            vec![0.5.into(), decimal("0.50")],
            vec![decimal("0.1"), decimal("1E-1")],
            vec!["a".into(), Bson::Symbol("a".into())],
            vec![f64::NAN.into(), decimal("NaN")],
        ];
        for ids in equal {
            for id in &ids {
                assert_eq!(Identity::of(id), Identity::of(&ids[0]), "{id:?}");
                assert_eq!(session_of(id.clone()), session_of(ids[0].clone()), "{id:?}");
            }
        }
    }

    #[test]
    fn a_value_with_operators_is_no_aggregate_id() {
        let named = |value: Document| AggregateId::new(value.into()).is_some();
        assert!(named(doc! { "tenant": 1, "order": ["a", { "b": 2 }] }));
        assert!(!named(doc! { "$gt": 1 }));
        assert!(!named(doc! { "tenant": { "$gt": 1 } }));
        assert!(!named(doc! { "order": ["a", { "$b": 2 }] }));
    }

    #[test]
    fn an_id_too_long_for_a_session_is_hashed() {
        assert_eq!(session_of("x".repeat(128)), "x".repeat(128));
        let long = session_of("x".repeat(4096));
        assert!(long.starts_with("sha256:") && long.len() == 71, "{long}");
        assert_ne!(long, session_of("x".repeat(4097)));
        assert!(session_of("").starts_with("sha256:"));
    }

    #[test]
    fn debug_of_an_aggregate_id_hides_the_value() {
        assert!(!format!("{:?}", AggregateId::new("alice@example.com".into())).contains("alice"));
    }
}
