//! Exit codes. A code means the same for every command.
//!
//! `docs/operations.md` has the table. A pod that exits with [`ExitReason::Misconfigured`] fails again until the configuration is changed; one that
//! [failed](ExitReason::Failed) may succeed on the next start.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    Failed,
    /// A service did not stop in time, and still runs.
    Overdue,
    /// Also used by `clap`.
    Usage,
    Misconfigured,
    Unhealthy,
    Interrupted,
}

/// Shown below the help of commands.
pub(crate) const HELP: &str = "\
Exit codes:
  0    success; a pod, broker or dev: clean stop
  1    failure: a server was unreachable or refused the request, a port was taken, a service of a pod did not stop in time,
       or `read-model verify` found differences
  2    usage error: invalid command line, or `--yes` is missing
  3    invalid configuration: fix it before the next start
  4    unhealthy: `status` found a critical problem, `check` an error, or `audit` missing events
  130  interrupted by a second signal";

/// An error with its own exit code; [`ExitReason::from_error`] finds it in the chain of causes.
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
        // The configuration module reports its problems without knowing exit codes.
        if error.downcast_ref::<crate::config::ConfigProblems>().is_some() {
            return Self::Misconfigured;
        }
        error.downcast_ref::<ExitError>().map_or(Self::Failed, |error| error.reason)
    }
}

impl From<ExitReason> for ExitCode {
    fn from(reason: ExitReason) -> Self {
        Self::from(match reason {
            ExitReason::Failed | ExitReason::Overdue => 1,
            ExitReason::Usage => 2,
            ExitReason::Misconfigured => 3,
            ExitReason::Unhealthy => 4,
            // 128 + SIGINT, the convention of shells.
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
    fn an_exit_code_survives_added_context() {
        let refused =
            Err::<(), _>(std::io::Error::other("no such key")).context(ExitReason::Misconfigured.with_message("`a.b`"));
        let error = refused.context("start").unwrap_err();
        assert_eq!(ExitReason::from_error(&error), ExitReason::Misconfigured);
        let chain: Vec<_> = error.chain().map(ToString::to_string).collect();
        assert_eq!(chain, ["start", "`a.b`", "no such key"]);
        assert_eq!(
            ExitReason::from_error(&ExitReason::Interrupted.with_message("twice").into()),
            ExitReason::Interrupted
        );
        assert_eq!(ExitReason::from_error(&anyhow::anyhow!("no answer")), ExitReason::Failed);
    }
}
