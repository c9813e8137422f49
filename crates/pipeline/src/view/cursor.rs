//! Pure: decides what an event is to the cursor of its aggregate: next, duplicate, after a gap, or regressed.
//!
//! An event wrongly decided as duplicate is lost silently; one wrongly decided as regressed is parked, where an operator sees it. So
//! "duplicate" needs proof: the position, the identity of the cursor's own event, or the source.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use mongodb::bson::Bson;

use super::delivered_event::PositionKey;
use super::identity::Identity;
use super::parked::ParkedEntry;

/// The last event applied to an aggregate.
#[derive(Clone, Default, PartialEq)]
pub struct Cursor {
    /// `None` if all applied events were read from the source to heal a gap.
    pub position: Option<PositionKey>,
    /// The highest contiguous sequence; `None` without a sequence.
    pub sequence: Option<i64>,
    /// Where the aggregate begins in this pipeline, if not with its first event: lower sequences were never applied.
    pub first_sequence: Option<i64>,
    /// The `_id` of the event with that sequence; without a sequence, of the last event.
    pub event_id: Option<Bson>,
    /// Where the aggregate is parked, by read model.
    pub parked: BTreeMap<String, ParkedEntry>,
    /// The last event deleted the document; a [sweep](crate::capture) need not publish that again.
    pub document_deleted: bool,
    /// The generation of the pod that wrote it; 0 if it is not stored yet.
    pub generation: u64,
    /// The position holds for the read models of this generation and earlier; 0 if it is not stored yet.
    pub holds: u64,
    /// How far a build has come, if it needs several transactions.
    pub build: Option<BuildProgress>,
}

/// The part of an aggregate that a build has applied to the read models of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildProgress {
    pub generation: u64,
    pub sequence: i64,
}

/// What orders the events of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderingMode {
    /// Only the position. Gaps go unnoticed.
    Position,
    /// The sequence of the aggregate.
    Sequence {
        start: PipelineStart,
        /// Sequence of the first event of an aggregate. If it starts higher, the source is asked.
        first: i64,
        /// Capture filters event types, so sequences have gaps and only the order is checked.
        filtered: bool,
    },
}

/// Where the pipeline started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineStart {
    /// The first event of an aggregate is the first one in the source.
    Beginning,
    /// It may be any event.
    Now,
}

/// The part of an event that the decision needs.
#[derive(Clone, Copy, Debug)]
pub struct EventFacts<'a> {
    pub position: Option<&'a PositionKey>,
    pub sequence: Option<i64>,
    pub key: &'a Bson,
    /// The answer of the source, if it was asked.
    pub evidence: Option<SourceEvidence>,
}

/// What the source knows about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEvidence {
    /// The source has no earlier event of the aggregate.
    First,
    /// With the cursor at sequence `cursor`: the source has exactly this event at its sequence, and the cursor's event at the cursor's.
    Same { cursor: i64 },
    /// It has this event, and another one or none in place of the cursor's.
    EventOnly { cursor: i64 },
    /// It has the cursor's event, and another one or none in place of this one.
    CursorOnly { cursor: i64 },
    /// It has neither.
    Different { cursor: i64 },
}

/// What an event is to its cursor.
#[derive(Clone, PartialEq)]
pub enum CursorDecision {
    Next,
    Duplicate,
    /// These sequences are missing, both included.
    Gap {
        from: i64,
        to: i64,
    },
    /// Another event than the one applied with this sequence: the aggregate was recreated, or the source restored.
    Regressed,
    /// The source has a sequence, and the event lacks it: nothing proves whether it was applied.
    NoSequence,
    /// Only the source can tell.
    AskSource(SourceQuestion),
}

/// A question to the source.
#[derive(Clone, PartialEq)]
pub enum SourceQuestion {
    /// No cursor, and a sequence above the first: does the source have earlier events?
    IsFirst { sequence: i64 },
    /// A lower sequence at a higher position: did a snapshot read it before, or is it another event? Or a higher one at a lower position.
    SeenBefore { sequence: i64, cursor: i64, cursor_event: Option<Bson> },
}

/// Decides. Asks the source each question at most once.
pub fn decide(cursor: Option<&Cursor>, event: EventFacts<'_>, mode: OrderingMode) -> CursorDecision {
    match (mode, event.sequence) {
        (OrderingMode::Sequence { start, first, filtered }, Some(sequence)) => {
            match cursor.and_then(|it| Some((it, it.sequence?))) {
                Some((cursor, at)) => SequencedEvent { cursor, at, sequence, event, filtered }.decide(),
                // No source counts so, and the real first event would seem to follow a gap.
                None if sequence < first.min(0) => CursorDecision::Regressed,
                None if start == PipelineStart::Now || filtered || sequence <= first => CursorDecision::Next,
                None if event.evidence == Some(SourceEvidence::First) => CursorDecision::Next,
                None => CursorDecision::AskSource(SourceQuestion::IsFirst { sequence }),
            }
        }
        // The position proves nothing here: all events of a snapshot have the same one.
        (OrderingMode::Sequence { .. }, None) => CursorDecision::NoSequence,
        (OrderingMode::Position, _) => by_position(cursor, event),
    }
}

fn by_position(cursor: Option<&Cursor>, event: EventFacts<'_>) -> CursorDecision {
    match (cursor.and_then(|cursor| cursor.position.as_ref()), event.position) {
        (Some(at), Some(position)) if position <= at => CursorDecision::Duplicate,
        (Some(_), Some(_) | None) | (None, Some(_) | None) => CursorDecision::Next,
    }
}

