//! MongoDB driver errors that are safe to log, the server's error code, and errors printed with their causes.
//!
//! Depends on the driver only. Never prints a document: see [`DriverError`].

mod driver_error;
mod error_chain;

pub use driver_error::{DriverError, error_code};
pub use error_chain::ErrorChain;
