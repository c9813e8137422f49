//! Errors of a test cluster.

use std::io;

use crate::wait::TimedOut;
use crate::{mongo, process};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MongoDB of the test cluster failed")]
    Mongo(#[from] mongo::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error(transparent)]
    Broker(#[from] local_cluster::Error),
    #[error("failed to {doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    #[error("failed to {doing}: no response in time")]
    NoResponse { doing: &'static str },
    #[error("cannot {doing}: the cluster does not own its MongoDB; use `MongoTopology::SingleNode` or `ThreeNodes`")]
    SharedMongo { doing: &'static str },
}

impl Error {
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
