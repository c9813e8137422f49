//! What the judge says, for people.

use std::collections::BTreeMap;
use std::fmt;

use super::Tally;

/// Enough to see what happened; a broken run could have hundreds of thousands.
const KEPT: usize = 1_000;
const SHOWN: usize = 20;

/// The judgement of one run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub tally: Tally,
    /// The first thousand.
    pub findings: Vec<Finding>,
    /// Of all, also those that were not kept.
    pub(super) counts: BTreeMap<Kind, u64>,
    /// Writes whose acknowledgement never came, and how many of them happened.
    pub in_doubt: u64,
    pub in_doubt_appeared: u64,
    /// Copies by the term that published them, where they are counted and no fault.
    pub duplicates: BTreeMap<Option<u64>, u64>,
}

/// One promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub aggregate: String,
    pub sequence: i64,
    /// How many events the aggregate has.
    pub written: usize,
    /// What was seen before and after; the thing itself in brackets, `[?]` where it should have been.
    pub around: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Acknowledged to the writer, and never seen.
    Lost,
    /// Seen a second time.
    Doubled,
    /// Seen after one that follows it.
    OutOfOrder,
    /// Never written, or another event than was written under that sequence.
    Alien,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Lost, Self::Doubled, Self::OutOfOrder, Self::Alien];
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Copies that the busiest term published: what a takeover may send again is bounded by the window in flight.
    pub fn most_duplicates_in_a_term(&self) -> u64 {
        self.duplicates.values().copied().max().unwrap_or(0)
    }

    pub fn duplicates(&self) -> u64 {
        self.duplicates.values().sum()
    }

    pub(super) fn add(&mut self, finding: Finding) {
        *self.counts.entry(finding.kind).or_default() += 1;
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { acknowledged, seen, redelivered, .. } = self.tally;
        write!(f, "{acknowledged} acknowledged, {seen} seen ({redelivered} delivered again)")?;
        write!(f, ", {} in doubt of which {} happened", self.in_doubt, self.in_doubt_appeared)?;
        for kind in Kind::ALL {
            write!(f, ", {} {kind}", self.count(kind))?;
        }
        if !self.duplicates.is_empty() {
            write!(f, ", {} copies, at most {} in a term", self.duplicates(), self.most_duplicates_in_a_term())?;
        }
        for finding in self.findings.iter().take(SHOWN) {
            write!(f, "\n  {finding}")?;
        }
        let rest = self.counts.values().sum::<u64>().saturating_sub(SHOWN as u64);
        if rest > 0 { write!(f, "\n  … and {rest} more") } else { Ok(()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, aggregate, sequence, written, around } = self;
        write!(f, "{kind}: `{aggregate}` {sequence} of {written}: {around}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::OutOfOrder => "out of order",
            Self::Alien => "alien",
        })
    }
}
