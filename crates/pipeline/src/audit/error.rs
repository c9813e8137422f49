//! Errors of the audit, and why a pipeline cannot be audited.

use mongo_error::DriverError;

use crate::source::{SourceConfig, SourceKind};
use crate::{capture, checkpoint, source_walk, view};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to {action} the progress of the audit")]
    Store {
        action: &'static str,
        #[source]
        source: DriverError,
    },
    #[error("the stored progress of the audit has format {found}; this version reads format {known}")]
    Format { found: i64, known: i64 },
    #[error("failed to read the source for the audit")]
    Source(#[source] Box<source_walk::Error>),
    #[error("failed to check the index of the source for the audit")]
    Index(#[source] Box<capture::Error>),
    #[error("failed to read cursors for the audit")]
    Cursors(#[source] Box<view::Error>),
    #[error("failed to read the checkpoint for the audit")]
    Checkpoint(#[from] checkpoint::Error),
    #[error("failed to look into a session for the audit")]
    Bus(#[from] servicebus::Error),
    /// Another pod audits now.
    #[error("the audit was taken over by another pod")]
    TakenOver,
    #[error(transparent)]
    Unauditable(#[from] UnauditableReason),
}

impl From<source_walk::Error> for Error {
    fn from(error: source_walk::Error) -> Self {
        Self::Source(Box::new(error))
    }
}

impl From<capture::Error> for Error {
    fn from(error: capture::Error) -> Self {
        Self::Index(Box::new(error))
    }
}

/// Why nothing can be proven about a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnauditableReason {
    #[error(
        "events without `source.sequence` cannot be audited: a healed event would have no position, and could be applied twice"
    )]
    NoSequence,
    #[error("a source of kind `documents` cannot be audited yet")]
    Documents,
    #[error(
        "the audit needs an index on (`source.aggregate_id`, `source.sequence`), not sparse, partial or hidden, and with the simple collation"
    )]
    NoIndex,
}

impl UnauditableReason {
    /// What the configuration of a source already says.
    pub fn of_source(source: &SourceConfig) -> Option<Self> {
        match (source.kind, &source.sequence) {
            (SourceKind::Documents, _) => Some(Self::Documents),
            (SourceKind::Events, None) => Some(Self::NoSequence),
            (SourceKind::Events, Some(_)) => None,
        }
    }

    /// For programs; stays the same when the text changes.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoSequence => "no_sequence",
            Self::Documents => "documents",
            Self::NoIndex => "no_index",
        }
    }
}
