//! Errors of the checkpoint store.

use mongo_error::DriverError;

use crate::event::{Epoch, Term};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lease document was deleted or restored and its term fell behind. The lease must rise above `stored`.
    #[error("failed to claim checkpoint `{pipeline}` with term {term}: term {stored} has claimed it")]
    TermBehind { pipeline: String, term: Term, stored: Term },
    #[error("failed to save checkpoint `{pipeline}` in term {term}: term {stored} has claimed it")]
    Deposed { pipeline: String, term: Term, stored: Term },
    #[error("failed to save checkpoint `{pipeline}` in epoch {epoch}: it is in epoch {stored}")]
    EpochEnded { pipeline: String, epoch: Epoch, stored: Epoch },
    #[error(
        "failed to save checkpoint `{pipeline}`: within an epoch, neither a second snapshot nor one with another start is allowed"
    )]
    SnapshotOutOfOrder { pipeline: String },
    #[error("failed to save checkpoint `{pipeline}`: it was deleted after the claim")]
    Deleted { pipeline: String },
    /// See docs/decisions/007.
    #[error(
        "failed to claim checkpoint `{pipeline}` with term {term}: this pipeline had a checkpoint, and it is missing; restore it, or delete \
         `{pipeline}` from `pipelines` as well to start over, which may lose events"
    )]
    Missing { pipeline: String, term: Term },
    /// The write that caused the refusal has not reached a majority and may be rolled back, so the owner of the checkpoint is not known yet.
    #[error(
        "failed to save checkpoint `{pipeline}` in term {term}: refused, and the cause is not yet visible to a majority"
    )]
    Indeterminate { pipeline: String, term: Term },
    #[error(
        "checkpoint `{pipeline}` belongs to another source: its fingerprint is `{found}`, ours is `{ours}`; rename this pipeline, or reset \
         the checkpoint"
    )]
    Fingerprint { pipeline: String, found: String, ours: String },
    #[error(
        "checkpoint `{pipeline}` belongs to a source of the same name on another cluster: {found}, and ours is on {ours}; set another \
         `pipeline` name for this source, or, if the source has moved, run `headwater checkpoint reset`"
    )]
    OtherCluster { pipeline: String, found: String, ours: String },
    #[error(
        "checkpoint `{pipeline}` was published with `producer.sessions: {found}`, and the setting is `{ours}` now: without \
         `source.sequence`, events of an aggregate that are in two sessions could be skipped; set it back, or set another `pipeline` name and \
         another subscription"
    )]
    OtherSessions { pipeline: String, found: String, ours: String },
    #[error("checkpoint `{pipeline}` has format {found}; this version supports {known}")]
    Format { pipeline: String, found: i64, known: i64 },
    #[error("checkpoint `{pipeline}` is unreadable: field `{field}` {problem}")]
    Unreadable { pipeline: String, field: &'static str, problem: &'static str },
    #[error("failed to {operation} checkpoint `{pipeline}`")]
    Store {
        operation: &'static str,
        pipeline: String,
        #[source]
        source: DriverError,
    },
}

impl Error {
    /// Whether a retry of the same call may succeed.
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
            | Self::OtherCluster { .. }
            | Self::OtherSessions { .. }
            | Self::Format { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}
