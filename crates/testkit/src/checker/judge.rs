//! Holds what was seen against what was written, one aggregate at a time.

use std::fmt::Write as _;

use super::Duplicates;
use super::book::{Aggregate, Book, Sight};
use super::verdict::{Finding, Kind, Verdict};

/// How much of a history a finding shows on either side.
const AROUND: usize = 4;

pub(super) fn judge(book: &Book, duplicates: Duplicates) -> Verdict {
    let mut verdict = Verdict { tally: book.tally(), ..Verdict::default() };
    for aggregate in book.aggregates() {
        examine(aggregate, duplicates, &mut verdict);
    }
    verdict
}

fn examine(aggregate: &Aggregate, duplicates: Duplicates, verdict: &mut Verdict) {
    let mut seen = vec![false; aggregate.written.len()];
    let mut highest = 0;
    for (at, sight) in aggregate.seen.iter().enumerate() {
        let kind = match known(aggregate, sight) {
            None => Some(Kind::Alien),
            Some(place) if seen[place] => match duplicates {
                Duplicates::Refused => Some(Kind::Doubled),
                Duplicates::Counted => {
                    *verdict.duplicates.entry(sight.term).or_default() += 1;
                    None
                }
            },
            Some(place) => {
                seen[place] = true;
                let late = sight.sequence < highest;
                highest = highest.max(sight.sequence);
                late.then_some(Kind::OutOfOrder)
            }
        };
        if let Some(kind) = kind {
            verdict.add(finding(aggregate, kind, sight.sequence, at, Some(at)));
        }
    }
    for (place, write) in aggregate.written.iter().enumerate() {
        let sequence = place as i64 + 1;
        match (write.acknowledged, seen[place]) {
            (true, false) => {
                let place = aggregate.seen.iter().position(|sight| sight.sequence > sequence);
                let at = place.unwrap_or(aggregate.seen.len());
                verdict.add(finding(aggregate, Kind::Lost, sequence, at, None));
            }
            (false, seen) => {
                verdict.in_doubt += 1;
                verdict.in_doubt_appeared += u64::from(seen);
            }
            (true, true) => {}
        }
    }
}

/// The write this is, if there is one.
fn known(aggregate: &Aggregate, sight: &Sight) -> Option<usize> {
    let place = aggregate.place(sight.sequence)?;
    let same = sight.event.is_none_or(|event| event == aggregate.written[place].event);
    same.then_some(place)
}

fn finding(aggregate: &Aggregate, kind: Kind, sequence: i64, at: usize, itself: Option<usize>) -> Finding {
    let written = aggregate.written.len();
    Finding { kind, aggregate: aggregate.name.to_string(), sequence, written, around: around(aggregate, at, itself) }
}

