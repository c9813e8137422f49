//! Checks the reports of all candidates: one leader at a time, rising terms, a fenced checkpoint. Pure.

use super::report::{CandidateReport, LateSave, Millis};

/// A time in which one candidate acted as leader, or was valid by its own clock.
#[derive(Clone, Debug, PartialEq)]
pub struct LeadershipInterval {
    pub candidate: String,
    pub term: u64,
    pub from: Millis,
    pub to: Millis,
}

/// The terms of an election, and every violation found.
#[derive(Debug, Default)]
pub struct ElectionEvaluation {
    /// Every term, in the order of its start.
    pub terms: Vec<(u64, String)>,
    /// Pairs of overlapping intervals of different candidates.
    pub overlaps: Vec<(LeadershipInterval, LeadershipInterval)>,
    /// Terms that did not rise.
    pub out_of_order: Vec<(u64, u64)>,
    /// Saves that moved the checkpoint after a higher term had claimed it.
    pub late_saves: Vec<(u64, String)>,
    /// Gates found open right after a pause, in a term that was over by then.
    pub open_after_pause: Vec<(u64, String)>,
    /// Positions lower than one saved before, in the order of terms.
    pub moved_back: Vec<(String, String)>,
}

impl ElectionEvaluation {
    /// # Panics
    /// When two pods led at once, terms did not rise, or the checkpoint was moved by a deposed leader or moved back.
    pub fn assert_clean(&self) {
        let clean = self.overlaps.is_empty()
            && self.out_of_order.is_empty()
            && self.late_saves.is_empty()
            && self.open_after_pause.is_empty()
            && self.moved_back.is_empty();
        assert!(clean, "{self:#?}");
    }
}

/// Evaluates all reports, by candidate. The third element is the time at which the candidate was killed: its validity ends
/// there.
pub fn evaluate<'a>(
    reports_by_candidate: impl IntoIterator<Item = (&'a str, &'a [CandidateReport], Option<Millis>)>,
) -> ElectionEvaluation {
    let mut evaluation = ElectionEvaluation::default();
    let (mut intervals, mut beginnings, mut saves, mut claims, mut late) = (vec![], vec![], vec![], vec![], vec![]);
    for (candidate, reports, killed) in reports_by_candidate {
        intervals.extend(acting_intervals(candidate, reports));
        intervals.extend(valid_intervals(candidate, reports, killed.unwrap_or(Millis::INFINITY)));
        for report in reports {
            match report {
                CandidateReport::Gained { term, at, .. } => beginnings.push((*at, *term, candidate.to_owned())),
                CandidateReport::Claimed { term, at, .. } => claims.push((*term, *at)),
                CandidateReport::SavedLate { term, at, outcome: LateSave::Moved } => {
                    late.push((*term, *at, candidate.to_owned()))
                }
                CandidateReport::Saved { term, position } => saves.push((*term, position.clone())),
                CandidateReport::Woke { term, at, gate_open: true, .. } if is_over(reports, *term, *at) => {
                    evaluation.open_after_pause.push((*term, candidate.to_owned()));
                }
                _ => {}
            }
        }
    }
    evaluation.overlaps = overlaps(intervals);
    // A late save is allowed if no higher term had claimed the checkpoint yet.
    late.retain(|(term, at, _)| claims.iter().any(|(higher, claimed)| higher > term && claimed < at));
    evaluation.late_saves = late.into_iter().map(|(term, _, candidate)| (term, candidate)).collect();
    beginnings.sort_by(|left, right| left.0.total_cmp(&right.0));
    // The client-clock election has no terms; it reports zero.
    let numbered = beginnings.windows(2).filter(|pair| pair[0].1 > 0 && pair[0].1 >= pair[1].1);
    evaluation.out_of_order = numbered.map(|pair| (pair[0].1, pair[1].1)).collect();
    evaluation.terms = beginnings.into_iter().map(|(_, term, candidate)| (term, candidate)).collect();
    // Stable: saves of one term keep their order.
    saves.sort_by_key(|(term, _)| *term);
    let back = saves.windows(2).filter(|pair| pair[0].1 >= pair[1].1);
    evaluation.moved_back = back.map(|pair| (pair[0].1.clone(), pair[1].1.clone())).collect();
    evaluation
}

fn acting_intervals(candidate: &str, reports: &[CandidateReport]) -> Vec<LeadershipInterval> {
    let spans = reports.iter().filter_map(|report| match report {
        CandidateReport::Acted { term, from, to } => Some((*term, *from, *to)),
        _ => None,
    });
    spans.map(|(term, from, to)| LeadershipInterval { candidate: candidate.to_owned(), term, from, to }).collect()
}

