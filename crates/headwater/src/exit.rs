//! How a command ends, for scripts: a code means the same whichever command ends with it.
//!
//! `docs/operations.md` has the table; a pod that ends with [`ExitReason::Misconfigured`] ends so again until somebody acts, one that [failed](ExitReason::Failed) may
//! be well the next time.

use std::fmt;
use std::process::ExitCode;

/// How it ended, unless well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    Failed,
    /// Also `clap`'s own.
    Usage,
    Misconfigured,
    Unhealthy,
    Interrupted,
}

/// Below the help of commands.
pub(crate) const HELP: &str = "\
ExitReason codes:
  0    done; a pod, broker or dev: stopped in order
  1    failed: a server was not there or refused, a port was taken, something broke, or a service of a pod did not end in time
  2    the command line was not understood, or lacks `--yes`
  3    the configuration has mistakes: only another one helps
  4    looked, and it is not well: `status` found something critical, `check` an error
  130  a second signal ended it before it was done";

/// A reason that has a code of its own; found in an error's chain by [`ExitReason::of`].
#[derive(Debug)]
pub(crate) struct ExitError {
    reason: ExitReason,
    message: String,
}

impl ExitReason {
    pub(crate) fn with_message(self, message: impl Into<String>) -> ExitError {
        ExitError { reason: self, message: message.into() }
    }

    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        if error.downcast_ref::<crate::config::ConfigProblems>().is_some() {
            return Self::Misconfigured;
        }
        error.downcast_ref::<ExitError>().map_or(Self::Failed, |error| error.reason)
    }
}

impl From<ExitReason> for ExitCode {
    fn from(reason: ExitReason) -> Self {
        Self::from(match reason {
            ExitReason::Failed => 1,
            ExitReason::Usage => 2,
            ExitReason::Misconfigured => 3,
            ExitReason::Unhealthy => 4,
            // As shells tell of a process that an interrupt ended.
            ExitReason::Interrupted => 130,
        })
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_reason_keeps_its_code_whatever_is_said_around_it() {
        let refused =
            Err::<(), _>(std::io::Error::other("no such key")).context(ExitReason::Misconfigured.with_message("`a.b`"));
        let error = refused.context("start").unwrap_err();
        assert_eq!(ExitReason::from_error(&error), ExitReason::Misconfigured);
        let told: Vec<_> = error.chain().map(ToString::to_string).collect();
        assert_eq!(told, ["start", "`a.b`", "no such key"]);
        assert_eq!(
            ExitReason::from_error(&ExitReason::Interrupted.with_message("twice").into()),
            ExitReason::Interrupted
        );
        assert_eq!(ExitReason::from_error(&anyhow::anyhow!("no answer")), ExitReason::Failed);
    }
}
