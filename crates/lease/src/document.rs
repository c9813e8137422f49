//! The lease document in MongoDB: field names, format, and parsing that trusts nothing.

use mongodb::bson::{Bson, DateTime, Document};
use std::time::Duration;

use crate::config::LONGEST_TTL;
use crate::error::Error;
use crate::record::{CandidateId, LeaseRecord, LeaseVersion, ServerTime, Term};

/// Stored in every document. A higher format was written by a newer version.
pub(crate) const FORMAT: i64 = 1;

/// The lease for display and for `status`. Times come from the servers' wall clocks and decide nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseDocument {
    pub key: String,
    /// The pod that holds the lease; `None` after a release.
    pub leader_id: Option<String>,
    pub term: Term,
    pub heartbeat: u64,
    pub acquired_at: Option<DateTime>,
    pub heartbeat_at: DateTime,
    pub expires_at: DateTime,
    pub fingerprint: String,
    pub(crate) holder: Option<CandidateId>,
}

impl LeaseDocument {
    pub(crate) fn parse(document: &Document) -> Result<Self, Error> {
        let fields = LeaseFieldReader { key: document.get_str("_id").unwrap_or("?"), document };
        let format = fields.integer("format")?;
        if format != FORMAT {
            return Err(Error::Format { key: fields.key.into(), found: format, supported: FORMAT });
        }
        Ok(Self {
            key: fields.key.to_owned(),
            leader_id: fields.optional_text("leaderId")?.map(str::to_owned),
            term: Term::new(fields.unsigned("term")?),
            heartbeat: fields.unsigned("heartbeat")?,
            acquired_at: document.get_datetime("acquiredAt").ok().copied(),
            heartbeat_at: fields.time("heartbeatAt")?,
            expires_at: fields.time("expiresAt")?,
            fingerprint: fields.text("fingerprint")?.to_owned(),
            holder: fields.holder()?,
        })
    }

    /// The fields that decisions need. One server wrote both times at one moment, so their difference is the holder's ttl,
    /// whatever that server's clock says.
    pub(crate) fn to_record(&self) -> LeaseRecord {
        let ttl = self.expires_at.timestamp_millis().saturating_sub(self.heartbeat_at.timestamp_millis());
        let ttl = Duration::from_millis(u64::try_from(ttl).unwrap_or(0));
        LeaseRecord {
            version: LeaseVersion { holder: self.holder, term: self.term, heartbeat: self.heartbeat },
            // A damaged document must not make a standby wait for years.
            ttl: ttl.min(LONGEST_TTL),
            expires_at: ServerTime(self.expires_at.timestamp_millis()),
        }
    }
}

/// Reads fields. Errors name the field and never show its content.
struct LeaseFieldReader<'a> {
    key: &'a str,
    document: &'a Document,
}

impl LeaseFieldReader<'_> {
    fn integer(&self, field: &'static str) -> Result<i64, Error> {
        match self.document.get(field) {
            Some(Bson::Int64(number)) => Ok(*number),
            Some(Bson::Int32(number)) => Ok(i64::from(*number)),
            Some(_) => Err(self.unreadable(field, "is not a whole number")),
            None => Err(self.unreadable(field, "is missing")),
        }
    }

    fn unsigned(&self, field: &'static str) -> Result<u64, Error> {
        u64::try_from(self.integer(field)?).map_err(|_| self.unreadable(field, "is negative"))
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

    fn holder(&self) -> Result<Option<CandidateId>, Error> {
        let Some(text) = self.optional_text("contender")? else { return Ok(None) };
        CandidateId::parse(text).map(Some).ok_or_else(|| self.unreadable("contender", "is not 32 hexadecimal digits"))
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
            "_id": "shop", "format": FORMAT, "leaderId": "pod-a", "contender": CandidateId::new(7).to_string(), "term": 3_i64,
            "heartbeat": 9_i64, "acquiredAt": at, "heartbeatAt": at, "expiresAt": DateTime::from_millis(1_015_000),
            "fingerprint": "f",
        }
    }

    fn refused(change: impl FnOnce(&mut Document)) -> String {
        let mut document = stored();
        change(&mut document);
        LeaseDocument::parse(&document).unwrap_err().to_string()
    }

    #[test]
    fn the_holders_ttl_is_expiry_minus_heartbeat() {
        let record = LeaseDocument::parse(&stored()).unwrap().to_record();
        let version = LeaseVersion { holder: Some(CandidateId::new(7)), term: Term::new(3), heartbeat: 9 };
        assert_eq!(record.version, version);
        assert_eq!(record.ttl, Duration::from_secs(15));
    }

    #[test]
    fn a_foreign_document_is_refused_without_showing_content() {
        assert!(refused(|lease| drop(lease.remove("format"))).contains("field `format` is missing"));
        assert!(refused(|lease| drop(lease.insert("term", "secret"))).contains("field `term` is not a whole number"));
        assert!(!refused(|lease| drop(lease.insert("contender", "secret"))).contains("secret"));
        assert!(refused(|lease| drop(lease.insert("heartbeat", -1_i64))).contains("field `heartbeat` is negative"));
        assert!(
            refused(|lease| drop(lease.insert("format", 2_i64)))
                .contains("has format 2; this version supports format 1")
        );
    }
}
