//! Who saved the checkpoint: only the pod that held the lease in the term the checkpoint was claimed in.
//!
//! Fed with the changes of the coordination database in commit order, where a take of the lease comes before the claim, and the claim before
//! that term's saves. A save by anybody else got past the fence, whether or not it did harm this time. Who somebody is, is told by the term of the
//! save: a pod that was started anew has its old name, and is another.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// The history of one pipeline's lease and checkpoint.
#[derive(Clone, Debug, Default)]
pub struct FenceBook {
    holders: BTreeMap<i64, Holder>,
    holder: String,
    claimed: i64,
    saved_by: String,
    saved_in: i64,
    saves: u64,
    breaches: Vec<Breach>,
}

/// Who held the lease in a term, and when that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub since: Instant,
}

/// A save that should have been refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub term: i64,
    pub holder: String,
    pub saved_by: String,
    /// The term of whoever saved.
    pub saved_in: i64,
}

impl FenceBook {
    /// The lease was taken; `by` only if that changed.
    pub fn taken(&mut self, term: i64, by: Option<&str>, now: Instant) {
        if let Some(by) = by {
            by.clone_into(&mut self.holder);
        }
        self.holders.insert(term, Holder { name: self.holder.clone(), since: now });
    }

    /// The first term after this one, and who held the lease in it.
    pub fn next_term(&self, after: i64) -> Option<(i64, &Holder)> {
        self.holders.range(after.saturating_add(1)..).next().map(|(term, holder)| (*term, holder))
    }

    /// The last term, and who holds the lease in it, or held it.
    pub fn last_term(&self) -> Option<(i64, &Holder)> {
        self.holders.last_key_value().map(|(term, holder)| (*term, holder))
    }

    /// The checkpoint was claimed in this term.
    pub fn claimed(&mut self, term: i64) {
        if term < self.claimed {
            self.breaches.push(Breach {
                term: self.claimed,
                holder: "a later term".into(),
                saved_by: "a claim".into(),
                saved_in: term,
            });
        }
        self.claimed = self.claimed.max(term);
    }

    /// The checkpoint was saved; `by` and `term` only if they changed.
    pub fn saved(&mut self, by: Option<&str>, term: Option<i64>) {
        self.saves += 1;
        if let Some(by) = by {
            by.clone_into(&mut self.saved_by);
        }
        self.saved_in = term.unwrap_or(self.saved_in);
        let holder = self.holders.get(&self.claimed).map(|holder| holder.name.as_str());
        if self.saved_in != self.claimed || holder.is_some_and(|holder| holder != self.saved_by) {
            let (holder, saved_by) = (holder.unwrap_or("nobody").to_owned(), self.saved_by.clone());
            self.breaches.push(Breach { term: self.claimed, holder, saved_by, saved_in: self.saved_in });
        }
    }

    pub fn saves(&self) -> u64 {
        self.saves
    }

    /// How many terms there were.
    pub fn terms(&self) -> usize {
        self.holders.len()
    }

    pub fn breaches(&self) -> &[Breach] {
        &self.breaches
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, holder, saved_by, saved_in } = self;
        write!(f, "the checkpoint of term {term} ({holder}) was saved by {saved_by} of term {saved_in}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_terms() -> FenceBook {
        let mut book = FenceBook::default();
        book.taken(1, Some("pod-1"), Instant::now());
        book.claimed(1);
        book.saved(Some("pod-1"), Some(1));
        book.saved(None, None);
        book.taken(2, Some("pod-2"), Instant::now());
        book
    }

    #[test]
    fn a_deposed_leader_may_save_until_the_next_has_claimed() {
        let mut book = two_terms();
        book.saved(None, None);
        book.claimed(2);
        book.saved(Some("pod-2"), Some(2));
        assert_eq!(book.breaches(), []);
        assert_eq!((book.terms(), book.saves()), (2, 4));
    }

    #[test]
    fn a_save_after_the_next_claim_is_a_breach_before_and_after_the_next_has_saved() {
        let mut book = two_terms();
        book.claimed(2);
        book.saved(None, None);
        book.saved(Some("pod-2"), Some(2));
        book.saved(Some("pod-1"), Some(1));
        let breach = Breach { term: 2, holder: "pod-2".into(), saved_by: "pod-1".into(), saved_in: 1 };
        assert_eq!(book.breaches(), [breach.clone(), breach]);
    }

    #[test]
    fn a_pod_that_was_started_anew_is_not_the_one_it_was() {
        let mut book = two_terms();
        book.claimed(2);
        book.taken(3, Some("pod-1"), Instant::now());
        book.claimed(3);
        book.saved(None, None);
        book.saved(None, Some(3));
        let breach = Breach { term: 3, holder: "pod-1".into(), saved_by: "pod-1".into(), saved_in: 1 };
        assert_eq!(book.breaches(), [breach]);
    }

    #[test]
    fn who_held_the_lease_is_known_by_term() {
        let book = two_terms();
        let name = |found: Option<(i64, &Holder)>| found.map(|(term, holder)| (term, holder.name.clone()));
        assert_eq!(name(book.next_term(0)), Some((1, "pod-1".into())));
        assert_eq!(name(book.next_term(1)), Some((2, "pod-2".into())));
        assert_eq!(name(book.last_term()), name(book.next_term(1)));
        assert_eq!(book.next_term(2), None);
    }

    #[test]
    fn a_term_that_falls_is_a_breach() {
        let mut book = two_terms();
        book.claimed(2);
        book.claimed(1);
        assert_eq!(book.breaches().len(), 1);
    }
}
