//! A driver's error, told without what the server quoted.
//!
//! The driver prints the server's whole reply with an error, and a reply may hold documents: a `findAndModify` that lacks its
//! majority answers with the very document it changed. What is shown here is the code and its name, or what happened on
//! the way.

use std::fmt;

use mongodb::error::{ErrorKind, WriteFailure};

/// Has no source: a chain that is printed must not reach the driver's own text.
pub struct DriverError(mongodb::error::Error);

impl DriverError {
    /// For whoever decides by it. Not to be shown.
    pub fn get(&self) -> &mongodb::error::Error {
        &self.0
    }

    /// The server's error code, if the server answered.
    pub fn code(&self) -> Option<i32> {
        code_of(&self.0)
    }
}

/// The server's error code, if the server answered.
pub fn code_of(error: &mongodb::error::Error) -> Option<i32> {
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
                write!(f, "the server answered with error {} ({})", error.code, error.code_name)
            }
            ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
                write!(f, "the write concern was not met: error {} ({})", error.code, error.code_name)
            }
            ErrorKind::Write(WriteFailure::WriteError(error)) => {
                write!(f, "the write was refused: error {} ({})", error.code, error.code_name.as_deref().unwrap_or("?"))
            }
            ErrorKind::Io(error) => write!(f, "input or output failed: {error}"),
            ErrorKind::ServerSelection { message, .. } => f.write_str(message),
            ErrorKind::Authentication { message, .. } => write!(f, "authentication failed: {message}"),
            ErrorKind::DnsResolve { message, .. } => write!(f, "a name could not be resolved: {message}"),
            ErrorKind::ConnectionPoolCleared { .. } => f.write_str("the connections to the server were given up"),
            _ => f.write_str("the driver failed"),
        }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverError({self})")
    }
}
