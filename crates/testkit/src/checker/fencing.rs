//! Checks the fencing of the checkpoint: only the pod that held the lease in the term of the last claim may save it.
//!
//! Takes the changes of the coordination database in commit order: the lease is taken before the checkpoint is claimed, and the claim
//! comes before that term's saves. Any other save is a violation, whether or not it did harm. The term identifies the pod process: a
//! restarted pod has the same name and another term.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// The history of one pipeline's lease and checkpoint.
#[derive(Clone, Debug, Default)]
pub struct FencingHistory {
    holders: BTreeMap<i64, LeaseHolder>,
    holder: String,
    claimed: i64,
    saved_by: String,
    saved_in: i64,
    saves: u64,
    epoch: i64,
    position: String,
    violations: Vec<FencingViolation>,
    regressions: Vec<Regression>,
}

/// The holder of the lease in a term, and when the observer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    pub name: String,
    pub since: Instant,
}

/// A save that the fence should have refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingViolation {
    pub term: i64,
    pub holder: String,
    pub saved_by: String,
    /// The term of the pod that saved.
    pub saved_in: i64,
}

/// Something went back that may only go forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regression {
    /// The lease was taken in a term that is not above all before.
    Term { last: i64, taken: i64 },
    /// The checkpoint moved back within an epoch, or to an earlier one.
    Checkpoint { epoch: i64, earlier: i64 },
}

impl FencingHistory {
    /// The lease was taken; `by` is set only if the holder changed.
    pub fn record_lease_taken(&mut self, term: i64, by: Option<&str>, now: Instant) {
        if let Some(by) = by {
            by.clone_into(&mut self.holder);
        }
        if let Some((last, _)) = self.last_term().filter(|(last, _)| *last >= term) {
            self.regressions.push(Regression::Term { last, taken: term });
        }
        self.holders.insert(term, LeaseHolder { name: self.holder.clone(), since: now });
    }

    /// The first term after this one, and its holder.
    pub fn next_term(&self, after: i64) -> Option<(i64, &LeaseHolder)> {
        self.holders.range(after.saturating_add(1)..).next().map(|(term, holder)| (*term, holder))
    }

    /// The last term, and its holder.
    pub fn last_term(&self) -> Option<(i64, &LeaseHolder)> {
        self.holders.last_key_value().map(|(term, holder)| (*term, holder))
    }

    /// The checkpoint was claimed in this term.
    pub fn record_claim(&mut self, term: i64) {
        if term < self.claimed {
            self.violations.push(FencingViolation {
                term: self.claimed,
                holder: "a later term".into(),
                saved_by: "a claim".into(),
                saved_in: term,
            });
        }
        self.claimed = self.claimed.max(term);
    }

    /// The checkpoint was saved; `by` and `term` are set only if they changed.
    pub fn record_save(&mut self, by: Option<&str>, term: Option<i64>) {
        self.saves += 1;
        if let Some(by) = by {
            by.clone_into(&mut self.saved_by);
        }
        self.saved_in = term.unwrap_or(self.saved_in);
        let holder = self.holders.get(&self.claimed).map(|holder| holder.name.as_str());
        if self.saved_in != self.claimed || holder.is_some_and(|holder| holder != self.saved_by) {
            let (holder, saved_by) = (holder.unwrap_or("nobody").to_owned(), self.saved_by.clone());
            self.violations.push(FencingViolation { term: self.claimed, holder, saved_by, saved_in: self.saved_in });
        }
    }

    /// The checkpoint has this epoch and position now; each is set only if it changed.
    pub fn record_position(&mut self, epoch: Option<i64>, position: Option<&str>) {
        let (last_epoch, epoch) = (self.epoch, epoch.unwrap_or(self.epoch));
        let is_back = match position {
            _ if epoch != last_epoch => epoch < last_epoch,
            Some(position) => position < self.position.as_str(),
            None => false,
        };
        if is_back {
            self.regressions.push(Regression::Checkpoint { epoch: last_epoch, earlier: epoch });
        }
        self.epoch = epoch;
        if let Some(position) = position {
            position.clone_into(&mut self.position);
        }
    }