/// An event with a sequence, and a cursor that has one.
struct SequencedEvent<'a> {
    cursor: &'a Cursor,
    at: i64,
    sequence: i64,
    event: EventFacts<'a>,
    filtered: bool,
}

impl SequencedEvent<'_> {
    fn decide(&self) -> CursorDecision {
        if self.lies_behind()
            && let Some(decision) = self.decide_behind()
        {
            return decision;
        }
        if self.sequence > self.at {
            // With filtered types every higher sequence is next, as the missing ones may be filtered.
            let next = self.sequence == self.at.saturating_add(1) || self.filtered;
            let gap = CursorDecision::Gap { from: self.at.saturating_add(1), to: self.sequence - 1 };
            return if next { CursorDecision::Next } else { gap };
        }
        // A snapshot gives all its events one position, so that it does not tell two events with one sequence apart.
        let is_second =
            self.sequence == self.at && self.event.position.is_some_and(|it| Some(it) == self.cursor.position.as_ref());
        if self.is_the_cursors_own() || (!self.is_higher() && !is_second) {
            return CursorDecision::Duplicate;
        }
        // Same sequence, another event: no question to the source can make it a duplicate. Nor can it for one from before the beginning, which
        // was committed after it.
        if self.sequence == self.at || self.cursor.first_sequence.is_some_and(|first| self.sequence < first) {
            return CursorDecision::Regressed;
        }
        match self.current_evidence() {
            Some(SourceEvidence::Same { .. }) => CursorDecision::Duplicate,
            Some(
                SourceEvidence::First
                | SourceEvidence::EventOnly { .. }
                | SourceEvidence::CursorOnly { .. }
                | SourceEvidence::Different { .. },
            ) => CursorDecision::Regressed,
            None => self.ask(),
        }
    }

    /// An event behind the cursor's position. `None`: the position proves nothing, and the sequence decides.
    ///
    /// With a lower sequence it is a late message. With a higher one it is a late message of an aggregate that was recreated since; or the
    /// source commits sequences out of order; or the position of the cursor is wrong, because it is from a forged message. Only the source can
    /// tell: what it holds above the cursor's sequence was not applied.
    fn decide_behind(&self) -> Option<CursorDecision> {
        if self.sequence < self.at || self.is_the_cursors_own() {
            return Some(CursorDecision::Duplicate);
        }
        match self.current_evidence() {
            Some(SourceEvidence::Same { .. } | SourceEvidence::EventOnly { .. }) if self.sequence > self.at => None,
            // The read was recent enough to see the cursor's event, which was committed later.
            Some(SourceEvidence::CursorOnly { .. }) => Some(CursorDecision::Duplicate),
            Some(_) => Some(CursorDecision::Regressed),
            None => Some(self.ask()),
        }
    }

    /// Evidence counts only if the cursor has not moved since the question.
    fn current_evidence(&self) -> Option<SourceEvidence> {
        self.event.evidence.filter(|evidence| match evidence {
            SourceEvidence::First => false,
            SourceEvidence::Same { cursor }
            | SourceEvidence::EventOnly { cursor }
            | SourceEvidence::CursorOnly { cursor }
            | SourceEvidence::Different { cursor } => *cursor == self.at,
        })
    }

    fn ask(&self) -> CursorDecision {
        let cursor_event = self.cursor.event_id.clone();
        CursorDecision::AskSource(SourceQuestion::SeenBefore { sequence: self.sequence, cursor: self.at, cursor_event })
    }

    /// Committed before the cursor's event, in the same epoch.
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

    /// An event without position was read from the source to heal a gap, and is needed only once.
    fn is_higher(&self) -> bool {
        match (&self.cursor.position, self.event.position) {
            (Some(at), Some(position)) => position > at,
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }
}

impl Cursor {
    /// The entry of a read model, whichever version of it the aggregate is parked in: later ones park as `NAME@GENERATION`.
    pub fn parked_in(&self, model: &str) -> Option<&ParkedEntry> {
        self.parked.iter().rev().find(|(name, _)| is_version_of(name, model)).map(|(_, entry)| entry)
    }

    /// Moves to an event that is applied or parked.
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

/// Whether aggregates are parked under this name in a version of the read model.
pub fn is_version_of(parked_name: &str, model: &str) -> bool {
    let version = parked_name.strip_prefix(model).and_then(|rest| rest.strip_prefix('@'));
    parked_name == model || version.is_some_and(|generation| generation.parse::<u64>().is_ok())
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Cursor");
        shown.field("position", &self.position).field("sequence", &self.sequence);
        shown.field("parked", &self.parked.keys()).finish_non_exhaustive()
    }
}

/// Without the ids, which are contents of documents.
impl fmt::Debug for CursorDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("Next"),
            Self::Duplicate => f.write_str("Duplicate"),
            Self::Gap { from, to } => write!(f, "Gap({from}..={to})"),
            Self::Regressed => f.write_str("Regressed"),
            Self::NoSequence => f.write_str("NoSequence"),
            Self::AskSource(SourceQuestion::IsFirst { sequence }) => write!(f, "Ask(is {sequence} the first)"),
            Self::AskSource(SourceQuestion::SeenBefore { sequence, cursor, .. }) => {
                write!(f, "Ask(was {sequence} seen before {cursor})")
            }
        }
    }
}
