//! Formats an error with its causes in one line.

pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    mongo_error::ErrorChain(error).to_string()
}
