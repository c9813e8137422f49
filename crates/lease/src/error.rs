//! Errors of the lease, and which of them a retry can fix.

use std::time::Duration;

use mongo_error::DriverError;

use crate::config::InvalidConfig;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error("failed to {operation} lease `{key}`")]
    Store {
        operation: &'static str,
        key: String,
        #[source]
        source: DriverError,
    },
    #[error("failed to {operation} lease `{key}`: no reply within {timeout:?}")]
    Timeout { operation: &'static str, key: String, timeout: Duration },
    #[error(
        "TTL index `{index}` on `{collection}` would delete leases and reset their terms; drop the index and start again"
    )]
    TtlIndex { collection: String, index: String },
    #[error("lease `{key}` is not readable by this version: field `{field}` {problem}")]
    Unreadable { key: String, field: &'static str, problem: &'static str },
    #[error("lease `{key}` has format {found}; this version supports format {supported}")]
    Format { key: String, found: i64, supported: i64 },
    #[error(
        "lease `{key}` belongs to a pipeline of the same name with another source: its fingerprint is `{found}`, ours is \
         `{ours}`"
    )]
    Fingerprint { key: String, found: String, ours: String },
    #[error("change stream on lease `{key}` ended: the collection was dropped or renamed")]
    WatchEnded { key: String },
    #[error("lease `{key}` is not one of the leases of this process")]
    UnknownLease { key: String },
    #[error("term {0} is too high to be stored")]
    TermTooHigh(u64),
    #[error("failed to start the lease thread")]
    Thread(#[source] std::io::Error),
    #[error("the lease thread panicked")]
    ThreadPanicked,
}

impl Error {
    /// Whether a retry can help. The other errors need an operator: they end the start, or are logged as errors.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { .. } | Self::Timeout { .. } | Self::WatchEnded { .. } => true,
            Self::Config(_)
            | Self::TtlIndex { .. }
            | Self::Unreadable { .. }
            | Self::Format { .. }
            | Self::Fingerprint { .. }
            | Self::UnknownLease { .. }
            | Self::TermTooHigh(_)
            | Self::Thread(_)
            | Self::ThreadPanicked => false,
        }
    }
}
