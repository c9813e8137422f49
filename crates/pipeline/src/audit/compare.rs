//! Pure: what the highest sequence of an aggregate in the source says about its cursor.

use crate::source_walk::SourceHead;
use crate::view::{Cursor, ParkReason, PipelineStart};

/// An aggregate of the source, compared with its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateState {
    /// The cursor has reached the source.
    Current,
    /// The events above `cursor` are not applied; `None`: no event is.
    Behind {
        cursor: Option<i64>,
    },
    Skipped(SkipReason),
}

/// Why an aggregate is not audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Its events queue behind a parked one; they are not lost.
    Parked,
    /// It was recreated, or the source was restored: its sequences say nothing.
    Regressed,
    /// It has no cursor, and the pipeline started at `now` or at a time: its events may be older than the pipeline.
    BeforeStart,
    /// Its cursor has no sequence: it was written while the pipeline had none.
    NoSequence,
}

pub fn compare(head: &SourceHead, cursor: Option<&Cursor>, start: PipelineStart) -> AggregateState {
    let Some(cursor) = cursor else {
        return match start {
            PipelineStart::Beginning => AggregateState::Behind { cursor: None },
            PipelineStart::Now => AggregateState::Skipped(SkipReason::BeforeStart),
        };
    };
    if cursor.parked.values().any(|entry| entry.reason == ParkReason::VersionRegressed) {
        return AggregateState::Skipped(SkipReason::Regressed);
    }
    if !cursor.parked.is_empty() {
        return AggregateState::Skipped(SkipReason::Parked);
    }
    match cursor.sequence {
        None => AggregateState::Skipped(SkipReason::NoSequence),
        Some(sequence) if sequence < head.sequence => AggregateState::Behind { cursor: Some(sequence) },
        Some(_) => AggregateState::Current,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime};

    use super::*;
    use crate::event::AggregateId;
    use crate::view::ParkedEntry;

    fn head(sequence: i64) -> SourceHead {
        SourceHead { aggregate: AggregateId::new("order-1".into()).unwrap(), sequence }
    }

    fn at(sequence: i64) -> Cursor {
        Cursor { sequence: Some(sequence), ..Cursor::default() }
    }

    fn parked(reason: ParkReason) -> Cursor {
        let entry = ParkedEntry {
            reason,
            detail: String::new(),
            event_id: Bson::Null,
            sequence: None,
            since: DateTime::from_millis(0),
            head: 0,
            next: 1,
            dead_letter_ids: vec![],
        };
        Cursor { parked: [("orders".to_owned(), entry)].into(), ..at(1) }
    }

    #[test]
    fn a_cursor_below_the_source_is_behind() {
        use PipelineStart::{Beginning, Now};
        assert_eq!(compare(&head(5), Some(&at(5)), Beginning), AggregateState::Current);
        assert_eq!(compare(&head(5), Some(&at(9)), Beginning), AggregateState::Current, "the source is archived");
        for start in [Beginning, Now] {
            assert_eq!(compare(&head(5), Some(&at(4)), start), AggregateState::Behind { cursor: Some(4) });
        }
    }

    #[test]
    fn without_a_cursor_only_a_start_at_the_beginning_is_behind() {
        assert_eq!(compare(&head(5), None, PipelineStart::Beginning), AggregateState::Behind { cursor: None });
        let skipped = AggregateState::Skipped(SkipReason::BeforeStart);
        assert_eq!(compare(&head(5), None, PipelineStart::Now), skipped);
    }

    #[test]
    fn parked_and_regressed_aggregates_are_skipped() {
        let state = |cursor: Cursor| compare(&head(5), Some(&cursor), PipelineStart::Beginning);
        assert_eq!(state(parked(ParkReason::Poison)), AggregateState::Skipped(SkipReason::Parked));
        assert_eq!(state(parked(ParkReason::VersionRegressed)), AggregateState::Skipped(SkipReason::Regressed));
        assert_eq!(state(Cursor::default()), AggregateState::Skipped(SkipReason::NoSequence));
    }
}
