//! Compares the observed events with the writes, one aggregate at a time.

use std::fmt::Write as _;

use super::DuplicatePolicy;
use super::history::{AggregateHistory, History, RecordedEvent};
use super::report::{CheckReport, HistoryViolation, ViolationKind};

/// How many neighbours a violation shows on either side.
const CONTEXT: usize = 4;

pub(super) fn check_history(history: &History, duplicates: DuplicatePolicy) -> CheckReport {
    let mut report = CheckReport { counts: history.counts(), ..CheckReport::default() };
    for aggregate in history.aggregates() {
        check_aggregate(aggregate, duplicates, &mut report);
    }
    report
}

fn check_aggregate(aggregate: &AggregateHistory, duplicates: DuplicatePolicy, report: &mut CheckReport) {
    let mut observed = vec![false; aggregate.written.len()];
    let mut highest = 0;
    for (position, event) in aggregate.observed.iter().enumerate() {
        let kind = match find_write(aggregate, event) {
            None => Some(ViolationKind::Unexpected),
            Some(index) if observed[index] => match duplicates {
                DuplicatePolicy::Forbidden => Some(ViolationKind::Duplicated),
                DuplicatePolicy::Counted => {
                    *report.duplicates.entry(event.term).or_default() += 1;
                    None
                }
            },
            Some(index) => {
                observed[index] = true;
                let is_late = event.sequence < highest;
                highest = highest.max(event.sequence);
                is_late.then_some(ViolationKind::OutOfOrder)
            }
        };
        let altered = is_altered(aggregate, event).then_some(ViolationKind::Altered);
        for kind in kind.into_iter().chain(altered) {
            report.add(violation(aggregate, kind, event.sequence, position, Some(position)));
        }
    }
    for (index, write) in aggregate.written.iter().enumerate() {
        let sequence = index as i64 + 1;
        match (write.acknowledged, observed[index]) {
            (true, false) => {
                let next = aggregate.observed.iter().position(|event| event.sequence > sequence);
                let position = next.unwrap_or(aggregate.observed.len());
                report.add(violation(aggregate, ViolationKind::Lost, sequence, position, None));
            }
            (false, observed) => {
                report.in_doubt += 1;
                report.in_doubt_appeared += u64::from(observed);
            }
            (true, true) => {}
        }
    }
}

/// The index of the write that this event comes from, if there is one.
fn find_write(aggregate: &AggregateHistory, event: &RecordedEvent) -> Option<usize> {
    let index = aggregate.index_of(event.sequence)?;
    let is_same = event.event.is_none_or(|id| id == aggregate.written[index].event);
    is_same.then_some(index)
}

/// Whether this event has another body than the write it comes from.
fn is_altered(aggregate: &AggregateHistory, event: &RecordedEvent) -> bool {
    let written = find_write(aggregate, event).and_then(|index| aggregate.written[index].body);
    matches!((written, event.body), (Some(written), Some(observed)) if written != observed)
}

fn violation(
    aggregate: &AggregateHistory,
    kind: ViolationKind,
    sequence: i64,
    position: usize,
    itself: Option<usize>,
) -> HistoryViolation {
    let written = aggregate.written.len();
    let context = show_context(aggregate, position, itself);
    HistoryViolation { kind, aggregate: aggregate.name.to_string(), sequence, written, context }
}

