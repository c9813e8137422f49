//! Pure: what the contenders said, and whether it can be true of one lease.

use super::report::{LateSave, Millis, Report};

/// A span in which one contender acted, or believed that it might.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    pub contender: String,
    pub term: u64,
    pub from: Millis,
    pub to: Millis,
}

/// What is wrong; nothing, if both lists are empty.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Every term, in the order of its beginning.
    pub terms: Vec<(u64, String)>,
    /// Pairs of intervals of different contenders that share a moment.
    pub overlaps: Vec<(Interval, Interval)>,
    /// Terms that did not rise.
    pub out_of_order: Vec<(u64, u64)>,
    /// Saves that moved the checkpoint after a higher term had claimed it.
    pub late_saves: Vec<(u64, String)>,
    /// Looks at a gate right after a pause, in a term that was over by then.
    pub open_after_pause: Vec<(u64, String)>,
    /// Positions that were lower than one saved before, in the order of terms.
    pub moved_back: Vec<(String, String)>,
}

impl Judgement {
    /// # Panics
    /// When two pods led at once, terms did not rise, or the checkpoint was moved by a deposed leader or moved back.
    pub fn must_be_clean(&self) {
        let clean = self.overlaps.is_empty()
            && self.out_of_order.is_empty()
            && self.late_saves.is_empty()
            && self.open_after_pause.is_empty()
            && self.moved_back.is_empty();
        assert!(clean, "{self:#?}");
    }
}

/// Judges everything that was said, by contender. `killed` are the moments at which contenders were killed: what they
/// believed of the time after it does not count.
pub fn judge<'a>(said: impl IntoIterator<Item = (&'a str, &'a [Report], Option<Millis>)>) -> Judgement {
    let mut judgement = Judgement::default();
    let (mut intervals, mut beginnings, mut saves, mut claims, mut late) = (vec![], vec![], vec![], vec![], vec![]);
    for (contender, reports, killed) in said {
        intervals.extend(acted(contender, reports));
        intervals.extend(believed(contender, reports, killed.unwrap_or(Millis::INFINITY)));
        for report in reports {
            match report {
                Report::Gained { term, at, .. } => beginnings.push((*at, *term, contender.to_owned())),
                Report::Claimed { term, at, .. } => claims.push((*term, *at)),
                Report::SavedLate { term, at, outcome: LateSave::Moved } => {
                    late.push((*term, *at, contender.to_owned()))
                }
                Report::Saved { term, position } => saves.push((*term, position.clone())),
                Report::Woke { term, at, gate_open: true, .. } if over(reports, *term, *at) => {
                    judgement.open_after_pause.push((*term, contender.to_owned()));
                }
                _ => {}
            }
        }
    }
    judgement.overlaps = overlaps(intervals);
    late.retain(|(term, at, _)| claims.iter().any(|(higher, claimed)| higher > term && claimed < at));
    judgement.late_saves = late.into_iter().map(|(term, _, contender)| (term, contender)).collect();
    beginnings.sort_by(|left, right| left.0.total_cmp(&right.0));
    // Terms of the notes' statement are all zero: it has none.
    let numbered = beginnings.windows(2).filter(|pair| pair[0].1 > 0 && pair[0].1 >= pair[1].1);
    judgement.out_of_order = numbered.map(|pair| (pair[0].1, pair[1].1)).collect();
    judgement.terms = beginnings.into_iter().map(|(_, term, contender)| (term, contender)).collect();
    saves.sort_by_key(|(term, _)| *term);
    let back = saves.windows(2).filter(|pair| pair[0].1 >= pair[1].1);
    judgement.moved_back = back.map(|pair| (pair[0].1.clone(), pair[1].1.clone())).collect();
    judgement
}

fn acted(contender: &str, reports: &[Report]) -> Vec<Interval> {
    let spans = reports.iter().filter_map(|report| match report {
        Report::Acted { term, from, to } => Some((*term, *from, *to)),
        _ => None,
    });
    spans.map(|(term, from, to)| Interval { contender: contender.to_owned(), term, from, to }).collect()
}