    /// Terms that did not rise, and moves of the checkpoint that went back.
    pub fn regressions(&self) -> &[Regression] {
        &self.regressions
    }

    pub fn saves(&self) -> u64 {
        self.saves
    }

    /// The number of terms.
    pub fn terms(&self) -> usize {
        self.holders.len()
    }

    pub fn violations(&self) -> &[FencingViolation] {
        &self.violations
    }
}

impl fmt::Display for FencingViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, holder, saved_by, saved_in } = self;
        write!(f, "the checkpoint of term {term} ({holder}) was saved by {saved_by} of term {saved_in}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_terms() -> FencingHistory {
        let mut history = FencingHistory::default();
        history.record_lease_taken(1, Some("pod-1"), Instant::now());
        history.record_claim(1);
        history.record_save(Some("pod-1"), Some(1));
        history.record_save(None, None);
        history.record_lease_taken(2, Some("pod-2"), Instant::now());
        history
    }

    #[test]
    fn a_deposed_leader_may_save_until_the_next_has_claimed() {
        let mut history = two_terms();
        history.record_save(None, None);
        history.record_claim(2);
        history.record_save(Some("pod-2"), Some(2));
        assert_eq!(history.violations(), []);
        assert_eq!((history.terms(), history.saves()), (2, 4));
    }

    #[test]
    fn a_save_after_the_next_claim_is_a_violation() {
        let mut history = two_terms();
        history.record_claim(2);
        history.record_save(None, None);
        history.record_save(Some("pod-2"), Some(2));
        history.record_save(Some("pod-1"), Some(1));
        let violation = FencingViolation { term: 2, holder: "pod-2".into(), saved_by: "pod-1".into(), saved_in: 1 };
        assert_eq!(history.violations(), [violation.clone(), violation]);
    }

    #[test]
    fn a_restarted_pod_is_another_saver() {
        let mut history = two_terms();
        history.record_claim(2);
        history.record_lease_taken(3, Some("pod-1"), Instant::now());
        history.record_claim(3);
        history.record_save(None, None);
        history.record_save(None, Some(3));
        let violation = FencingViolation { term: 3, holder: "pod-1".into(), saved_by: "pod-1".into(), saved_in: 1 };
        assert_eq!(history.violations(), [violation]);
    }

    #[test]
    fn lease_holders_are_found_by_term() {
        let history = two_terms();
        let name = |found: Option<(i64, &LeaseHolder)>| found.map(|(term, holder)| (term, holder.name.clone()));
        assert_eq!(name(history.next_term(0)), Some((1, "pod-1".into())));
        assert_eq!(name(history.next_term(1)), Some((2, "pod-2".into())));
        assert_eq!(name(history.last_term()), name(history.next_term(1)));
        assert_eq!(history.next_term(2), None);
    }

    #[test]
    fn a_term_or_a_position_that_falls_is_a_regression() {
        let mut history = two_terms();
        history.record_position(Some(1), Some("82a0"));
        history.record_position(None, Some("82a1"));
        history.record_position(Some(2), Some("8200"));
        assert_eq!(history.regressions(), []);
        history.record_position(None, Some("8100"));
        history.record_position(Some(1), None);
        history.record_lease_taken(2, None, Instant::now());
        let [within, earlier] = [(2, 2), (2, 1)].map(|(epoch, earlier)| Regression::Checkpoint { epoch, earlier });
        assert_eq!(history.regressions(), [within, earlier, Regression::Term { last: 2, taken: 2 }]);
    }

    #[test]
    fn a_decreasing_term_is_a_violation() {
        let mut history = two_terms();
        history.record_claim(2);
        history.record_claim(1);
        assert_eq!(history.violations().len(), 1);
    }
}
