//! Pure: what an event is to its aggregate's cursor. Next, seen before, after a gap, or against the order.
//!
//! Weighing both mistakes: an event wrongly called a duplicate is lost without a word; one wrongly called regressed is parked, where an
//! operator sees it. So "seen before" needs proof: the position, the very event the cursor stands at, or the source itself.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use mongodb::bson::Bson;

use super::delivered_event::PositionKey;
use super::identity::Identity;
use super::parked::ParkedEntry;

/// Per aggregate, what was applied last.
#[derive(Clone, Default, PartialEq)]
pub struct Cursor {
    /// `None` when all that was applied was read from the source to heal a gap.
    pub position: Option<PositionKey>,
    /// The highest contiguous number; `None` without a sequence.
    pub sequence: Option<i64>,
    /// The `_id` of the event with that sequence; without a sequence, of the last event.
    pub event_id: Option<Bson>,
    /// By name of the read model: where it waits.
    pub parked: BTreeMap<String, ParkedEntry>,
    /// The last event deleted the document; a [sweep](crate::capture) need not tell it again.
    pub gone: bool,
}

/// What orders the events of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderingMode {
    /// The position alone. Gaps cannot be seen.
    Position,
    /// The aggregate's own count.
    Sequence {
        start: PipelineStart,
        /// What an aggregate's first event is numbered. One that begins higher is looked up in the source.
        first: i64,
        /// Capture leaves types out, so numbers are missing and only order is checked.
        filtered: bool,
    },
}

/// Where the pipeline began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineStart {
    /// An aggregate's first event is the first the source holds.
    Beginning,
    /// It is any.
    Now,
}

/// What is asked of an event.
#[derive(Clone, Copy, Debug)]
pub struct EventFacts<'a> {
    pub position: Option<&'a PositionKey>,
    pub sequence: Option<i64>,
    pub key: &'a Bson,
    /// What the source said, when it was asked.
    pub evidence: Option<SourceEvidence>,
}

/// What the source said of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEvidence {
    /// It holds nothing of the aggregate below this event.
    First,
    /// With the cursor at `cursor`: it holds exactly this event at its sequence, and still the cursor's own at the cursor's.
    Same { cursor: i64 },
    /// It does not.
    Different { cursor: i64 },
}

/// What an event is.
#[derive(Clone, PartialEq)]
pub enum CursorDecision {
    Next,
    Duplicate,
    /// These are missing, both included.
    Gap {
        from: i64,
        to: i64,
    },
    /// The aggregate was created again, or the source restored: not what was applied under this number.
    Regressed,
    /// Only the source can say.
    AskSource(SourceQuestion),
}

/// What the source is asked.
#[derive(Clone, PartialEq)]
pub enum SourceQuestion {
    /// No cursor, and a number that is not the first: is there anything below?
    IsFirst { sequence: i64 },
    /// A lower number at a higher position: did a snapshot see it first, or is it another?
    SeenBefore { sequence: i64, cursor: i64, cursor_event: Option<Bson> },
}

/// The one decision. The source is asked at most once for each thing it can say.
pub fn decide(cursor: Option<&Cursor>, event: EventFacts<'_>, mode: OrderingMode) -> CursorDecision {
    match (mode, event.sequence) {
        (OrderingMode::Sequence { start, first, filtered }, Some(sequence)) => {
            match cursor.and_then(|it| Some((it, it.sequence?))) {
                Some((cursor, at)) => SequencedEvent { cursor, at, sequence, event, filtered }.decide(),
                None if start == PipelineStart::Now || filtered || sequence <= first => CursorDecision::Next,
                None if event.evidence == Some(SourceEvidence::First) => CursorDecision::Next,
                None => CursorDecision::AskSource(SourceQuestion::IsFirst { sequence }),
            }
        }
        // An event without the number its source is said to have is placed by its position.
        (OrderingMode::Sequence { .. }, None) | (OrderingMode::Position, _) => by_position(cursor, event),
    }
}

