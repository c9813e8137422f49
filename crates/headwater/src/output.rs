//! Writes to stdout. A closed pipe, as with `| head`, is not an error: nothing panics, and the exit code stays the same.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;

/// Prints the text. Returns `false` if the pipe is closed, for callers that would print forever.
pub(crate) fn print(text: impl Display) -> anyhow::Result<bool> {
    // Flush every time: a pipe is block-buffered, and `--watch` must be visible at once.
    let mut out = io::stdout().lock();
    write_result(write!(out, "{text}").and_then(|()| out.flush()))
}

/// Prints the text and a newline.
pub(crate) fn print_line(text: impl Display) -> anyhow::Result<bool> {
    print(format_args!("{text}\n"))
}

/// Prints an indented JSON document.
pub(crate) fn print_json(document: &serde_json::Value) -> anyhow::Result<bool> {
    print_line(format_args!("{document:#}"))
}

/// Prints the text and ignores errors.
pub(crate) fn try_print(text: impl Display) {
    let _ = print(text);
}

fn write_result(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("failed to write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        assert!(write_result(Ok(())).unwrap());
        assert!(!write_result(Err(io::ErrorKind::BrokenPipe.into())).unwrap());
        assert!(write_result(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
