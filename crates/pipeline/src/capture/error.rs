//! Errors of capture.

use std::time::Duration;

use mongo_error::DriverError;

use super::config::StartPosition;
use super::unresumable::{StreamErrorClass, classify};
use crate::event::Namespace;
use crate::source::InvalidSource;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the `source` configuration is invalid")]
    Source(#[from] InvalidSource),
    #[error("`{namespace}` is written by this installation and cannot be its source")]
    OwnNamespace { namespace: Namespace },
    #[error("stage {number} of `filter` {problem}")]
    FilterShape { number: usize, problem: &'static str },
    #[error("the server refuses stage {number} of `filter` (`{name}`)")]
    FilterRefused {
        number: usize,
        name: String,
        #[source]
        source: DriverError,
    },
    #[error("`filter` changes the `_id` of change events; a stream cannot resume without it")]
    FilterChangesId,
    #[error("`start: beginning` needs `source.sequence`: it orders old events")]
    NoSequence,
    #[error(
        "`start: beginning` needs the index {{ {aggregate_id}: 1, {sequence}: 1 }} on `{namespace}`, not sparse, partial or \
         hidden, and with the simple collation"
    )]
    NoIndex { namespace: Namespace, aggregate_id: String, sequence: String },
    #[error(
        "`{namespace}` has no post-images: enable `changeStreamPreAndPostImages`, or set `source.full_document: lookup`"
    )]
    NoPostImages { namespace: Namespace },
    #[error(
        "`{namespace}` is sharded by `{field}`, so two documents may share an `_id`: shard a source of kind `documents` by `_id`, or \
         do not shard it"
    )]
    ShardedBy { namespace: Namespace, field: String },
    /// `on_history_lost` decides what happens next.
    #[error("history lost: the oplog no longer holds the events after the checkpoint")]
    HistoryLost(#[source] DriverError),
    #[error("the oplog does not reach back to {start}")]
    StartTooEarly {
        start: StartPosition,
        #[source]
        source: DriverError,
    },
    #[error(
        "`{start}` is in the future: the clock of the source says {now}, and events written until then would never be published; start \
         at `now`, `beginning` or a time in the past"
    )]
    StartInFuture { start: StartPosition, now: StartPosition },
    /// Post-images expire, and there are none from before they were enabled.
    #[error("a change event has no post-image; to continue, set `source.full_document: lookup`")]
    PostImageGone(#[source] DriverError),
    /// Only with a filter: without one, a stream splits large events and a snapshot reads them.
    #[error("a document is too large for one reply of the server")]
    TooLarge(#[source] DriverError),
    #[error("failed to {operation}: refused by the server")]
    Refused {
        operation: &'static str,
        #[source]
        source: DriverError,
    },
    #[error(
        "a change event {problem}: `filter` must keep `_id`, `operationType`, `ns`, `documentKey` and `fullDocument`"
    )]
    Unreadable { problem: &'static str },
    #[error("this version cannot resume the snapshot of the checkpoint")]
    UnreadableProgress,
    #[error("the checkpoint has no start position")]
    Unstarted,
    #[error("failed to {operation}")]
    Server {
        operation: &'static str,
        #[source]
        source: DriverError,
    },
    #[error("failed to {operation}: no response within {waited:?}")]
    Timeout { operation: &'static str, waited: Duration },
    #[error("the server closed the change stream without an event")]
    StreamEnded,
}

impl Error {
    /// Whether a retry of the same call may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Server { .. } | Self::Timeout { .. } | Self::StreamEnded => true,
            Self::Source(_)
            | Self::OwnNamespace { .. }
            | Self::FilterShape { .. }
            | Self::FilterRefused { .. }
            | Self::FilterChangesId
            | Self::NoSequence
            | Self::NoIndex { .. }
            | Self::NoPostImages { .. }
            | Self::ShardedBy { .. }
            | Self::HistoryLost(_)
            | Self::StartTooEarly { .. }
            | Self::StartInFuture { .. }
            | Self::PostImageGone(_)
            | Self::TooLarge(_)
            | Self::Refused { .. }
            | Self::Unreadable { .. }
            | Self::UnreadableProgress
            | Self::Unstarted => false,
        }
    }

    pub(super) fn from_driver(operation: &'static str, error: mongodb::error::Error) -> Self {
        let verdict = classify(&error);
        let source = DriverError::from(error);
        match verdict {
            StreamErrorClass::Retry => Self::Server { operation, source },
            StreamErrorClass::HistoryLost => Self::HistoryLost(source),
            StreamErrorClass::FilterChangesId => Self::FilterChangesId,
            StreamErrorClass::PostImageGone => Self::PostImageGone(source),
            StreamErrorClass::TooLarge => Self::TooLarge(source),
            StreamErrorClass::Refused => Self::Refused { operation, source },
        }
    }
}

