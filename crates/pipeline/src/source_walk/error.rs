//! Errors of walk and feed.

use std::sync::Arc;
use std::time::Duration;

use mongo_error::DriverError;

use crate::event::Namespace;
use crate::{capture, view};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to {action} in source `{namespace}`")]
    Source {
        action: &'static str,
        namespace: Namespace,
        #[source]
        source: DriverError,
    },
    #[error("failed to {action} in source `{namespace}`: no response within {within:?}")]
    Timeout { action: &'static str, namespace: Namespace, within: Duration },
    #[error("the source does not report operation times; it must be a replica set or a sharded cluster")]
    NoOperationTime,
    #[error("failed to filter events of the source")]
    Filter(#[from] capture::Error),
    #[error("the capture filter needs a token of the change stream: the pipeline has no checkpoint yet")]
    NoToken,
    #[error("failed to read events of the source")]
    History(#[source] view::Error),
    #[error("failed to apply events of the source")]
    Apply(#[source] Arc<view::Error>),
    /// The cursor knows whether they were applied: feed again.
    #[error("the commit result of events of the source is unknown")]
    UnknownCommit,
}