/// From the start of a term to the end of its last renewal, or to its loss.
fn valid_intervals(candidate: &str, reports: &[CandidateReport], killed: Millis) -> Vec<LeadershipInterval> {
    let gained = reports.iter().filter_map(|report| match report {
        CandidateReport::Gained { term, at, valid_until } if *term > 0 => Some((*term, *at, *valid_until)),
        _ => None,
    });
    let intervals = gained.map(|(term, from, valid_until)| {
        let until = renewals(reports, term).fold(valid_until, Millis::max);
        let lost = reports.iter().find_map(|report| match report {
            CandidateReport::Lost { term: lost, at, .. } if *lost == term => Some(at.min(until)),
            _ => None,
        });
        LeadershipInterval {
            candidate: candidate.to_owned(),
            term,
            from,
            to: lost.unwrap_or(until).min(killed).max(from),
        }
    });
    intervals.collect()
}

fn renewals(reports: &[CandidateReport], wanted: u64) -> impl Iterator<Item = Millis> {
    reports.iter().filter_map(move |report| match report {
        CandidateReport::Renewed { term, valid_until } if *term == wanted => Some(*valid_until),
        _ => None,
    })
}

/// Whether the last reported renewal of this term had expired at `at`.
fn is_over(reports: &[CandidateReport], term: u64, at: Millis) -> bool {
    renewals(reports, term).fold(0.0, Millis::max) < at
}

fn overlaps(mut intervals: Vec<LeadershipInterval>) -> Vec<(LeadershipInterval, LeadershipInterval)> {
    intervals.sort_by(|left, right| left.from.total_cmp(&right.from));
    let mut found = vec![];
    let mut latest: Option<LeadershipInterval> = None;
    for interval in intervals {
        if let Some(earlier) = &latest
            && earlier.candidate != interval.candidate
            && interval.from < earlier.to
        {
            found.push((earlier.clone(), interval.clone()));
        }
        // Keep the interval that ends last: a long one may overlap several that follow.
        if latest.as_ref().is_none_or(|earlier| earlier.to < interval.to) {
            latest = Some(interval);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gained(term: u64, at: Millis, valid_until: Millis) -> CandidateReport {
        CandidateReport::Gained { term, at, valid_until }
    }

    #[test]
    fn consecutive_terms_pass() {
        let first = [gained(1, 0.0, 10.0), CandidateReport::Lost { term: 1, at: 5.0, drain: true }];
        let second = [gained(2, 5.0, 15.0)];
        evaluate([("a", &first[..], None), ("b", &second[..], None)]).assert_clean();
    }

    #[test]
    fn two_valid_candidates_are_found() {
        let first = [gained(1, 0.0, 10.0)];
        let second = [gained(2, 9.0, 15.0)];
        let evaluation = evaluate([("a", &first[..], None), ("b", &second[..], None)]);
        assert_eq!(evaluation.overlaps.len(), 1);
        // Not if the first was killed before.
        evaluate([("a", &first[..], Some(8.0)), ("b", &second[..], None)]).assert_clean();
    }

    #[test]
    fn two_acting_candidates_are_found() {
        let first = [gained(1, 0.0, 10.0), CandidateReport::Acted { term: 1, from: 11.0, to: 12.0 }];
        let second = [gained(2, 10.5, 20.0)];
        assert!(!evaluate([("a", &first[..], None), ("b", &second[..], None)]).overlaps.is_empty());
    }

    #[test]
    fn a_term_that_does_not_rise_is_found() {
        let first = [gained(2, 0.0, 1.0)];
        let second = [gained(2, 5.0, 6.0)];
        assert_eq!(evaluate([("a", &first[..], None), ("b", &second[..], None)]).out_of_order, [(2, 2)]);
    }

    #[test]
    fn a_late_save_and_a_lowered_checkpoint_are_found() {
        let late = CandidateReport::SavedLate { term: 1, at: 9.0, outcome: LateSave::Moved };
        let first = [CandidateReport::Saved { term: 1, position: "5".into() }, late];
        let claim = CandidateReport::Claimed { term: 2, at: 8.0, position: "5".into() };
        let second = [claim, CandidateReport::Saved { term: 2, position: "4".into() }];
        let evaluation = evaluate([("a", &first[..], None), ("b", &second[..], None)]);
        assert_eq!(evaluation.late_saves.len(), 1);
        assert_eq!(evaluation.moved_back, [("5".to_owned(), "4".to_owned())]);
    }

    #[test]
    fn a_gate_open_after_its_term_is_found() {
        let woke = CandidateReport::Woke { term: 1, at: 50.0, slept: 40.0, gate_open: true };
        let reports = [gained(1, 0.0, 10.0), CandidateReport::Renewed { term: 1, valid_until: 12.0 }, woke];
        assert_eq!(evaluate([("a", &reports[..], None)]).open_after_pause.len(), 1);
    }
}
