//! Errors of opening a data folder.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data folder is in use by another broker")]
    Locked,
    #[error("data folder has format {found}, but this broker reads format {known}")]
    Format { found: u32, known: u32 },
    #[error("`{file}` is not a file of a broker, or its header is unreadable")]
    Foreign { file: String },
    #[error("`{file}` is damaged at byte {at}: {reason}")]
    Damaged { file: String, at: u64, reason: &'static str },
    #[error("a log segment is missing after the {after}")]
    Missing { after: String },
    #[error("log segment {segment:08x}, which contains a message, is missing")]
    Lost { segment: u32 },
    #[error("failed to replay a record of the data folder")]
    Record(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to {operation} `{file}`")]
    Io {
        operation: &'static str,
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to start a store thread")]
    Thread(#[source] io::Error),
}

impl OpenError {
    /// For `map_err`.
    pub(super) fn io(operation: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { operation, file, source }
    }
}
