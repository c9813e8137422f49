//! Pure: what one transaction writes, from the cursors it read and the events it was given.
//!
//! Goes through the events in order, each against its aggregate's cursor as the events before it left it. What cannot be decided here
//! (a gap, a question to the source) holds back the rest of that aggregate, and nobody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use mongodb::bson::{DateTime, RawDocumentBuf};

use super::cursor::{Cursor, Decision, Evidence, Facts, Mode, Question, decide};
use super::delivered::{Body, Delivered};
use super::identity::Identity;
use super::parked::{Parked, Reason, event_document, queue_id};
use super::projection::{self, Event, Projection};
use super::statement::Statement;
use super::stored::{Had, Naming, cursor_document, cursor_statement};
use crate::event::Operation;
use crate::failpoints::Failpoint;
use crate::trace::wall_clock;

/// An event on its way, with what was found out about it.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) event: Arc<Delivered>,
    pub(super) identity: Identity,
    pub(super) evidence: Option<Evidence>,
    /// The events before it are not to be had: it is parked where it stands.
    pub(super) unhealable: bool,
    /// How many statements it will probably be; at least one, for the room it takes.
    pub(super) weight: usize,
    pub(super) handed_in: SystemTime,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// In all read models that are not parked.
    Applied,
    /// Nothing was written: it had been applied before.
    Duplicate,
    /// It waits in one read model or more.
    Parked,
    /// It waits, and its message is to be dead-lettered.
    DeadLetter,
}

/// What a transaction would say of an event.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Done(Outcome),
    Gap {
        from: i64,
        to: i64,
    },
    Ask(Question),
    /// An event before it, of the same aggregate, is held back.
    Behind,
}

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::IsFirst { .. } => "IsFirst",
            Self::SeenBefore { .. } => "SeenBefore",
        })
    }
}

/// What holds for every transaction of an applier.
pub(super) struct Rules {
    pub(super) naming: Naming,
    pub(super) mode: Mode,
    pub(super) models: Vec<Arc<dyn Projection>>,
    pub(super) dead_letter_poison: bool,
    pub(super) park_at_delivery: u32,
}

impl Rules {
    /// By its own word the first of its aggregate, and not known to come again. Without numbers nobody can say.
    pub(super) fn seems_new(&self, candidate: &Candidate) -> bool {
        let Mode::Sequence { first, .. } = self.mode else { return false };
        let event = &candidate.event;
        !self.naming.by_collection
            && event.sequence.is_some_and(|sequence| sequence <= first)
            && event.delivery_count == 0
    }
}

/// Statements known to be refused, by event and model, with the reason.
pub(super) type Refusals = HashMap<(usize, usize), String>;

/// A statement, with the event and the model it comes from.
pub(super) struct Planned {
    pub(super) at: usize,
    pub(super) model: usize,
    pub(super) statement: Statement,
}

#[derive(Default)]
pub(super) struct Plan {
    /// One for each event, by its place among all.
    pub(super) answers: Vec<(usize, Answer)>,
    pub(super) statements: Vec<Planned>,
    /// Cursors of aggregates that had none.
    pub(super) first_cursors: Vec<RawDocumentBuf>,
    /// Entries of an `update` command.
    pub(super) cursors: Vec<RawDocumentBuf>,
    pub(super) parked: Vec<RawDocumentBuf>,
    pub(super) tally: Tally,
}

/// To be counted once it is committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) applied: u64,
    pub(super) duplicates: u64,
    pub(super) regressed: u64,
    pub(super) parked: u64,
    /// Applied in each read model, by its number: an event that is parked in one may be applied in the others.
    pub(super) models: Vec<u64>,
}

#[derive(Default)]
struct Standing {
    cursor: Option<Cursor>,
    /// Of the cursor as it was read, or of the mark that stood in for it; `None` when there was neither.
    had: Option<Had>,
    changed: bool,
    held: bool,
}

