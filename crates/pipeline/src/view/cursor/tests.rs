//! The decision as a table of named cases, and as a property of random histories.

use proptest::prelude::*;

use super::*;
use crate::event::Epoch;

fn place(epoch: u64, token: u32) -> PositionKey {
    PositionKey::new(Epoch::new(epoch), format!("82{token:08}"))
}

fn cursor(sequence: i64, position: PositionKey) -> Cursor {
    Cursor {
        position: Some(position),
        sequence: Some(sequence),
        event_id: Some(id(sequence).into()),
        ..Cursor::default()
    }
}

fn id(sequence: i64) -> String {
    format!("event-{sequence}")
}

const STRICT: OrderingMode = OrderingMode::Sequence { start: PipelineStart::Beginning, first: 1, filtered: false };
const FROM_NOW: OrderingMode = OrderingMode::Sequence { start: PipelineStart::Now, first: 1, filtered: false };
const FILTERED: OrderingMode = OrderingMode::Sequence { start: PipelineStart::Beginning, first: 1, filtered: true };

/// An event by number, position, id and evidence.
type TestEvent = (Option<i64>, Option<PositionKey>, &'static str, Option<SourceEvidence>);

fn seen(cursor: Option<&Cursor>, (sequence, position, key, evidence): &TestEvent, mode: OrderingMode) -> String {
    let key = Bson::from(*key);
    let facts = EventFacts { position: position.as_ref(), sequence: *sequence, key: &key, evidence: *evidence };
    format!("{:?}", decide(cursor, facts, mode))
}

#[test]
fn decisions_by_cursor_and_event() {
    let at5 = Some(cursor(5, place(1, 50)));
    let healed = Some(Cursor { position: None, ..cursor(5, place(1, 0)) });
    let begun4 = Some(Cursor { first_sequence: Some(4), ..cursor(5, place(1, 50)) });
    let same = Some(SourceEvidence::Same { cursor: 5 });
    let other = Some(SourceEvidence::Different { cursor: 5 });
    let event_only = Some(SourceEvidence::EventOnly { cursor: 5 });
    let cursor_only = Some(SourceEvidence::CursorOnly { cursor: 5 });
    let stale = Some(SourceEvidence::Same { cursor: 4 });
    let event = |sequence, epoch, token, key, evidence| (Some(sequence), Some(place(epoch, token)), key, evidence);
    let unplaced = |sequence, key| (Some(sequence), None, key, None);
    let table: Vec<(&str, &Option<Cursor>, TestEvent, OrderingMode, &str)> = vec![
        ("the next number", &at5, event(6, 1, 60, "event-6", None), STRICT, "Next"),
        ("the next number, in a new epoch", &at5, event(6, 2, 1, "event-6", None), STRICT, "Next"),
        ("the next number, at the same position: a snapshot's", &at5, event(6, 1, 50, "event-6", None), STRICT, "Next"),
        ("the next number, late, of an older epoch", &at5, event(6, 0, 90, "event-6", None), STRICT, "Next"),
        ("the next number, read from the source", &at5, unplaced(6, "event-6"), STRICT, "Next"),
        ("a number too high", &at5, event(9, 1, 60, "event-9", None), STRICT, "Gap(6..=8)"),
        ("a number too high, types left out", &at5, event(9, 1, 60, "event-9", None), FILTERED, "Next"),
        ("a higher number, behind", &at5, event(9, 1, 40, "event-9", None), STRICT, "Ask(was 9 seen before 5)"),
        ("…late, of a recreated aggregate", &at5, event(9, 1, 40, "event-9", cursor_only), STRICT, "Duplicate"),
        ("…committed out of order", &at5, event(9, 1, 40, "event-9", same), STRICT, "Gap(6..=8)"),
        ("…the cursor is of a forged message", &at5, event(6, 1, 40, "event-6", event_only), STRICT, "Next"),
        ("…the source tells nothing", &at5, event(9, 1, 40, "event-9", other), STRICT, "Regressed"),
        (
            "the same number, behind, another event",
            &at5,
            event(5, 1, 40, "x", None),
            STRICT,
            "Ask(was 5 seen before 5)",
        ),
        ("…which the source has", &at5, event(5, 1, 40, "x", event_only), STRICT, "Regressed"),
        ("…of a recreated aggregate", &at5, event(5, 1, 40, "x", cursor_only), STRICT, "Duplicate"),
        ("the same again", &at5, event(5, 1, 50, "event-5", None), STRICT, "Duplicate"),
        ("the same, that a snapshot saw first", &at5, event(5, 1, 55, "event-5", None), STRICT, "Duplicate"),
        ("the same, in a new epoch", &at5, event(5, 2, 1, "event-5", None), STRICT, "Duplicate"),
        ("the same number, another event", &at5, event(5, 1, 60, "other", None), STRICT, "Regressed"),
        ("the same number, another event of a snapshot", &at5, event(5, 1, 50, "other", None), STRICT, "Regressed"),
        ("lower, and behind: a deposed leader's", &at5, event(3, 1, 30, "event-3", None), STRICT, "Duplicate"),
        ("lower, of an older epoch", &at5, event(3, 0, 99, "event-3", None), STRICT, "Duplicate"),
        ("lower, at the snapshot's position", &at5, event(3, 1, 50, "event-3", None), STRICT, "Duplicate"),
        ("lower, at a higher position", &at5, event(3, 1, 60, "event-3", None), STRICT, "Ask(was 3 seen before 5)"),
        ("…and the source has both", &at5, event(3, 1, 60, "event-3", same), STRICT, "Duplicate"),
        ("…and the source has not", &at5, event(3, 1, 60, "event-3", other), STRICT, "Regressed"),
        ("…and the cursor moved since", &at5, event(3, 1, 60, "event-3", stale), STRICT, "Ask(was 3 seen before 5)"),
        ("lower, new epoch, a restored source", &at5, event(3, 2, 1, "new-3", other), STRICT, "Regressed"),
        ("lower, new epoch, a second snapshot", &at5, event(3, 2, 1, "event-3", same), STRICT, "Duplicate"),
        (
            "lower, at a higher position, types left out",
            &at5,
            event(3, 1, 60, "x", None),
            FILTERED,
            "Ask(was 3 seen before 5)",
        ),
        ("lower than the beginning", &begun4, event(3, 1, 60, "event-3", same), FROM_NOW, "Regressed"),
        ("lower, healed before", &begun4, event(4, 1, 60, "event-4", same), FROM_NOW, "Duplicate"),
        ("lower, read from the source", &at5, unplaced(3, "event-3"), STRICT, "Duplicate"),
        (
            "lower, and the cursor has no position",
            &healed,
            event(3, 1, 1, "event-3", None),
            STRICT,
            "Ask(was 3 seen before 5)",
        ),
        ("without its number, further on", &at5, (None, Some(place(1, 60)), "x", None), STRICT, "NoSequence"),
        ("without its number, behind", &at5, (None, Some(place(1, 50)), "x", None), STRICT, "NoSequence"),
        ("without its number, nothing before", &None, (None, Some(place(1, 50)), "x", None), FROM_NOW, "NoSequence"),
        ("the first", &None, event(1, 1, 10, "event-1", None), STRICT, "Next"),
        ("one below the first, of a count from zero", &None, event(0, 1, 10, "event-0", None), STRICT, "Next"),
        ("one below zero, where none begins", &None, event(-1, 1, 10, "event", None), STRICT, "Regressed"),
        ("one below zero, from now on", &None, event(-1, 1, 10, "event", None), FROM_NOW, "Regressed"),
        ("a first that is not numbered so", &None, event(4, 1, 10, "event-4", None), STRICT, "Ask(is 4 the first)"),
        (
            "…and the source has none below",
            &None,
            event(4, 1, 10, "event-4", Some(SourceEvidence::First)),
            STRICT,
            "Next",
        ),
        ("any, from now on", &None, event(4, 1, 10, "event-4", None), FROM_NOW, "Next"),
        ("any, types left out", &None, event(4, 1, 10, "event-4", None), FILTERED, "Next"),
        ("by position: further on", &at5, (None, Some(place(1, 51)), "x", None), OrderingMode::Position, "Next"),
        ("by position: the same", &at5, (None, Some(place(1, 50)), "x", None), OrderingMode::Position, "Duplicate"),
        ("by position: behind", &at5, (None, Some(place(1, 49)), "x", None), OrderingMode::Position, "Duplicate"),
        ("by position: a new epoch", &at5, (None, Some(place(2, 1)), "x", None), OrderingMode::Position, "Next"),
        ("by position: an old epoch", &at5, (None, Some(place(0, 99)), "x", None), OrderingMode::Position, "Duplicate"),
        ("by position: a number says nothing", &at5, event(9, 1, 51, "x", None), OrderingMode::Position, "Next"),
        ("by position: nothing before", &None, (None, Some(place(1, 1)), "x", None), OrderingMode::Position, "Next"),
    ];
    for (name, cursor, event, mode, expected) in table {
        assert_eq!(seen(cursor.as_ref(), &event, mode), expected, "{name}");
    }
}

#[test]
fn a_parked_regression_moves_the_cursor_to_the_new_sequence() {
    let mut at = cursor(5, place(1, 50));
    let key = Bson::from("new-1");
    let new = EventFacts { position: Some(&place(1, 60)), sequence: Some(1), key: &key, evidence: None };
    at.advance(new);
    assert_eq!(at.sequence, Some(1));
    assert_eq!(seen(Some(&at), &(Some(2), Some(place(1, 61)), "new-2", None), STRICT), "Next");
    assert_eq!(seen(Some(&at), &(Some(1), Some(place(1, 60)), "new-1", None), STRICT), "Duplicate");
    let late = |evidence| seen(Some(&at), &(Some(4), Some(place(1, 40)), "event-4", evidence), STRICT);
    assert_eq!(late(None), "Ask(was 4 seen before 1)");
    assert_eq!(late(Some(SourceEvidence::CursorOnly { cursor: 1 })), "Duplicate");
}

/// What the bus may do to the messages of one aggregate: give a run of them again, however late.
fn deliveries(events: usize) -> impl Strategy<Value = Vec<usize>> {
    let replay = (0..events, 0..events);
    proptest::collection::vec(replay, 0..6).prop_map(move |replays| {
        let mut order: Vec<usize> = (0..events).collect();
        for (at, from) in replays {
            let (from, to) = (from.min(at), at);
            let again: Vec<usize> = (from..=to).collect();
            let after = order.iter().position(|event| *event == to).expect("every event is there") + 1;
            order.splice(after..after, again);
        }
        order
    })
}

/// Takes each delivery to the cursor, asks "the source" where the decision wants it, and writes down what is applied.
fn apply(deliveries: &[usize], snapshot: usize, lost: &[usize], mode: OrderingMode) -> Vec<i64> {
    let mut cursor: Option<Cursor> = None;
    let mut applied = vec![];
    let keys: Vec<Bson> = (0..64).map(|at| Bson::from(id(at))).collect();
    let mut give = |sequence: i64, position: Option<&PositionKey>, cursor: &mut Option<Cursor>| -> CursorDecision {
        let mut facts =
            EventFacts { position, sequence: Some(sequence), key: &keys[sequence as usize], evidence: None };
        let mut decision = decide(cursor.as_ref(), facts, mode);
        if let CursorDecision::AskSource(question) = &decision {
            facts.evidence = Some(match question {
                SourceQuestion::IsFirst { .. } => SourceEvidence::First,
                SourceQuestion::SeenBefore { cursor, .. } => SourceEvidence::Same { cursor: *cursor },
            });
            decision = decide(cursor.as_ref(), facts, mode);
        }
        if decision == CursorDecision::Next {
            cursor.get_or_insert_default().advance(facts);
            applied.push(sequence);
        }
        decision
    };
    for at in deliveries.iter().filter(|at| !lost.contains(at)) {
        let sequence = *at as i64 + 1;
        let position = if *at < snapshot { place(1, 1) } else { place(1, 10 + *at as u32) };
        if let CursorDecision::Gap { from, to } = give(sequence, Some(&position), &mut cursor) {
            for missing in from..=to {
                give(missing, None, &mut cursor);
            }
            give(sequence, Some(&position), &mut cursor);
        }
    }
    applied
}

proptest! {
    #[test]
    fn every_event_is_applied_once_and_in_order(order in deliveries(12), snapshot in 0_usize..12) {
        prop_assert_eq!(apply(&order, snapshot, &[], STRICT), (1..=12).collect::<Vec<_>>());
    }

    #[test]
    fn events_lost_by_the_bus_are_healed(order in deliveries(12), lost in proptest::collection::vec(1_usize..11, 0..6)) {
        prop_assert_eq!(apply(&order, 0, &lost, STRICT), (1..=12).collect::<Vec<_>>());
    }

    #[test]
    fn positions_alone_keep_order_and_apply_once(order in deliveries(12)) {
        prop_assert_eq!(apply(&order, 0, &[], OrderingMode::Position), (1..=12).collect::<Vec<_>>());
    }
}