/// What was seen around a place: `… 3·t1 4·t1 [2·t2] 5·t2 …`.
fn around(aggregate: &Aggregate, at: usize, itself: Option<usize>) -> String {
    let (from, to) = (at.saturating_sub(AROUND), (at + AROUND + 1).min(aggregate.seen.len()));
    let mut text = String::from(if from > 0 { "…" } else { "" });
    for (place, sight) in aggregate.seen.iter().enumerate().take(to).skip(from) {
        let term = sight.term.map_or(String::new(), |term| format!("·t{term}"));
        if itself.is_none() && place == at {
            text += " [?]";
        }
        let _ = match itself == Some(place) {
            true => write!(text, " [{}{term}]", sight.sequence),
            false => write!(text, " {}{term}", sight.sequence),
        };
    }
    if itself.is_none() && at >= to {
        text += " [?]";
    }
    if to < aggregate.seen.len() {
        text += " …";
    }
    text.trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{Checker, Sighting};
    use super::*;
    use mongodb::bson::oid::ObjectId;

    const A: &str = "order-1";

    fn event(sequence: i64) -> ObjectId {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&sequence.to_be_bytes());
        ObjectId::from_bytes(bytes)
    }

    /// Five writes, of which the last was never acknowledged.
    fn four_and_one_in_doubt() -> Checker {
        let checker = Checker::new();
        for sequence in 1..=5 {
            assert_eq!(checker.intend(A, event(sequence)), sequence);
            if sequence < 5 {
                checker.acknowledge(A, sequence);
            }
        }
        checker
    }

    fn see(checker: &Checker, sequence: i64, term: u64) {
        let (event, term) = (Some(event(sequence)), Some(term));
        checker.observe(&Sighting { aggregate: A, sequence, event, term, slot: None });
    }

    fn judged(seen: &[i64]) -> Verdict {
        let checker = four_and_one_in_doubt();
        seen.iter().for_each(|sequence| see(&checker, *sequence, 1));
        checker.judge(Duplicates::Refused)
    }

    fn kinds(seen: &[i64]) -> Vec<(Kind, i64)> {
        judged(seen).findings.iter().map(|finding| (finding.kind, finding.sequence)).collect()
    }

    #[test]
    fn a_history_that_kept_every_promise_is_clean() {
        assert_eq!(kinds(&[1, 2, 3, 4]), []);
        assert_eq!(kinds(&[1, 2, 3, 4, 5]), [], "a write in doubt may have happened");
        let verdict = judged(&[1, 2, 3, 4, 5]);
        assert!(verdict.is_clean());
        assert_eq!((verdict.in_doubt, verdict.in_doubt_appeared), (1, 1));
    }

    #[test]
    fn each_kind_of_fault_is_found_where_it_is() {
        assert_eq!(kinds(&[1, 2, 4]), [(Kind::Lost, 3)]);
        assert_eq!(kinds(&[]), [(Kind::Lost, 1), (Kind::Lost, 2), (Kind::Lost, 3), (Kind::Lost, 4)]);
        assert_eq!(kinds(&[1, 2, 3, 4, 3]), [(Kind::Doubled, 3)]);
        assert_eq!(kinds(&[1, 3, 2, 4]), [(Kind::OutOfOrder, 2)]);
        assert_eq!(kinds(&[1, 2, 3, 4, 6]), [(Kind::Alien, 6)]);
        assert_eq!(kinds(&[0, 1, 2, 3, 4, -7]), [(Kind::Alien, 0), (Kind::Alien, -7)]);
    }

    #[test]
    fn a_write_in_doubt_that_appears_is_held_to_order_and_once() {
        assert_eq!(kinds(&[1, 2, 3, 5, 4]), [(Kind::OutOfOrder, 4)]);
        assert_eq!(kinds(&[1, 2, 3, 4, 5, 5]), [(Kind::Doubled, 5)]);
    }

    #[test]
    fn another_event_under_a_known_sequence_is_an_alien_and_the_known_one_is_missed() {
        let checker = four_and_one_in_doubt();
        for sequence in 1..=4 {
            let event = Some(event(if sequence == 2 { 99 } else { sequence }));
            checker.observe(&Sighting { aggregate: A, sequence, event, term: None, slot: None });
        }
        assert_eq!(checker.outstanding(), 1);
        let verdict = checker.judge(Duplicates::Refused);
        let found: Vec<_> = verdict.findings.iter().map(|finding| (finding.kind, finding.sequence)).collect();
        assert_eq!(found, [(Kind::Alien, 2), (Kind::Lost, 2)]);
    }

    #[test]
    fn an_aggregate_nobody_wrote_is_alien() {
        let checker = four_and_one_in_doubt();
        checker.observe(&Sighting { aggregate: "ghost", sequence: 1, event: None, term: None, slot: None });
        let verdict = checker.judge(Duplicates::Refused);
        assert!(verdict.findings.iter().any(|finding| finding.kind == Kind::Alien && finding.aggregate == "ghost"));
    }

    #[test]
    fn a_second_delivery_of_one_stored_message_is_not_a_second_message() {
        let checker = four_and_one_in_doubt();
        for (sequence, slot) in [(1, 10), (2, 20), (2, 20), (3, 30), (2, 20), (4, 40)] {
            let event = Some(event(sequence));
            checker.observe(&Sighting { aggregate: A, sequence, event, term: None, slot: Some(slot) });
        }
        let verdict = checker.judge(Duplicates::Refused);
        assert!(verdict.is_clean(), "{verdict}");
        assert_eq!(verdict.tally.redelivered, 2);
    }

    #[test]
    fn without_duplicate_detection_copies_are_counted_by_the_term_that_sent_them() {
        let checker = four_and_one_in_doubt();
        for (sequence, term) in [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (4, 3)] {
            see(&checker, sequence, term);
        }
        let verdict = checker.judge(Duplicates::Counted);
        assert!(verdict.is_clean(), "{verdict}");
        assert_eq!(verdict.duplicates.clone().into_iter().collect::<Vec<_>>(), [(Some(2), 2), (Some(3), 1)]);
        assert_eq!(verdict.most_duplicates_in_a_term(), 2);
        assert!(!checker.judge(Duplicates::Refused).is_clean());
    }

    #[test]
    fn order_is_judged_also_where_copies_are_allowed() {
        let checker = four_and_one_in_doubt();
        for (sequence, term) in [(1, 1), (3, 1), (2, 2), (3, 2), (4, 2)] {
            see(&checker, sequence, term);
        }
        let verdict = checker.judge(Duplicates::Counted);
        assert_eq!(verdict.count(Kind::OutOfOrder), 1, "{verdict}");
    }

    #[test]
    fn what_is_outstanding_is_known_at_every_moment() {
        let checker = four_and_one_in_doubt();
        assert_eq!(checker.outstanding(), 4);
        see(&checker, 5, 1);
        assert_eq!(checker.outstanding(), 4, "nobody is owed a write in doubt");
        checker.acknowledge(A, 5);
        assert_eq!(checker.outstanding(), 4, "it came before its acknowledgement");
        (1..=4).for_each(|sequence| see(&checker, sequence, 1));
        see(&checker, 4, 2);
        assert_eq!(checker.outstanding(), 0);
    }

    #[test]
    fn the_same_writes_are_judged_afresh_at_another_end() {
        let topic = four_and_one_in_doubt();
        (1..=4).for_each(|sequence| see(&topic, sequence, 7));
        let models = topic.afresh();
        assert_eq!((topic.outstanding(), models.outstanding()), (0, 4));
        assert_eq!((topic.first_of(7).is_some(), models.first_of(7), topic.first_of(8)), (true, None, None));
        [1, 2, 2, 4].into_iter().for_each(|sequence| see(&models, sequence, 7));
        let verdict = models.judge(Duplicates::Refused);
        assert_eq!(Kind::ALL.map(|kind| verdict.count(kind)), [1, 1, 0, 0], "{verdict}");
        assert!(topic.judge(Duplicates::Refused).is_clean());
    }

    #[test]
    fn a_verdict_shows_what_stood_around() {
        let shown = judged(&[1, 3, 2, 4]).to_string();
        assert!(shown.contains("out of order: `order-1` 2 of 5: 1·t1 3·t1 [2·t1] 4·t1"), "{shown}");
        let shown = judged(&[1, 2, 4]).to_string();
        assert!(shown.contains("lost: `order-1` 3 of 5: 1·t1 2·t1 [?] 4·t1"), "{shown}");
    }

    #[test]
    fn the_full_size_is_judged_in_no_time() {
        let checker = Checker::new();
        for number in 0..200_000_i64 {
            let (aggregate, sequence) = (format!("order-{}", number % 5_000), number / 5_000 + 1);
            checker.intend(&aggregate, event(number));
            checker.acknowledge(&aggregate, sequence);
            let event = Some(event(number));
            checker.observe(&Sighting { aggregate: &aggregate, sequence, event, term: Some(1), slot: Some(number) });
        }
        let verdict = checker.judge(Duplicates::Refused);
        assert!(verdict.is_clean() && verdict.tally.acknowledged == 200_000, "{verdict}");
    }
}