pub(super) struct Planner<'a> {
    rules: &'a Rules,
    refusals: &'a Refusals,
    now: DateTime,
    standing: HashMap<Identity, Standing>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        rules: &'a Rules,
        refusals: &'a Refusals,
        cursors: HashMap<Identity, Cursor>,
        now: DateTime,
    ) -> Self {
        let stands =
            |cursor| Standing { had: Some(Had::of(&cursor)), cursor: Some(cursor), changed: false, held: false };
        let standing = cursors.into_iter().map(|(identity, cursor)| (identity, stands(cursor))).collect();
        let tally = Tally { models: vec![0; rules.models.len()], ..Tally::default() };
        Self { rules, refusals, now, standing, plan: Plan { tally, ..Plan::default() } }
    }

    pub(super) fn plan(mut self, candidates: &[Candidate], part: &[usize]) -> Plan {
        let mut all = std::mem::take(&mut self.standing);
        self.plan.answers.reserve(part.len());
        for at in part {
            let candidate = &candidates[*at];
            let standing = all.entry(candidate.identity.clone()).or_default();
            let answer = self.place(*at, candidate, standing);
            self.plan.answers.push((*at, answer));
        }
        self.write_cursors(candidates, part, &mut all);
        self.plan
    }

    fn place(&mut self, at: usize, candidate: &Candidate, standing: &mut Standing) -> Answer {
        if standing.held {
            return Answer::Behind;
        }
        let event = &*candidate.event;
        let mut decision = decide(standing.cursor.as_ref(), candidate.facts(), self.rules.mode);
        if Failpoint::NoCursorCheck.is_enabled() {
            decision = Decision::Next;
        }
        // Without numbers nobody noticed that it was missing when its successors were applied.
        if event.dead_lettered && self.rules.mode == Mode::Position {
            let parked = standing.cursor.iter().flat_map(|cursor| cursor.parked.values());
            let is_there = parked.flat_map(|entry| &entry.letters).any(|id| *id == event.message_id);
            decision = if is_there { Decision::Duplicate } else { Decision::Next };
        }
        match decision {
            Decision::Next => self.take(at, candidate, standing, self.trouble_of(event)),
            Decision::Duplicate => {
                self.plan.tally.duplicates += 1;
                Answer::Done(Outcome::Duplicate)
            }
            Decision::Regressed => {
                self.plan.tally.regressed += 1;
                self.take(at, candidate, standing, Some(Reason::VersionRegressed))
            }
            Decision::Gap { .. } | Decision::Ask(Question::IsFirst { .. }) if candidate.unhealable => {
                self.take(at, candidate, standing, Some(Reason::Unhealable))
            }
            Decision::Gap { from, to } => {
                standing.held = true;
                Answer::Gap { from, to }
            }
            Decision::Ask(question) => {
                standing.held = true;
                Answer::Ask(question)
            }
        }
    }

    /// Why it cannot even be tried.
    fn trouble_of(&self, event: &Delivered) -> Option<Reason> {
        match &event.body {
            Body::Marker(_) => Some(Reason::Marker),
            Body::Oversize(_) => Some(Reason::NoBody),
            Body::Document(_) if event.dead_lettered => Some(Reason::DeadLettered),
            Body::Document(_) if event.delivery_count >= self.rules.park_at_delivery => Some(Reason::DeliveryCount),
            Body::Document(_) => None,
        }
    }

    /// It is this event's turn: applied or parked, in each model.
    fn take(&mut self, at: usize, candidate: &Candidate, standing: &mut Standing, trouble: Option<Reason>) -> Answer {
        let event = &*candidate.event;
        let cursor = standing.cursor.get_or_insert_default();
        let mut poisoned = false;
        let mut waits = false;
        for (number, model) in self.rules.models.iter().enumerate() {
            // Of an event without body and type nobody can say whom it concerns.
            let unknown = event.event_type.is_none() && trouble.is_some();
            let concerned = model.handles(event) || unknown || trouble.is_some_and(Reason::is_of_the_aggregate);
            if !concerned {
                continue;
            }
            let is_parked = cursor.parked.contains_key(model.name()) && !Failpoint::ParkedCheckSkipped.is_enabled();
            let refused = if is_parked { None } else { trouble.map(|reason| (reason, String::new())) };
            let refused = match refused {
                None if !is_parked => self.apply(at, number, event).err().map(|detail| (Reason::Poison, detail)),
                refused => refused,
            };
            if let Some((reason, detail)) = refused {
                poisoned |= reason == Reason::Poison;
                let entry = || parked_entry(reason, detail, event, self.now);
                cursor.parked.entry(model.name().to_owned()).or_insert_with(entry);
            }
            if let Some(entry) = cursor.parked.get_mut(model.name())
                && !Failpoint::ParkedCheckSkipped.is_enabled()
            {
                let id = queue_id(&self.rules.naming, &event.namespace, &event.aggregate, model.name(), entry.next);
                self.plan.parked.push(event_document(id, event, self.now));
                entry.next += 1;
                if event.dead_lettered {
                    entry.letters.push(event.message_id.clone());
                }
                waits = true;
            }
        }
        cursor.advance(candidate.facts());
        cursor.gone = candidate.event.operation == Operation::Delete;
        standing.changed = true;
        Answer::Done(self.outcome(waits, poisoned))
    }

    fn outcome(&mut self, waits: bool, poisoned: bool) -> Outcome {
        let tally = &mut self.plan.tally;
        match (waits, poisoned && self.rules.dead_letter_poison) {
            (false, _) => {
                tally.applied += 1;
                Outcome::Applied
            }
            (true, dead_letter) => {
                tally.parked += 1;
                if dead_letter { Outcome::DeadLetter } else { Outcome::Parked }
            }
        }
    }

    /// Writes down what the model makes of it; an error is why it is poison.
    fn apply(&mut self, at: usize, model: usize, event: &Delivered) -> Result<(), String> {
        if let Some(refused) = self.refusals.get(&(at, model)) {
            return Err(refused.clone());
        }
        let Body::Document(document) = &event.body else {
            unreachable!("what has no body is parked before: see trouble_of");
        };
        let statements = projection::statements(&*self.rules.models[model], &Event::new(event, document))?;
        let written = statements.written.into_iter();
        self.plan.statements.extend(written.map(|statement| Planned { at, model, statement }));
        self.plan.tally.models[model] += 1;
        Ok(())
    }

    /// Once per aggregate that changed.
    fn write_cursors(&mut self, candidates: &[Candidate], part: &[usize], all: &mut HashMap<Identity, Standing>) {
        for candidate in part.iter().map(|at| &candidates[*at]) {
            if let Some(Standing { cursor: Some(cursor), had, changed, .. }) = all.get_mut(&candidate.identity)
                && std::mem::take(changed)
            {
                let id = self.rules.naming.id(&candidate.event.namespace, &candidate.event.aggregate);
                match had {
                    Some(had) => self.plan.cursors.push(cursor_statement(&id, cursor, *had)),
                    None => self.plan.first_cursors.push(cursor_document(&id, cursor)),
                }
            }
        }
    }
}

impl Candidate {
    pub(super) fn new(event: Delivered, rules: &Rules) -> Self {
        let identity = rules.naming.identity(&event.namespace, &event.aggregate);
        let weight = rules.models.iter().filter(|model| model.handles(&event)).count().max(1);
        let handed_in = wall_clock();
        Self { event: Arc::new(event), identity, evidence: None, unhealable: false, weight, handed_in }
    }

    fn facts(&self) -> Facts<'_> {
        let Delivered { position, sequence, key, .. } = &*self.event;
        Facts { position: position.as_ref(), sequence: *sequence, key, evidence: self.evidence }
    }
}

fn parked_entry(reason: Reason, detail: String, event: &Delivered, now: DateTime) -> Parked {
    Parked {
        reason,
        detail,
        event_id: event.key.clone(),
        sequence: event.sequence,
        since: now,
        head: 0,
        next: 0,
        letters: vec![],
    }
}
