//! The lease as MongoDB keeps it: field names, format, and reading a document without trusting it.

use mongodb::bson::{Bson, DateTime, Document};
use std::time::Duration;

use crate::config::LONGEST_TTL;
use crate::error::Error;
use crate::record::{Contender, Record, ServerTime, Term, Version};

/// Kept in every document; a higher one was written by a version that knows more.
pub(crate) const FORMAT: i64 = 1;

/// The lease for people and for `status`: times are the servers' wall clocks, and only shown.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseDocument {
    pub key: String,
    /// The pod that holds it; `None` after a release.
    pub leader_id: Option<String>,
    pub term: Term,
    pub heartbeat: u64,
    pub acquired_at: Option<DateTime>,
    pub heartbeat_at: DateTime,
    pub expires_at: DateTime,
    pub fingerprint: String,
    pub(crate) holder: Option<Contender>,
}

impl LeaseDocument {
    pub(crate) fn read(document: &Document) -> Result<Self, Error> {
        let fields = Fields { key: document.get_str("_id").unwrap_or("?"), document };
        let format = fields.number("format")?;
        if format != FORMAT {
            return Err(Error::Format { key: fields.key.into(), found: format, known: FORMAT });
        }
        Ok(Self {
            key: fields.key.to_owned(),
            leader_id: fields.optional_text("leaderId")?.map(str::to_owned),
            term: Term::new(fields.natural("term")?),
            heartbeat: fields.natural("heartbeat")?,
            acquired_at: document.get_datetime("acquiredAt").ok().copied(),
            heartbeat_at: fields.time("heartbeatAt")?,
            expires_at: fields.time("expiresAt")?,
            fingerprint: fields.text("fingerprint")?.to_owned(),
            holder: fields.holder()?,
        })
    }

    /// What the decisions need of it. Both times were written by one server at one moment, so that their difference is
    /// the holder's ttl, whatever that server's clock says.
    pub(crate) fn record(&self) -> Record {
        let ttl = self.expires_at.timestamp_millis().saturating_sub(self.heartbeat_at.timestamp_millis());
        let ttl = Duration::from_millis(u64::try_from(ttl).unwrap_or(0));
        Record {
            version: Version { holder: self.holder, term: self.term, heartbeat: self.heartbeat },
            ttl: ttl.min(LONGEST_TTL),
            expires_at: ServerTime(self.expires_at.timestamp_millis()),
        }
    }
}

/// Errors name the field and never show what was in it.
struct Fields<'a> {
    key: &'a str,
    document: &'a Document,
}

impl Fields<'_> {
    fn number(&self, field: &'static str) -> Result<i64, Error> {
        match self.document.get(field) {
            Some(Bson::Int64(number)) => Ok(*number),
            Some(Bson::Int32(number)) => Ok(i64::from(*number)),
            Some(_) => Err(self.unreadable(field, "is not a whole number")),
            None => Err(self.unreadable(field, "is missing")),
        }
    }

    fn natural(&self, field: &'static str) -> Result<u64, Error> {
        u64::try_from(self.number(field)?).map_err(|_| self.unreadable(field, "is negative"))
    }

    fn text(&self, field: &'static str) -> Result<&str, Error> {
        self.optional_text(field)?.ok_or_else(|| self.unreadable(field, "is missing"))
    }

    fn optional_text(&self, field: &'static str) -> Result<Option<&str>, Error> {
        match self.document.get(field) {
            Some(Bson::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.unreadable(field, "is not a string")),
            None => Ok(None),
        }
    }

    fn time(&self, field: &'static str) -> Result<DateTime, Error> {
        let time = self.document.get_datetime(field).copied();
        time.map_err(|_| self.unreadable(field, "is not a date"))
    }

    fn holder(&self) -> Result<Option<Contender>, Error> {
        let Some(text) = self.optional_text("contender")? else { return Ok(None) };
        Contender::parse(text).map(Some).ok_or_else(|| self.unreadable("contender", "is not 32 hexadecimal digits"))
    }

    fn unreadable(&self, field: &'static str, problem: &'static str) -> Error {
        Error::Unreadable { key: self.key.to_owned(), field, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    fn stored() -> Document {
        let at = DateTime::from_millis(1_000_000);
        doc! {
            "_id": "shop", "format": FORMAT, "leaderId": "pod-a", "contender": Contender::new(7).to_string(), "term": 3_i64,
            "heartbeat": 9_i64, "acquiredAt": at, "heartbeatAt": at, "expiresAt": DateTime::from_millis(1_015_000),
            "fingerprint": "f",
        }
    }

    fn refused(change: impl FnOnce(&mut Document)) -> String {
        let mut document = stored();
        change(&mut document);
        LeaseDocument::read(&document).unwrap_err().to_string()
    }

    #[test]
    fn the_holders_ttl_is_what_lies_between_heartbeat_and_expiry() {
        let record = LeaseDocument::read(&stored()).unwrap().record();
        let version = Version { holder: Some(Contender::new(7)), term: Term::new(3), heartbeat: 9 };
        assert_eq!(record.version, version);
        assert_eq!(record.ttl, Duration::from_secs(15));
    }

    #[test]
    fn a_document_of_another_kind_is_refused_by_field_without_showing_it() {
        assert!(refused(|lease| drop(lease.remove("format"))).contains("field `format` is missing"));
        assert!(refused(|lease| drop(lease.insert("term", "secret"))).contains("field `term` is not a whole number"));
        assert!(!refused(|lease| drop(lease.insert("contender", "secret"))).contains("secret"));
        assert!(refused(|lease| drop(lease.insert("heartbeat", -1_i64))).contains("field `heartbeat` is negative"));
        assert!(
            refused(|lease| drop(lease.insert("format", 2_i64))).contains("has format 2, and this version knows 1")
        );
    }
}
