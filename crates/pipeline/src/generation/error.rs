//! Errors of generations and builds.

use std::sync::Arc;

use mongo_error::DriverError;

use crate::view::ModelProblem;
use crate::{source_walk, view};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to {action}")]
    Store {
        action: &'static str,
        #[source]
        source: DriverError,
    },
    #[error("the stored generation has format {found}; this version reads format {known}")]
    Format { found: i64, known: i64 },
    #[error("failed to read the stored generation: field `{0}` is missing or has another type")]
    Unreadable(&'static str),
    #[error("a stored read model cannot be used by this version: {}", .0[0])]
    InvalidModels(Vec<ModelProblem>),
    #[error(transparent)]
    View(Box<view::Error>),
    #[error("failed to apply events of the source")]
    Apply(#[source] Arc<view::Error>),
    #[error(transparent)]
    Walk(Box<source_walk::Error>),
    #[error("failed to read the checkpoint")]
    Checkpoint(#[source] Box<crate::checkpoint::Error>),
    #[error("several documents of `{model}` have the same values of {fields}, which a unique index forbids")]
    NotUnique { model: String, fields: String },
    #[error(transparent)]
    Erasure(#[from] crate::erasure::Error),
}

impl From<view::Error> for Error {
    fn from(error: view::Error) -> Self {
        Self::View(Box::new(error))
    }
}

impl From<source_walk::Error> for Error {
    fn from(error: source_walk::Error) -> Self {
        Self::Walk(Box::new(error))
    }
}

impl From<crate::checkpoint::Error> for Error {
    fn from(error: crate::checkpoint::Error) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

pub(super) fn store_error(action: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
    move |source| Error::Store { action, source: source.into() }
}