/// The observed events around a position: `… 3·t1 4·t1 [2·t2] 5·t2 …`.
fn show_context(aggregate: &AggregateHistory, position: usize, itself: Option<usize>) -> String {
    let (from, to) = (position.saturating_sub(CONTEXT), (position + CONTEXT + 1).min(aggregate.observed.len()));
    let mut text = String::from(if from > 0 { "…" } else { "" });
    for (index, event) in aggregate.observed.iter().enumerate().take(to).skip(from) {
        let term = event.term.map_or(String::new(), |term| format!("·t{term}"));
        if itself.is_none() && index == position {
            text += " [?]";
        }
        let _ = match itself == Some(index) {
            true => write!(text, " [{}{term}]", event.sequence),
            false => write!(text, " {}{term}", event.sequence),
        };
    }
    if itself.is_none() && position >= to {
        text += " [?]";
    }
    if to < aggregate.observed.len() {
        text += " …";
    }
    text.trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{Checker, ObservedEvent, body_digest};
    use super::*;
    use mongodb::bson::oid::ObjectId;

    const A: &str = "order-1";

    fn event(sequence: i64) -> ObjectId {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&sequence.to_be_bytes());
        ObjectId::from_bytes(bytes)
    }

    /// Five writes; the last has no acknowledgement.
    fn four_and_one_in_doubt() -> Checker {
        let checker = Checker::new();
        for sequence in 1..=5 {
            assert_eq!(checker.record_intent(A, event(sequence)), sequence);
            if sequence < 5 {
                checker.record_acknowledged(A, sequence);
            }
        }
        checker
    }

    fn observe(checker: &Checker, sequence: i64, term: u64) {
        let (event, term) = (Some(event(sequence)), Some(term));
        checker.record_observed(&ObservedEvent { event, term, ..ObservedEvent::new(A, sequence) });
    }

    fn check_observed(seen: &[i64]) -> CheckReport {
        let checker = four_and_one_in_doubt();
        seen.iter().for_each(|sequence| observe(&checker, *sequence, 1));
        checker.check(DuplicatePolicy::Forbidden)
    }

    fn kinds(seen: &[i64]) -> Vec<(ViolationKind, i64)> {
        check_observed(seen).violations.iter().map(|violation| (violation.kind, violation.sequence)).collect()
    }

    #[test]
    fn a_correct_history_is_clean() {
        assert_eq!(kinds(&[1, 2, 3, 4]), []);
        assert_eq!(kinds(&[1, 2, 3, 4, 5]), [], "a write in doubt may have happened");
        let report = check_observed(&[1, 2, 3, 4, 5]);
        assert!(report.is_clean());
        assert_eq!((report.in_doubt, report.in_doubt_appeared), (1, 1));
    }

    #[test]
    fn each_kind_of_violation_is_found_at_its_sequence() {
        assert_eq!(kinds(&[1, 2, 4]), [(ViolationKind::Lost, 3)]);
        assert_eq!(
            kinds(&[]),
            [(ViolationKind::Lost, 1), (ViolationKind::Lost, 2), (ViolationKind::Lost, 3), (ViolationKind::Lost, 4)]
        );
        assert_eq!(kinds(&[1, 2, 3, 4, 3]), [(ViolationKind::Duplicated, 3)]);
        assert_eq!(kinds(&[1, 3, 2, 4]), [(ViolationKind::OutOfOrder, 2)]);
        assert_eq!(kinds(&[1, 2, 3, 4, 6]), [(ViolationKind::Unexpected, 6)]);
        assert_eq!(kinds(&[0, 1, 2, 3, 4, -7]), [(ViolationKind::Unexpected, 0), (ViolationKind::Unexpected, -7)]);
    }

    #[test]
    fn a_write_in_doubt_must_appear_once_and_in_order() {
        assert_eq!(kinds(&[1, 2, 3, 5, 4]), [(ViolationKind::OutOfOrder, 4)]);
        assert_eq!(kinds(&[1, 2, 3, 4, 5, 5]), [(ViolationKind::Duplicated, 5)]);
    }

    #[test]
    fn a_wrong_event_id_is_unexpected_and_the_right_one_lost() {
        let checker = four_and_one_in_doubt();
        for sequence in 1..=4 {
            let event = Some(event(if sequence == 2 { 99 } else { sequence }));
            checker.record_observed(&ObservedEvent { event, ..ObservedEvent::new(A, sequence) });
        }
        assert_eq!(checker.outstanding(), 1);
        let report = checker.check(DuplicatePolicy::Forbidden);
        let found: Vec<_> = report.violations.iter().map(|violation| (violation.kind, violation.sequence)).collect();
        assert_eq!(found, [(ViolationKind::Unexpected, 2), (ViolationKind::Lost, 2)]);
    }

    #[test]
    fn another_body_than_was_written_is_altered() {
        let checker = four_and_one_in_doubt();
        for sequence in 1..=4 {
            checker.record_body(A, sequence, body_digest(&[sequence as u8]));
            // The body of the second is not visible, that of the third is another one.
            let body = (sequence != 2).then(|| body_digest(&[if sequence == 3 { 99 } else { sequence as u8 }]));
            checker.record_observed(&ObservedEvent { body, ..ObservedEvent::new(A, sequence) });
        }
        let report = checker.check(DuplicatePolicy::Forbidden);
        let found: Vec<_> = report.violations.iter().map(|violation| (violation.kind, violation.sequence)).collect();
        assert_eq!(found, [(ViolationKind::Altered, 3)]);
    }

    #[test]
    fn an_aggregate_without_writes_is_unexpected() {
        let checker = four_and_one_in_doubt();
        checker.record_observed(&ObservedEvent::new("ghost", 1));
        let report = checker.check(DuplicatePolicy::Forbidden);
        assert!(
            report
                .violations
                .iter()
                .any(|violation| violation.kind == ViolationKind::Unexpected && violation.aggregate == "ghost")
        );
    }

    #[test]
    fn a_redelivered_message_is_not_a_duplicate() {
        let checker = four_and_one_in_doubt();
        for (sequence, message_number) in [(1, 10), (2, 20), (2, 20), (3, 30), (2, 20), (4, 40)] {
            let event = Some(event(sequence));
            let message_number = Some(message_number);
            checker.record_observed(&ObservedEvent { event, message_number, ..ObservedEvent::new(A, sequence) });
        }
        let report = checker.check(DuplicatePolicy::Forbidden);
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.counts.redelivered, 2);
    }

    #[test]
    fn counted_duplicates_are_grouped_by_term() {
        let checker = four_and_one_in_doubt();
        for (sequence, term) in [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (4, 3)] {
            observe(&checker, sequence, term);
        }
        let report = checker.check(DuplicatePolicy::Counted);
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.duplicates.clone().into_iter().collect::<Vec<_>>(), [(Some(2), 2), (Some(3), 1)]);
        assert_eq!(report.most_duplicates_in_a_term(), 2);
        assert!(!checker.check(DuplicatePolicy::Forbidden).is_clean());
    }

    #[test]
    fn order_is_checked_also_when_duplicates_are_counted() {
        let checker = four_and_one_in_doubt();
        for (sequence, term) in [(1, 1), (3, 1), (2, 2), (3, 2), (4, 2)] {
            observe(&checker, sequence, term);
        }
        let report = checker.check(DuplicatePolicy::Counted);
        assert_eq!(report.count(ViolationKind::OutOfOrder), 1, "{report}");
    }

    #[test]
    fn outstanding_writes_are_counted_at_every_moment() {
        let checker = four_and_one_in_doubt();
        assert_eq!(checker.outstanding(), 4);
        observe(&checker, 5, 1);
        assert_eq!(checker.outstanding(), 4, "a write in doubt is not outstanding");
        checker.record_acknowledged(A, 5);
        assert_eq!(checker.outstanding(), 4, "it was observed before its acknowledgement");
        (1..=4).for_each(|sequence| observe(&checker, sequence, 1));
        observe(&checker, 4, 2);
        assert_eq!(checker.outstanding(), 0);
    }

    #[test]
    fn the_same_writes_are_checked_again_at_another_end() {
        let topic = four_and_one_in_doubt();
        (1..=4).for_each(|sequence| observe(&topic, sequence, 7));
        let models = topic.with_same_writes();
        assert_eq!((topic.outstanding(), models.outstanding()), (0, 4));
        assert_eq!(
            (topic.first_observed_in(7).is_some(), models.first_observed_in(7), topic.first_observed_in(8)),
            (true, None, None)
        );
        [1, 2, 2, 4].into_iter().for_each(|sequence| observe(&models, sequence, 7));
        let report = models.check(DuplicatePolicy::Forbidden);
        assert_eq!(ViolationKind::ALL.map(|kind| report.count(kind)), [1, 1, 0, 0, 0], "{report}");
        assert!(topic.check(DuplicatePolicy::Forbidden).is_clean());
    }

    #[test]
    fn a_report_shows_the_neighbours_of_a_violation() {
        let shown = check_observed(&[1, 3, 2, 4]).to_string();
        assert!(shown.contains("out of order: `order-1` 2 of 5: 1·t1 3·t1 [2·t1] 4·t1"), "{shown}");
        let shown = check_observed(&[1, 2, 4]).to_string();
        assert!(shown.contains("lost: `order-1` 3 of 5: 1·t1 2·t1 [?] 4·t1"), "{shown}");
    }

    #[test]
    fn two_hundred_thousand_events_are_checked_quickly() {
        let checker = Checker::new();
        for number in 0..200_000_i64 {
            let (aggregate, sequence) = (format!("order-{}", number % 5_000), number / 5_000 + 1);
            checker.record_intent(&aggregate, event(number));
            checker.record_acknowledged(&aggregate, sequence);
            let event = Some(event(number));
            let (term, message_number) = (Some(1), Some(number));
            let place = ObservedEvent::new(&aggregate, sequence);
            checker.record_observed(&ObservedEvent { event, term, message_number, ..place });
        }
        let report = checker.check(DuplicatePolicy::Forbidden);
        assert!(report.is_clean() && report.counts.acknowledged == 200_000, "{report}");
    }
}
