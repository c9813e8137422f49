//! Why no token was obtained. The text contains no secret and no token.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::http_client;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A setting is missing or not valid; the text says which.
    #[error("{0}")]
    Settings(String),
    #[error("failed to read `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("`{}` is not usable: {what}", path.display())]
    Certificate { path: PathBuf, what: &'static str },
    #[error("failed to set up TLS")]
    Tls(#[from] crate::tls::Error),
    #[error("token request to {authority} failed")]
    Unreachable {
        authority: String,
        #[source]
        source: http_client::Error,
    },
    #[error("no reply from {authority} within {within:?}")]
    Timeout { authority: String, within: Duration },
    /// The identity service replied with an error.
    #[error("{authority} refused the token request with status {status}: {detail}")]
    Refused { authority: String, status: u16, detail: String },
    #[error("{authority} replied without a usable token")]
    InvalidReply { authority: String },
    #[error("Azure CLI: {what}")]
    AzureCli { what: String },
}

impl Error {
    /// True if the same request may succeed later without a correction by a person.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !matches!(source, http_client::Error::Tls(_)),
            Self::Timeout { .. } | Self::InvalidReply { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 410 | 429 | 500..),
            Self::Settings(_) | Self::File { .. } | Self::Certificate { .. } | Self::Tls(_) | Self::AzureCli { .. } => {
                false
            }
        }
    }
}
