//! A MongoDB driver error, shown without the server's reply.
//!
//! The driver prints the server's whole reply with an error, and a reply may contain documents: a `findAndModify` that misses
//! its majority returns the document it changed. This type shows only the error code and its name, or the network problem.

use std::fmt;

use mongodb::error::{ErrorKind, WriteFailure};

/// A driver error that is safe to log. Its `source` is empty: a printed error chain must not reach the driver's own text.
pub struct DriverError(mongodb::error::Error);

impl DriverError {
    /// The driver's error, to decide by. Never print it.
    pub fn get(&self) -> &mongodb::error::Error {
        &self.0
    }

    /// The server's error code, if the server replied.
    pub fn code(&self) -> Option<i32> {
        error_code(&self.0)
    }
}

/// The server's error code, if the server replied.
pub fn error_code(error: &mongodb::error::Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        _ => None,
    }
}

impl From<mongodb::error::Error> for DriverError {
    fn from(error: mongodb::error::Error) -> Self {
        Self(error)
    }
}

impl std::error::Error for DriverError {}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.kind {
            ErrorKind::Command(error) => {
                write!(f, "MongoDB returned error {} ({})", error.code, error.code_name)
            }
            ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
                write!(f, "write concern not satisfied: error {} ({})", error.code, error.code_name)
            }
            ErrorKind::Write(WriteFailure::WriteError(error)) => {
                write!(f, "write refused: error {} ({})", error.code, error.code_name.as_deref().unwrap_or("?"))
            }
            ErrorKind::Io(error) => write!(f, "network error: {error}"),
            ErrorKind::ServerSelection { message, .. } => f.write_str(message),
            ErrorKind::Authentication { message, .. } => write!(f, "authentication failed: {message}"),
            ErrorKind::DnsResolve { message, .. } => write!(f, "DNS lookup failed: {message}"),
            ErrorKind::ConnectionPoolCleared { .. } => f.write_str("connection pool cleared"),
            // The other kinds may quote documents.
            _ => f.write_str("MongoDB driver error"),
        }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverError({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A custom error stands for every kind whose text may quote a document.
    #[test]
    fn the_text_of_an_unknown_kind_is_not_printed() {
        let error = DriverError::from(mongodb::error::Error::custom("{ secret: 1 }"));
        assert_eq!(format!("{error} {error:?}"), "MongoDB driver error DriverError(MongoDB driver error)");
        assert_eq!(error.code(), None);
    }
}
