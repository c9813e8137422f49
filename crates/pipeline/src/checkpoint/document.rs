//! The stored checkpoint document: field names, format version and validation.

use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};

use super::error::Error;
use super::store::{Checkpoint, CheckpointPhase, PipelineIdentity, ReplayCounter, SnapshotProgress};
use crate::event::{Epoch, ResumeToken, Term};

/// Format version in every document. A newer version of Headwater may write a higher one.
pub(super) const FORMAT: i64 = 1;

pub(super) const UNSTARTED: &str = "unstarted";
pub(super) const SNAPSHOT: &str = "snapshot";
pub(super) const STREAM: &str = "stream";

pub(super) const REPLAY: &str = "replay";
pub(super) const CLUSTER: &str = "cluster";
pub(super) const SESSIONS: &str = "sessions";

/// A validated checkpoint document.
#[derive(Debug)]
pub(super) struct StoredCheckpoint {
    pub(super) checkpoint: Checkpoint,
    pub(super) claimant: String,
}

impl StoredCheckpoint {
    /// Checks format and source first: an operator should learn of a wrong source before a missing field.
    pub(super) fn parse(pipeline: &str, fingerprint: &str, document: &Document) -> Result<Self, Error> {
        let fields = CheckpointFields { pipeline, document };
        let format = fields.number("format")?;
        if format != FORMAT {
            return Err(Error::Format { pipeline: pipeline.into(), found: format, known: FORMAT });
        }
        let found = fields.text("fingerprint")?;
        if found != fingerprint {
            let (found, ours) = (found.to_owned(), fingerprint.to_owned());
            return Err(Error::Fingerprint { pipeline: pipeline.into(), found, ours });
        }
        let checkpoint = Checkpoint {
            term: Term::new(fields.natural("term")?),
            epoch: Epoch::new(fields.natural("epoch")?),
            phase: fields.phase()?,
            cluster_time: fields.cluster_time()?,
            saved_at: fields.saved_at()?,
            saved_by: fields.text("savedBy")?.to_owned(),
            replay: fields.replay()?,
            identity: PipelineIdentity {
                cluster: fields.optional_text(CLUSTER)?,
                sessions: fields.optional_text(SESSIONS)?,
            },
        };
        Ok(Self { checkpoint, claimant: fields.text("claimedBy")?.to_owned() })
    }
}

/// The fields that store a phase. `position` repeats the order key of the token, so that a query can compare it.
pub(super) fn phase_fields(phase: &CheckpointPhase) -> Document {
    match phase {
        CheckpointPhase::Unstarted => {
            doc! { "phase": UNSTARTED, "token": Bson::Null, "position": "", "snapshot": Bson::Null }
        }
        CheckpointPhase::Snapshot { start, progress: SnapshotProgress { run, scanned, after } } => doc! {
            "phase": SNAPSHOT,
            "token": start.to_document(),
            "position": start.key(),
            "snapshot": { "run": run, "scanned": stored_number(*scanned), "after": after.clone() },
        },
        CheckpointPhase::Stream { token } => doc! {
            "phase": STREAM,
            "token": token.to_document(),
            "position": token.key(),
            "snapshot": Bson::Null,
        },
    }
}

/// BSON has no unsigned 64-bit number.
pub(super) fn stored_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Errors name the field and never show its value.
struct CheckpointFields<'a> {
    pipeline: &'a str,
    document: &'a Document,
}

impl CheckpointFields<'_> {
    fn phase(&self) -> Result<CheckpointPhase, Error> {
        match self.text("phase")? {
            UNSTARTED => Ok(CheckpointPhase::Unstarted),
            SNAPSHOT => Ok(CheckpointPhase::Snapshot { start: self.token()?, progress: self.snapshot()? }),
            STREAM => Ok(CheckpointPhase::Stream { token: self.token()? }),
            _ => Err(self.unreadable("phase", "is unknown to this version")),
        }
    }

    fn token(&self) -> Result<ResumeToken, Error> {
        let document =
            self.document.get_document("token").map_err(|_| self.unreadable("token", "is not a document"))?;
        let token = ResumeToken::try_from(document.clone());
        let token = token.map_err(|_| self.unreadable("token", "is not a resume token"))?;
        if token.key() != self.text("position")? {
            return Err(self.unreadable("position", "does not match the token"));
        }
        Ok(token)
    }

    fn snapshot(&self) -> Result<SnapshotProgress, Error> {
        let document = self.document.get_document("snapshot");
        let document = document.map_err(|_| self.unreadable("snapshot", "is not a document"))?;
        let inner = CheckpointFields { pipeline: self.pipeline, document };
        let after = document.get("after").filter(|after| **after != Bson::Null).cloned();
        Ok(SnapshotProgress { run: inner.text("run")?.to_owned(), scanned: inner.natural("scanned")?, after })
    }

    fn cluster_time(&self) -> Result<Option<Timestamp>, Error> {
        match self.document.get("clusterTime") {
            None | Some(Bson::Null) => Ok(None),
            Some(Bson::Timestamp(time)) => Ok(Some(*time)),
            Some(_) => Err(self.unreadable("clusterTime", "is not a timestamp")),
        }
    }

    fn saved_at(&self) -> Result<Option<DateTime>, Error> {
        match self.document.get("savedAt") {
            None | Some(Bson::Null) => Ok(None),
            Some(Bson::DateTime(time)) => Ok(Some(*time)),
            Some(_) => Err(self.unreadable("savedAt", "is not a date")),
        }
    }

    /// Older versions do not write it.
    fn replay(&self) -> Result<ReplayCounter, Error> {
        let stored = self.document.get(REPLAY).filter(|replay| **replay != Bson::Null);
        stored.map_or(Ok(ReplayCounter::default()), |_| self.natural(REPLAY).map(ReplayCounter::new))
    }

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
        match self.document.get(field) {
            Some(Bson::String(text)) => Ok(text),
            Some(_) => Err(self.unreadable(field, "is not a string")),
            None => Err(self.unreadable(field, "is missing")),
        }
    }

    fn optional_text(&self, field: &'static str) -> Result<Option<String>, Error> {
        match self.document.get(field) {
            None | Some(Bson::Null) => Ok(None),
            Some(_) => self.text(field).map(|text| Some(text.to_owned())),
        }
    }

    fn unreadable(&self, field: &'static str, problem: &'static str) -> Error {
        Error::Unreadable { pipeline: self.pipeline.to_owned(), field, problem }
    }
}
