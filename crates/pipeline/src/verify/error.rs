//! Why a read model could not be verified.

use crate::error_policy::ErrorClass;
use crate::{source_walk, view};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to read or write read models")]
    View(#[from] view::Error),
    #[error("failed to read the events of an aggregate")]
    Source(#[from] source_walk::Error),
}

impl Error {
    /// A retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::View(error) | Self::Source(source_walk::Error::History(error)) => {
                error.class() == ErrorClass::Transient
            }
            Self::Source(source_walk::Error::Filter(_) | source_walk::Error::Timeout { .. }) => true,
            Self::Source(_) => false,
        }
    }
}
