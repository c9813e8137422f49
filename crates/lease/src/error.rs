//! What can go wrong with a lease, and what that means to the elector.

use std::time::Duration;

use mongo_error::DriverError;

use crate::config;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::Invalid),
    #[error("{doing} the lease `{key}`")]
    Store {
        doing: &'static str,
        key: String,
        #[source]
        source: DriverError,
    },
    #[error("{doing} the lease `{key}`: no answer within {within:?}")]
    NoAnswer { doing: &'static str, key: String, within: Duration },
    #[error(
        "index `{index}` on `{collection}` expires documents: it would delete leases and reset their terms; drop the index"
    )]
    TtlIndex { collection: String, index: String },
    #[error("the lease `{key}` is not one this version can read: field `{field}` {problem}")]
    Unreadable { key: String, field: &'static str, problem: &'static str },
    #[error("the lease `{key}` has format {found}, and this version knows {known}")]
    Format { key: String, found: i64, known: i64 },
    #[error(
        "the lease `{key}` belongs to a pipeline of the same name with another source: its fingerprint is `{found}`, ours \
         `{ours}`"
    )]
    Fingerprint { key: String, found: String, ours: String },
    #[error("watch the lease `{key}`: its collection was dropped or renamed")]
    WatchEnded { key: String },
    #[error("term {0} is too high to be stored")]
    TermTooHigh(u64),
    #[error("start the lease's thread")]
    Thread(#[source] std::io::Error),
    #[error("the lease's thread ended by a panic")]
    Died,
}

impl Error {
    /// Whether trying again can help. What cannot heal by itself is told to the operator at start, or loudly.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { .. } | Self::NoAnswer { .. } | Self::WatchEnded { .. } => true,
            Self::Config(_)
            | Self::TtlIndex { .. }
            | Self::Unreadable { .. }
            | Self::Format { .. }
            | Self::Fingerprint { .. }
            | Self::TermTooHigh(_)
            | Self::Thread(_)
            | Self::Died => false,
        }
    }
}