/// Waits for the server no longer than `timeout`: the driver itself would wait forever.
pub(super) async fn with_timeout<T>(
    operation: &'static str,
    timeout: Duration,
    request: impl Future<Output = Result<T, mongodb::error::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer.map_err(|error| Error::from_driver(operation, error)),
        Err(_) => Err(Error::Timeout { operation, waited: timeout }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/errors/E0002.md");

    /// The phrase on the page. `None` for errors that do not halt the producer, or have another page.
    fn page_phrase(error: &Error) -> Option<&'static str> {
        Some(match error {
            Error::Source(_) => "the source configuration is invalid",
            Error::OwnNamespace { .. } => "is written by this installation and cannot be its source",
            Error::FilterShape { .. } | Error::FilterRefused { .. } => "of filter",
            Error::FilterChangesId => "filter changes the _id of change events",
            Error::NoSequence => "start: beginning needs source.sequence",
            Error::NoIndex { .. } => "start: beginning needs the index",
            Error::NoPostImages { .. } => "has no post-images",
            Error::ShardedBy { .. } => "is sharded by",
            Error::StartTooEarly { .. } => "the oplog does not reach back to",
            Error::StartInFuture { .. } => "is in the future: the clock of the source says",
            Error::PostImageGone(_) => "a change event has no post-image",
            Error::TooLarge(_) => "a document is too large for one reply of the server",
            Error::Refused { .. } => "refused by the server",
            Error::Unreadable { .. } => "filter must keep",
            Error::UnreadableProgress => "this version cannot resume the snapshot of the checkpoint",
            Error::HistoryLost(_)
            | Error::Unstarted
            | Error::Server { .. }
            | Error::Timeout { .. }
            | Error::StreamEnded => return None,
        })
    }

    #[test]
    fn every_error_that_halts_is_on_the_error_page() {
        let (namespace, driver) =
            (Namespace::new("shop", "events"), || DriverError::from(mongodb::error::Error::custom("x")));
        let all = [
            Error::Source(InvalidSource::Collections),
            Error::OwnNamespace { namespace: namespace.clone() },
            Error::FilterShape { number: 1, problem: "is not a map" },
            Error::FilterRefused { number: 1, name: "$set".into(), source: driver() },
            Error::FilterChangesId,
            Error::NoSequence,
            Error::NoIndex { namespace: namespace.clone(), aggregate_id: "a".into(), sequence: "b".into() },
            Error::NoPostImages { namespace: namespace.clone() },
            Error::ShardedBy { namespace, field: "region".into() },
            Error::StartTooEarly { start: StartPosition::Now, source: driver() },
            Error::StartInFuture { start: StartPosition::Beginning, now: StartPosition::Now },
            Error::PostImageGone(driver()),
            Error::TooLarge(driver()),
            Error::Refused { operation: "read", source: driver() },
            Error::Unreadable { problem: "is not BSON" },
            Error::UnreadableProgress,
        ];
        let plain = |text: &str| text.replace('`', "");
        for error in all {
            let phrase = page_phrase(&error).expect("the error halts the producer");
            assert!(plain(&error.to_string()).contains(phrase), "{error}");
            assert!(plain(PAGE).contains(phrase), "{phrase}");
            assert!(!error.is_transient());
        }
    }
}
