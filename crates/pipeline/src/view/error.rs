//! Why events could not be applied, or an operator command failed. Errors contain no document contents.

use std::time::Duration;

use mongo_error::DriverError;

use super::read_model::ModelProblem;
use crate::error_policy::{self, ErrorClass};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to {action} in read-model database `{database}`")]
    Store {
        action: &'static str,
        database: String,
        #[source]
        source: DriverError,
    },
    /// One statement failed in a command that succeeded otherwise.
    #[error("failed to {action} in read-model database `{database}`: the server refused a statement with error {code}")]
    Statement { action: &'static str, database: String, code: i32 },
    #[error("failed to {action}: timed out after {within:?}")]
    Timeout { action: &'static str, within: Duration },
    #[error("failed to {action} in source `{namespace}`")]
    Source {
        action: &'static str,
        namespace: String,
        #[source]
        source: DriverError,
    },
    #[error("a stored {what} has format {found}; this version reads format {known}")]
    Format { what: &'static str, found: i64, known: i64 },
    #[error("failed to read a stored {what}: field `{field}` {problem}")]
    Unreadable { what: &'static str, field: &'static str, problem: &'static str },
    #[error("{} problems in the declared read models; the first: {}", .0.len(), .0[0])]
    InvalidModels(Vec<ModelProblem>),
    #[error("two read models have the name `{0}`")]
    DuplicateModelName(String),
    #[error("no read model has the name `{0}`")]
    UnknownModel(String),
    #[error("the aggregate is not parked in read model `{0}`")]
    NotParked(String),
    /// The first queued event still fails; the events before it are applied.
    #[error("replay in read model `{model}`: the event still cannot be applied: {detail}")]
    ReplayRefused { model: String, detail: String },
    #[error("the applier has stopped")]
    Stopped,
    /// Another pod applies a later generation of the read models; this one must load it first.
    #[error("the read models of this pod are outdated: another pod applies a later generation")]
    Outdated,
}

const WRITE_CONFLICT: i32 = 112;
pub(super) const DUPLICATE_KEY: i32 = 11000;
pub(super) const DOCUMENT_VALIDATION_FAILURE: i32 = 121;

impl Error {
    /// What the server reported, for operators.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Statement { code, .. } => format!("the server refused a statement with error {code}"),
            Self::Store { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    /// Another transaction writes the same document.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.code() == Some(WRITE_CONFLICT),
            // A duplicate key: another pod inserted the cursor first.
            Self::Statement { code, .. } => matches!(*code, WRITE_CONFLICT | DUPLICATE_KEY),
            _ => false,
        }
    }

    /// The cursor exists already.
    pub(super) fn is_duplicate_key(&self) -> bool {
        matches!(self, Self::Statement { code: DUPLICATE_KEY, .. })
    }

    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Store { source, .. } | Self::Source { source, .. } => error_policy::classify_mongo(source.get()),
            Self::Statement { code, .. } => error_policy::classify_mongo_code(*code),
            Self::Timeout { .. } | Self::Outdated => ErrorClass::Transient,
            Self::NotParked(_) | Self::UnknownModel(_) | Self::ReplayRefused { .. } => ErrorClass::Permanent,
            Self::Format { .. }
            | Self::Unreadable { .. }
            | Self::InvalidModels(_)
            | Self::DuplicateModelName(_)
            | Self::Stopped => ErrorClass::Fatal,
        }
    }
}
