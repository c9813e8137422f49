//! What a verification found.

use std::collections::BTreeMap;
use std::fmt;

use mongodb::bson::Bson;

use super::difference::Difference;

/// Why an aggregate was not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// Parked in this read model: its later events wait.
    Parked,
    /// The cursor has no sequence.
    NoSequence,
    /// The source does not have all events of the aggregate.
    SourceIncomplete,
    /// The source has another event than the one applied last: it was restored, or the aggregate recreated.
    Regressed,
}

impl SkipReason {
    pub const ALL: [Self; 4] = [Self::Parked, Self::NoSequence, Self::SourceIncomplete, Self::Regressed];

    /// For JSON.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::NoSequence => "no_sequence",
            Self::SourceIncomplete => "source_incomplete",
            Self::Regressed => "regressed",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Parked => "parked",
            Self::NoSequence => "without a sequence",
            Self::SourceIncomplete => "not complete in the source",
            Self::Regressed => "changed in the source",
        })
    }
}

/// Counts of one verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyTotals {
    /// Documents, also missing ones.
    pub compared: u64,
    pub different: u64,
    pub repaired: u64,
    pub skipped: BTreeMap<SkipReason, u64>,
}

impl VerifyTotals {
    pub fn skipped(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Documents that still differ.
    pub fn unrepaired(&self) -> u64 {
        self.different - self.repaired
    }
}

/// A document that differs. `Debug` shows no values.
#[derive(Clone)]
pub struct Finding {
    /// The `_id` of the document.
    pub id: Bson,
    /// The sequence up to which it was compared; `None` for a document without a cursor.
    pub sequence: Option<i64>,
    pub differences: Vec<Difference>,
    /// What the differences do not say.
    pub detail: Option<String>,
    pub repaired: bool,
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Finding");
        shown.field("sequence", &self.sequence).field("differences", &self.differences);
        shown.field("repaired", &self.repaired).finish_non_exhaustive()
    }
}
