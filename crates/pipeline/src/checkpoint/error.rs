//! Why a checkpoint could not be claimed, read or moved.

use mongo_error::DriverError;

use crate::event::{Epoch, Term};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lease's term fell behind: it was deleted or restored. The lease must be raised above `stored`.
    #[error("claim checkpoint `{pipeline}` with term {term}: term {stored} claimed it before")]
    TermBehind { pipeline: String, term: Term, stored: Term },
    #[error("save checkpoint `{pipeline}` in term {term}: it belongs to term {stored} now")]
    Deposed { pipeline: String, term: Term, stored: Term },
    #[error("save checkpoint `{pipeline}` in epoch {epoch}: it is in epoch {stored} now")]
    EpochEnded { pipeline: String, epoch: Epoch, stored: Epoch },
    #[error(
        "save checkpoint `{pipeline}`: a snapshot cannot follow in the same epoch, nor another run of it, nor one from another \
         start"
    )]
    SnapshotOutOfOrder { pipeline: String },
    #[error("save checkpoint `{pipeline}`: it has vanished since it was claimed")]
    Deleted { pipeline: String },
    /// See docs/decisions/007.
    #[error(
        "claim checkpoint `{pipeline}` with term {term}: this pipeline had a checkpoint, and it is gone; restore it, or delete \
         `{pipeline}` from `pipelines` as well to begin anew, which may lose events"
    )]
    Missing { pipeline: String, term: Term },
    /// What refused it has not reached a majority yet, and may never: nobody can say now whose the checkpoint is.
    #[error("save checkpoint `{pipeline}` in term {term}: refused, and it is not settled yet by what")]
    Indeterminate { pipeline: String, term: Term },
    #[error(
        "checkpoint `{pipeline}` belongs to another source: its fingerprint is `{found}`, ours `{ours}`; give this pipeline \
         another name, or reset the checkpoint"
    )]
    Fingerprint { pipeline: String, found: String, ours: String },
    #[error("checkpoint `{pipeline}` has format {found}, and this version knows {known}")]
    Format { pipeline: String, found: i64, known: i64 },
    #[error("checkpoint `{pipeline}` is not one this version can read: field `{field}` {problem}")]
    Unreadable { pipeline: String, field: &'static str, problem: &'static str },
    #[error("{operation} checkpoint `{pipeline}`")]
    Store {
        operation: &'static str,
        pipeline: String,
        #[source]
        source: DriverError,
    },
}

impl Error {
    /// Whether the same call may succeed when it is repeated.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { .. } | Self::Indeterminate { .. } => true,
            Self::TermBehind { .. }
            | Self::Deposed { .. }
            | Self::EpochEnded { .. }
            | Self::SnapshotOutOfOrder { .. }
            | Self::Deleted { .. }
            | Self::Missing { .. }
            | Self::Fingerprint { .. }
            | Self::Format { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}