fn by_position(cursor: Option<&Cursor>, event: EventFacts<'_>) -> CursorDecision {
    match (cursor.and_then(|cursor| cursor.position.as_ref()), event.position) {
        (Some(at), Some(position)) if position <= at => CursorDecision::Duplicate,
        (Some(_), Some(_) | None) | (None, Some(_) | None) => CursorDecision::Next,
    }
}

/// An event with a number, and a cursor that has one.
struct SequencedEvent<'a> {
    cursor: &'a Cursor,
    at: i64,
    sequence: i64,
    event: EventFacts<'a>,
    filtered: bool,
}

impl SequencedEvent<'_> {
    fn decide(&self) -> CursorDecision {
        if self.lies_behind() {
            return CursorDecision::Duplicate;
        }
        if self.sequence > self.at {
            let next = self.sequence == self.at.saturating_add(1) || self.filtered;
            let gap = CursorDecision::Gap { from: self.at.saturating_add(1), to: self.sequence - 1 };
            return if next { CursorDecision::Next } else { gap };
        }
        if self.is_the_cursors_own() || !self.is_higher() {
            return CursorDecision::Duplicate;
        }
        if self.sequence == self.at {
            return CursorDecision::Regressed;
        }
        match self.event.evidence {
            Some(SourceEvidence::Same { cursor }) if cursor == self.at => CursorDecision::Duplicate,
            Some(SourceEvidence::Different { cursor }) if cursor == self.at => CursorDecision::Regressed,
            Some(SourceEvidence::First | SourceEvidence::Same { .. } | SourceEvidence::Different { .. }) | None => {
                let cursor_event = self.cursor.event_id.clone();
                CursorDecision::AskSource(SourceQuestion::SeenBefore {
                    sequence: self.sequence,
                    cursor: self.at,
                    cursor_event,
                })
            }
        }
    }

    /// Committed before what was applied, in the same history: a late message, whatever its number says. (A number may be higher
    /// when the aggregate was created again.)
    fn lies_behind(&self) -> bool {
        match (&self.cursor.position, self.event.position) {
            (Some(at), Some(position)) => position.epoch == at.epoch && position.key < at.key,
            (None, _) | (_, None) => false,
        }
    }

    fn is_the_cursors_own(&self) -> bool {
        let own = self.cursor.event_id.as_ref();
        self.sequence == self.at && own.is_some_and(|own| Identity::of(own) == Identity::of(self.event.key))
    }

    /// What has no position was read from the source to heal, and is wanted once.
    fn is_higher(&self) -> bool {
        match (&self.cursor.position, self.event.position) {
            (Some(at), Some(position)) => position > at,
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }
}

impl Cursor {
    /// Moves to an event that is next, or that is parked in its place.
    pub(super) fn advance(&mut self, event: EventFacts<'_>) {
        if let Some(position) = event.position
            && self.position.as_ref().is_none_or(|at| position > at)
        {
            self.position = Some(position.clone());
        }
        match event.sequence {
            Some(sequence) => {
                self.sequence = Some(sequence);
                self.event_id = Some(event.key.clone());
            }
            None if self.sequence.is_none() => self.event_id = Some(event.key.clone()),
            None => {}
        }
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Cursor");
        shown.field("position", &self.position).field("sequence", &self.sequence);
        shown.field("parked", &self.parked.keys()).finish_non_exhaustive()
    }
}

/// Without the ids in it.
impl fmt::Debug for CursorDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("Next"),
            Self::Duplicate => f.write_str("Duplicate"),
            Self::Gap { from, to } => write!(f, "Gap({from}..={to})"),
            Self::Regressed => f.write_str("Regressed"),
            Self::AskSource(SourceQuestion::IsFirst { sequence }) => write!(f, "Ask(is {sequence} the first)"),
            Self::AskSource(SourceQuestion::SeenBefore { sequence, cursor, .. }) => {
                write!(f, "Ask(was {sequence} seen before {cursor})")
            }
        }
    }
}
