//! Why a term's work ended before it was told to, and what that means for the lease.

use lease::Outcome;

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
    /// An operator's command took a term.
    #[error("the checkpoint was moved by term {by}")]
    Moved { by: Term },
    #[error("capture and publish ended without being told to")]
    Ended,
}

impl Error {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Checkpoint(error) | Self::Publish(publish::Error::Checkpoint(error)) => checkpoint_outcome(error),
            Self::Moved { by } => Outcome::TermBehind { seen: *by },
            Self::Publish(publish::Error::GateClosed { .. } | publish::Error::Bus(_)) | Self::Ended => {
                Outcome::StepDown(error_chain(self))
            }
        }
    }
}

fn checkpoint_outcome(error: &checkpoint::Error) -> Outcome {
    match error {
        // Whoever claimed it holds a higher term: if the lease is still ours it must rise above it, and if not, that is found out so.
        checkpoint::Error::TermBehind { stored, .. } | checkpoint::Error::Deposed { stored, .. } => {
            Outcome::TermBehind { seen: *stored }
        }
        checkpoint::Error::EpochEnded { .. }
        | checkpoint::Error::SnapshotOutOfOrder { .. }
        | checkpoint::Error::Deleted { .. }
        | checkpoint::Error::Missing { .. }
        | checkpoint::Error::Indeterminate { .. }
        | checkpoint::Error::Fingerprint { .. }
        | checkpoint::Error::Format { .. }
        | checkpoint::Error::Unreadable { .. }
        | checkpoint::Error::Store { .. } => Outcome::StepDown(error_chain(error)),
    }
}
