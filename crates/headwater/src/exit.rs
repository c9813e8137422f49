//! How a command ends, for scripts: a code means the same whichever command ends with it.
//!
//! `docs/operations.md` has the table; a pod that ends with [`Exit::Misconfigured`] ends so again until somebody acts, one that [failed](Exit::Failed) may
//! be well the next time.

use std::fmt;
use std::process::ExitCode;

/// How it ended, unless well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Failed,
    /// Also `clap`'s own.
    Usage,
    Misconfigured,
    NotWell,
    CutShort,
}

/// Below the help of commands.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done; a pod, broker or dev: stopped in order
  1    failed: a server was not there or refused, a port was taken, something broke, or a service of a pod did not end in time
  2    the command line was not understood, or lacks `--yes`
  3    the configuration has mistakes: only another one helps
  4    looked, and it is not well: `status` found something critical, `check` an error
  130  a second signal ended it before it was done";

/// A reason that has a code of its own; found in an error's chain by [`Exit::of`].
#[derive(Debug)]
pub(crate) struct Ended {
    exit: Exit,
    why: String,
}

impl Exit {
    pub(crate) fn because(self, why: impl Into<String>) -> Ended {
        Ended { exit: self, why: why.into() }
    }

    pub(crate) fn of(error: &anyhow::Error) -> Self {
        if error.downcast_ref::<crate::config::Problems>().is_some() {
            return Self::Misconfigured;
        }
        error.downcast_ref::<Ended>().map_or(Self::Failed, |ended| ended.exit)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Misconfigured => 3,
            Exit::NotWell => 4,
            // As shells tell of a process that an interrupt ended.
            Exit::CutShort => 130,
        })
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Ended {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_reason_keeps_its_code_whatever_is_said_around_it() {
        let refused = Err::<(), _>(std::io::Error::other("no such key")).context(Exit::Misconfigured.because("`a.b`"));
        let error = refused.context("start").unwrap_err();
        assert_eq!(Exit::of(&error), Exit::Misconfigured);
        let told: Vec<_> = error.chain().map(ToString::to_string).collect();
        assert_eq!(told, ["start", "`a.b`", "no such key"]);
        assert_eq!(Exit::of(&Exit::CutShort.because("twice").into()), Exit::CutShort);
        assert_eq!(Exit::of(&anyhow::anyhow!("no answer")), Exit::Failed);
    }
}
