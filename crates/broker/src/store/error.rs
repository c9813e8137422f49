//! Why a data folder cannot be opened.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another broker uses the data folder")]
    Locked,
    #[error("the data folder has format {found}, this broker reads format {known}")]
    Format { found: u32, known: u32 },
    #[error("`{file}` is not a broker's, or not readable as one's")]
    Foreign { file: String },
    #[error("`{file}` is damaged at byte {at}: {what}")]
    Damaged { file: String, at: u64, what: &'static str },
    #[error("a segment of the log is missing after the {after}")]
    Missing { after: String },
    #[error("a message is stored in segment {segment:08x} of the log, which is missing")]
    Lost { segment: u32 },
    #[error("take up a record of the data folder")]
    Record(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{doing} `{file}`")]
    Io {
        doing: &'static str,
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("start a thread of the store")]
    Thread(#[source] io::Error),
}

impl OpenError {
    /// For `map_err`.
    pub(super) fn io(doing: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { doing, file, source }
    }
}