/// From when a term was gained to the last moment up to which it was renewed, or to when it was given up.
fn believed(contender: &str, reports: &[Report], killed: Millis) -> Vec<Interval> {
    let gained = reports.iter().filter_map(|report| match report {
        Report::Gained { term, at, valid_until } if *term > 0 => Some((*term, *at, *valid_until)),
        _ => None,
    });
    let believed = gained.map(|(term, from, valid_until)| {
        let until = renewed(reports, term).fold(valid_until, Millis::max);
        let lost = reports.iter().find_map(|report| match report {
            Report::Lost { term: lost, at, .. } if *lost == term => Some(at.min(until)),
            _ => None,
        });
        Interval { contender: contender.to_owned(), term, from, to: lost.unwrap_or(until).min(killed).max(from) }
    });
    believed.collect()
}

fn renewed(reports: &[Report], wanted: u64) -> impl Iterator<Item = Millis> {
    reports.iter().filter_map(move |report| match report {
        Report::Renewed { term, valid_until } if *term == wanted => Some(*valid_until),
        _ => None,
    })
}

/// Whether the last renewal of a term that this contender told of had run out by then.
fn over(reports: &[Report], term: u64, at: Millis) -> bool {
    renewed(reports, term).fold(0.0, Millis::max) < at
}

fn overlaps(mut intervals: Vec<Interval>) -> Vec<(Interval, Interval)> {
    intervals.sort_by(|left, right| left.from.total_cmp(&right.from));
    let mut found = vec![];
    let mut latest: Option<Interval> = None;
    for interval in intervals {
        if let Some(earlier) = &latest
            && earlier.contender != interval.contender
            && interval.from < earlier.to
        {
            found.push((earlier.clone(), interval.clone()));
        }
        if latest.as_ref().is_none_or(|earlier| earlier.to < interval.to) {
            latest = Some(interval);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gained(term: u64, at: Millis, valid_until: Millis) -> Report {
        Report::Gained { term, at, valid_until }
    }

    #[test]
    fn terms_that_follow_each_other_are_fine() {
        let first = [gained(1, 0.0, 10.0), Report::Lost { term: 1, at: 5.0, drain: true }];
        let second = [gained(2, 5.0, 15.0)];
        judge([("a", &first[..], None), ("b", &second[..], None)]).must_be_clean();
    }

    #[test]
    fn two_that_believe_at_once_are_caught() {
        let first = [gained(1, 0.0, 10.0)];
        let second = [gained(2, 9.0, 15.0)];
        let judgement = judge([("a", &first[..], None), ("b", &second[..], None)]);
        assert_eq!(judgement.overlaps.len(), 1);
        // unless the first was dead by then
        judge([("a", &first[..], Some(8.0)), ("b", &second[..], None)]).must_be_clean();
    }

    #[test]
    fn two_that_act_at_once_are_caught_whatever_they_believe() {
        let first = [gained(1, 0.0, 10.0), Report::Acted { term: 1, from: 11.0, to: 12.0 }];
        let second = [gained(2, 10.5, 20.0)];
        assert!(!judge([("a", &first[..], None), ("b", &second[..], None)]).overlaps.is_empty());
    }

    #[test]
    fn a_term_that_does_not_rise_is_caught() {
        let first = [gained(2, 0.0, 1.0)];
        let second = [gained(2, 5.0, 6.0)];
        assert_eq!(judge([("a", &first[..], None), ("b", &second[..], None)]).out_of_order, [(2, 2)]);
    }

    #[test]
    fn a_late_save_and_a_checkpoint_that_moves_back_are_caught() {
        let late = Report::SavedLate { term: 1, at: 9.0, outcome: LateSave::Moved };
        let first = [Report::Saved { term: 1, position: "5".into() }, late];
        let claim = Report::Claimed { term: 2, at: 8.0, position: "5".into() };
        let second = [claim, Report::Saved { term: 2, position: "4".into() }];
        let judgement = judge([("a", &first[..], None), ("b", &second[..], None)]);
        assert_eq!(judgement.late_saves.len(), 1);
        assert_eq!(judgement.moved_back, [("5".to_owned(), "4".to_owned())]);
    }

    #[test]
    fn a_gate_that_is_open_after_its_time_is_caught() {
        let woke = Report::Woke { term: 1, at: 50.0, slept: 40.0, gate_open: true };
        let reports = [gained(1, 0.0, 10.0), Report::Renewed { term: 1, valid_until: 12.0 }, woke];
        assert_eq!(judge([("a", &reports[..], None)]).open_after_pause.len(), 1);
    }
}
