//! The report of a check.

use std::collections::BTreeMap;
use std::fmt;

use super::CheckerCounts;

/// Enough to diagnose a run; a broken one could have hundreds of thousands of violations.
const MAX_KEPT: usize = 1_000;
const MAX_SHOWN: usize = 20;

/// The result of checking one run.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    pub counts: CheckerCounts,
    /// The first thousand violations.
    pub violations: Vec<HistoryViolation>,
    /// Of all violations, including those that were not kept.
    pub(super) by_kind: BTreeMap<ViolationKind, u64>,
    /// Writes without acknowledgement, and how many of them were observed.
    pub in_doubt: u64,
    pub in_doubt_appeared: u64,
    /// Copies by the term that published them, where duplicates are counted.
    pub duplicates: BTreeMap<Option<u64>, u64>,
}

/// One broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryViolation {
    pub kind: ViolationKind,
    pub aggregate: String,
    pub sequence: i64,
    /// How many events the aggregate has.
    pub written: usize,
    /// The events before and after. The event itself is in brackets; `[?]` marks where it is missing.
    pub context: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// Acknowledged to the writer and never observed.
    Lost,
    /// Observed a second time.
    Duplicated,
    /// Observed after one of its successors.
    OutOfOrder,
    /// Never written, or another event than was written under that sequence.
    Unexpected,
    /// Observed with another body than was written.
    Altered,
}

impl ViolationKind {
    pub const ALL: [Self; 5] = [Self::Lost, Self::Duplicated, Self::OutOfOrder, Self::Unexpected, Self::Altered];
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.by_kind.is_empty()
    }

    pub fn count(&self, kind: ViolationKind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or(0)
    }

    /// The most copies that one term published. The window in flight bounds what a takeover may republish.
    pub fn most_duplicates_in_a_term(&self) -> u64 {
        self.duplicates.values().copied().max().unwrap_or(0)
    }

    pub fn duplicates(&self) -> u64 {
        self.duplicates.values().sum()
    }

    pub(super) fn add(&mut self, violation: HistoryViolation) {
        *self.by_kind.entry(violation.kind).or_default() += 1;
        if self.violations.len() < MAX_KEPT {
            self.violations.push(violation);
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CheckerCounts { acknowledged, observed, redelivered, .. } = self.counts;
        write!(f, "{acknowledged} acknowledged, {observed} observed ({redelivered} redelivered)")?;
        write!(f, ", {} in doubt of which {} were observed", self.in_doubt, self.in_doubt_appeared)?;
        for kind in ViolationKind::ALL {
            write!(f, ", {} {kind}", self.count(kind))?;
        }
        if !self.duplicates.is_empty() {
            write!(f, ", {} copies, at most {} in a term", self.duplicates(), self.most_duplicates_in_a_term())?;
        }
        for violation in self.violations.iter().take(MAX_SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        let rest = self.by_kind.values().sum::<u64>().saturating_sub(MAX_SHOWN as u64);
        if rest > 0 { write!(f, "\n  … and {rest} more") } else { Ok(()) }
    }
}

impl fmt::Display for HistoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, aggregate, sequence, written, context } = self;
        write!(f, "{kind}: `{aggregate}` {sequence} of {written}: {context}")
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::OutOfOrder => "out of order",
            Self::Unexpected => "unexpected",
            Self::Altered => "altered",
        })
    }
}
