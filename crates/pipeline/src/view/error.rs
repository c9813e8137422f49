//! Why events could not be applied, or a command of an operator not carried out. Contents of documents are in none of them.

use std::time::Duration;

use mongo_error::DriverError;

use super::read_model::ModelProblem;
use crate::retry::{self, ErrorClass};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{doing} in read-model database `{database}`")]
    Store {
        doing: &'static str,
        database: String,
        #[source]
        source: DriverError,
    },
    /// A statement inside a command that was answered.
    #[error("{doing} in read-model database `{database}`: the server refused a statement with error {code}")]
    Statement { doing: &'static str, database: String, code: i32 },
    #[error("{doing}: no end within {within:?}")]
    Timeout { doing: &'static str, within: Duration },
    #[error("{doing} of source `{namespace}`")]
    Source {
        doing: &'static str,
        namespace: String,
        #[source]
        source: DriverError,
    },
    #[error("a stored {what} has format {found}, and this version knows {known}")]
    Format { what: &'static str, found: i64, known: i64 },
    #[error("a stored {what} is not one this version can read: field `{field}` {problem}")]
    Unreadable { what: &'static str, field: &'static str, problem: &'static str },
    #[error("{} mistakes in the declared read models; the first: {}", .0.len(), .0[0])]
    InvalidModels(Vec<ModelProblem>),
    #[error("two read models are called `{0}`")]
    DuplicateModelName(String),
    #[error("no read model is called `{0}`")]
    UnknownModel(String),
    #[error("the aggregate is not parked in read model `{0}`")]
    NotParked(String),
    /// The first event that waits still cannot be applied; those before it are.
    #[error("replay in read model `{model}`: the event still cannot be applied: {detail}")]
    ReplayRefused { model: String, detail: String },
    #[error("the applier has stopped")]
    Stopped,
}

const WRITE_CONFLICT: i32 = 112;
pub(super) const DUPLICATE_KEY: i32 = 11000;

impl Error {
    /// What the server said, for whoever reads why an event waits.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Statement { code, .. } => format!("the server refused a statement with error {code}"),
            Self::Store { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    /// Somebody else is writing the same document.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.code() == Some(WRITE_CONFLICT),
            // A key that is taken: of a cursor that somebody else wrote first.
            Self::Statement { code, .. } => matches!(*code, WRITE_CONFLICT | DUPLICATE_KEY),
            _ => false,
        }
    }

    /// A cursor is there already.
    pub(super) fn is_duplicate_key(&self) -> bool {
        matches!(self, Self::Statement { code: DUPLICATE_KEY, .. })
    }

    pub fn verdict(&self) -> ErrorClass {
        match self {
            Self::Store { source, .. } | Self::Source { source, .. } => retry::classify_mongo(source.get()),
            Self::Statement { code, .. } => retry::classify_mongo_code(*code),
            Self::Timeout { .. } => ErrorClass::Transient,
            Self::NotParked(_) | Self::UnknownModel(_) | Self::ReplayRefused { .. } => ErrorClass::Permanent,
            Self::Format { .. }
            | Self::Unreadable { .. }
            | Self::InvalidModels(_)
            | Self::DuplicateModelName(_)
            | Self::Stopped => ErrorClass::Fatal,
        }
    }
}
