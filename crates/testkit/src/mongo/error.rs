//! Errors of a test's MongoDB. Tests `unwrap` them, so `Debug` prints the whole chain.

use std::error::Error as _;
use std::fmt;

use crate::wait::TimedOut;

#[derive(thiserror::Error)]
pub enum Error {
    #[error("failed to find a mongod")]
    Provide(#[from] mongod::Error),
    #[error("mongod failed")]
    Server(#[from] mongod::ServerError),
    #[error("failed to create a replica set")]
    ReplicaSet(#[from] mongod::ReplicaSetError),
    #[error("failed to create a data folder")]
    Scratch(#[source] std::io::Error),
    #[error("failed to {doing}")]
    Driver {
        doing: String,
        #[source]
        source: mongodb::error::Error,
    },
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

impl Error {
    pub(crate) fn driver(doing: impl Into<String>) -> impl FnOnce(mongodb::error::Error) -> Self {
        move |source| Self::Driver { doing: doing.into(), source }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(out, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
