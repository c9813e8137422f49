//! What can go wrong with a house.

use std::io;

use crate::wait::TimedOut;
use crate::{mongo, process};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MongoDB of the house")]
    Mongo(#[from] mongo::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error("{doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    TooLate(#[from] TimedOut),
    #[error("{doing}: no answer in time")]
    NoAnswer { doing: &'static str },
    #[error("the broker answered `{status}` to {doing}")]
    Refused { doing: &'static str, status: String },
    #[error("{doing}: wants a house with a replica set of its own")]
    Shared { doing: &'static str },
}

impl Error {
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
