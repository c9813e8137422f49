//! Errors that end a term, and their meaning for the lease.

use lease::TermOutcome;

use crate::checkpoint;
use crate::error_chain::error_chain;
use crate::event::Term;
use crate::publish;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    #[error(transparent)]
    Publish(#[from] publish::Error),
    /// An operator command claimed a higher term.
    #[error("term {by} moved the checkpoint")]
    Moved { by: Term },
    #[error("capture and publish ended without a stop request")]
    Ended,
}

impl Error {
    pub(super) fn outcome(&self) -> TermOutcome {
        match self {
            Self::Checkpoint(error) | Self::Publish(publish::Error::Checkpoint(error)) => checkpoint_outcome(error),
            Self::Moved { by } => TermOutcome::TermBehind { seen: *by },
            Self::Publish(publish::Error::GateClosed { .. } | publish::Error::Bus(_)) | Self::Ended => {
                TermOutcome::StepDown(error_chain(self))
            }
        }
    }
}

fn checkpoint_outcome(error: &checkpoint::Error) -> TermOutcome {
    match error {
        // Another process has claimed a higher term. If we still hold the lease it must rise above that term; if not, raising it fails.
        checkpoint::Error::TermBehind { stored, .. } | checkpoint::Error::Deposed { stored, .. } => {
            TermOutcome::TermBehind { seen: *stored }
        }
        checkpoint::Error::EpochEnded { .. }
        | checkpoint::Error::SnapshotOutOfOrder { .. }
        | checkpoint::Error::Deleted { .. }
        | checkpoint::Error::Missing { .. }
        | checkpoint::Error::Indeterminate { .. }
        | checkpoint::Error::Fingerprint { .. }
        | checkpoint::Error::OtherCluster { .. }
        | checkpoint::Error::OtherSessions { .. }
        | checkpoint::Error::Format { .. }
        | checkpoint::Error::Unreadable { .. }
        | checkpoint::Error::Store { .. } => TermOutcome::StepDown(error_chain(error)),
    }
}
