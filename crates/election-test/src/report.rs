//! The reports of a candidate on its standard output: one JSON object per line.

use std::io::Write;

use lease::{BootInstant, Term};
use serde::{Deserialize, Serialize};

/// Milliseconds of the boot clock, with fractions.
pub type Millis = f64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum CandidateReport {
    /// The process runs and is about to take part.
    Started { at: Millis },
    /// It gained a term.
    Gained { term: u64, at: Millis, valid_until: Millis },
    /// A renewal moved the end of its term.
    Renewed { term: u64, valid_until: Millis },
    /// Its gate was open at every check between these times.
    Acted { term: u64, from: Millis, to: Millis },
    /// It was paused; `gate_open` is the result of the first gate check afterwards.
    Woke { term: u64, at: Millis, slept: Millis, gate_open: bool },
    /// It received a stop signal.
    Lost { term: u64, at: Millis, drain: bool },
    /// It claimed the checkpoint in its term; `position` is the position it read.
    Claimed { term: u64, at: Millis, position: String },
    /// The last position it saved.
    Saved { term: u64, position: String },
    /// After its term was lost, it tried at `at` to save once more, far ahead, like a leader that does not know yet.
    SavedLate { term: u64, at: Millis, outcome: LateSave },
    /// The elector has ended.
    Ended { at: Millis },
}

/// The result of a save in a lost term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LateSave {
    /// The checkpoint belongs to another term.
    Refused,
    /// No other candidate had claimed the checkpoint since.
    Moved,
    /// MongoDB was unreachable, or too slow to know.
    Failed,
}

impl CandidateReport {
    /// When this shows that the store granted a request sent after `moment`: a new term or a renewal. Acting on an older grant does
    /// not count.
    pub fn granted_after(&self, moment: Millis, renew_deadline: Millis) -> Option<Millis> {
        let sent = match self {
            Self::Gained { valid_until, .. } | Self::Renewed { valid_until, .. } => valid_until - renew_deadline,
            _ => return None,
        };
        (sent > moment).then_some(sent)
    }

    pub(super) fn print(&self) {
        let line = serde_json::to_string(self).expect("a report is plain data");
        let mut out = std::io::stdout().lock();
        // If the parent is gone, this process ends anyway.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

pub(super) fn millis(moment: BootInstant) -> Millis {
    moment.as_duration().as_secs_f64() * 1000.0
}

pub(super) fn now() -> Millis {
    millis(BootInstant::now())
}

pub(super) fn term_number(term: Term) -> u64 {
    term.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acting_on_an_old_renewal_is_not_a_new_grant() {
        let acted = CandidateReport::Acted { term: 1, from: 90.0, to: 110.0 };
        let old = CandidateReport::Renewed { term: 1, valid_until: 130.0 };
        let new = CandidateReport::Renewed { term: 1, valid_until: 145.0 };
        let gained = CandidateReport::Gained { term: 2, at: 120.0, valid_until: 150.0 };
        let granted = [acted, old, new, gained].map(|report| report.granted_after(100.0, 40.0));
        assert_eq!(granted, [None, None, Some(105.0), Some(110.0)]);
    }
}
