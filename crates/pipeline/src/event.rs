//! The nouns all stations share.

use std::cmp::Ordering;
use std::fmt;

use mongodb::bson::{Bson, Document};

pub use lease::Term;

/// Where a change stream can be taken up again. Opaque but for its order: the server's key strings sort, as text, in the
/// order of commits, also inside one transaction.
#[derive(Clone)]
pub struct ResumeToken {
    document: Document,
}

/// Not a resume token: it has no text `_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a resume token is a document with a text `_data`")]
pub struct NotAToken;

impl ResumeToken {
    /// The token as the server gave it.
    pub fn as_document(&self) -> &Document {
        &self.document
    }

    /// What orders it; compared byte by byte.
    pub fn key(&self) -> &str {
        self.document.get_str("_data").expect("checked when the token was made")
    }
}

impl TryFrom<Document> for ResumeToken {
    type Error = NotAToken;

    fn try_from(document: Document) -> Result<Self, NotAToken> {
        match document.get("_data") {
            Some(Bson::String(_)) => Ok(Self { document }),
            _ => Err(NotAToken),
        }
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
    use mongodb::bson::doc;

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
    fn a_token_shows_no_document_key() {
        let shown = format!("{:?}", token("82690B1C2D000000012B042C0100296E5A1004SECRETKEY"));
        assert_eq!(shown, "ResumeToken(82690B1C2D00000001…)");
    }
}
