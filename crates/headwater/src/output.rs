//! What is said on stdout. A reader that has gone, as `head` does, is no error of ours: nothing panics, and the command ends as it would have.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;

/// Says it as it is; `false` when nobody reads any more, for who would go on for ever.
pub(crate) fn print(text: impl Display) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    write_result(write!(out, "{text}").and_then(|()| out.flush()))
}

/// Says it as a line.
pub(crate) fn print_line(text: impl Display) -> anyhow::Result<bool> {
    print(format_args!("{text}\n"))
}

/// Where it does not matter whether it is heard.
pub(crate) fn try_print(text: impl Display) {
    let _ = print(text);
}

fn write_result(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_disk_that_is_full() {
        assert!(write_result(Ok(())).unwrap());
        assert!(!write_result(Err(io::ErrorKind::BrokenPipe.into())).unwrap());
        assert!(write_result(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
