//! An error with its causes, in one line.

/// For logs, and for states that people read.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    mongo_error::ErrorChain(error).to_string()
}
