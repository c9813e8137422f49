//! What can go wrong with a test's MongoDB. `unwrap` is how tests meet it, so `Debug` tells the whole chain.

use std::error::Error as _;
use std::fmt;

use crate::wait::TimedOut;

#[derive(thiserror::Error)]
pub enum Error {
    #[error("find a mongod")]
    Provide(#[from] mongod::Error),
    #[error("run a mongod")]
    Server(#[from] mongod::ServerError),
    #[error("make a replica set")]
    ReplicaSet(#[from] mongod::ReplicaSetError),
    #[error("make a folder for the data")]
    Scratch(#[source] std::io::Error),
    #[error("{doing}")]
    Driver {
        doing: String,
        #[source]
        source: mongodb::error::Error,
    },
    #[error(transparent)]
    TooLate(#[from] TimedOut),
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
