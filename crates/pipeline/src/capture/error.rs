//! Why the source cannot be read.

use std::time::Duration;

use mongo_error::DriverError;

use super::config::PipelineStart;
use super::unresumable::{StreamErrorClass, classify};
use crate::event::Namespace;
use crate::source::InvalidSource;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the source is not one that can be captured")]
    Source(#[from] InvalidSource),
    #[error("`{namespace}` is written by this installation and cannot be its source as well")]
    OwnNamespace { namespace: Namespace },
    #[error("stage {number} of `filter` {problem}")]
    FilterShape { number: usize, problem: &'static str },
    #[error("stage {number} of `filter` (`{name}`) is refused by the server")]
    FilterRefused {
        number: usize,
        name: String,
        #[source]
        source: DriverError,
    },
    #[error("`filter` changes the `_id` of change events, and without it a stream cannot be resumed")]
    FilterChangesId,
    #[error("`start: beginning` needs `source.sequence`: without it old events have no order")]
    NoSequence,
    #[error(
        "`start: beginning` needs the index {{ {aggregate_id}: 1, {sequence}: 1 }} on `{namespace}`, neither sparse nor partial \
         nor hidden, and with the simple collation"
    )]
    NoIndex { namespace: Namespace, aggregate_id: String, sequence: String },
    #[error(
        "`{namespace}` keeps no post-images: enable `changeStreamPreAndPostImages`, or set `source.full_document: lookup`"
    )]
    NoPostImages { namespace: Namespace },
    #[error(
        "`{namespace}` is sharded by `{field}`, so that two of its documents may have one `_id` and could not be told apart: a source of \
         kind `documents` is sharded by `_id`, or not at all"
    )]
    ShardedBy { namespace: Namespace, field: String },
    /// The oplog no longer holds what follows the token. What happens next is `on_history_lost`.
    #[error("the history of the source is lost: the oplog no longer holds what follows the checkpoint")]
    HistoryLost(#[source] DriverError),
    #[error("the oplog does not reach back to {start}")]
    StartTooEarly {
        start: PipelineStart,
        #[source]
        source: DriverError,
    },
    #[error(
        "`{start}` lies in the future: by the source's clock it is {now}, and what is written until then would never be published; start at \
         `now`, `beginning`, or a time that has passed"
    )]
    StartInFuture { start: PipelineStart, now: PipelineStart },
    /// Post-images expire, and there are none from before they were enabled.
    #[error("a change has no post-image; to read past it set `source.full_document: lookup`")]
    PostImageGone(#[source] DriverError),
    /// A filter made it so; what is large by itself is split by a stream, and read by a snapshot.
    #[error("a document is too large for one answer of the server")]
    TooLarge(#[source] DriverError),
    #[error("{operation}: refused by the server")]
    Refused {
        operation: &'static str,
        #[source]
        source: DriverError,
    },
    #[error(
        "a change event {problem}: `filter` must leave `_id`, `operationType`, `ns`, `documentKey` and `fullDocument`"
    )]
    Unreadable { problem: &'static str },
    #[error("the checkpoint's snapshot is not one this version can go on with")]
    UnreadableProgress,
    #[error("the pipeline has no place to start from yet")]
    Unstarted,
    #[error("{operation}")]
    Server {
        operation: &'static str,
        #[source]
        source: DriverError,
    },
    #[error("{operation}: no answer within {waited:?}")]
    Timeout { operation: &'static str, waited: Duration },
    #[error("the server closed the change stream, and said nothing on it")]
    StreamEnded,
}

impl Error {
    /// Whether the same call may succeed when it is repeated.
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

/// Waits for the server no longer than `timeout`: the driver itself would wait for ever.
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

    /// What the page calls it by. `None` for what halts nobody, or has another page.
    fn on_the_page(error: &Error) -> Option<&'static str> {
        Some(match error {
            Error::Source(_) => "the source is not one that can be captured",
            Error::OwnNamespace { .. } => "is written by this installation and cannot be its source as well",
            Error::FilterShape { .. } | Error::FilterRefused { .. } => "of filter",
            Error::FilterChangesId => "filter changes the _id of change events",
            Error::NoSequence => "start: beginning needs source.sequence",
            Error::NoIndex { .. } => "start: beginning needs the index",
            Error::NoPostImages { .. } => "keeps no post-images",
            Error::ShardedBy { .. } => "is sharded by",
            Error::StartTooEarly { .. } => "the oplog does not reach back to",
            Error::StartInFuture { .. } => "lies in the future: by the source's clock it is",
            Error::PostImageGone(_) => "a change has no post-image",
            Error::TooLarge(_) => "a document is too large for one answer of the server",
            Error::Refused { .. } => "refused by the server",
            Error::Unreadable { .. } => "filter must leave",
            Error::UnreadableProgress => "the checkpoint's snapshot is not one this version can go on with",
            Error::HistoryLost(_)
            | Error::Unstarted
            | Error::Server { .. }
            | Error::Timeout { .. }
            | Error::StreamEnded => return None,
        })
    }

    #[test]
    fn whatever_halts_a_producer_is_on_its_page() {
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
            Error::StartTooEarly { start: PipelineStart::Now, source: driver() },
            Error::StartInFuture { start: PipelineStart::Beginning, now: PipelineStart::Now },
            Error::PostImageGone(driver()),
            Error::TooLarge(driver()),
            Error::Refused { operation: "read", source: driver() },
            Error::Unreadable { problem: "is not BSON" },
            Error::UnreadableProgress,
        ];
        let plain = |text: &str| text.replace('`', "");
        for error in all {
            let phrase = on_the_page(&error).expect("it halts a producer");
            assert!(plain(&error.to_string()).contains(phrase), "{error}");
            assert!(plain(PAGE).contains(phrase), "{phrase}");
            assert!(!error.is_transient());
        }
    }
}
