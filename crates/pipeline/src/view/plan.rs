//! Pure: plans what one transaction writes, from the cursors it read and the events it got.
//!
//! Compares each event, in order, with the cursor of its aggregate as the previous events left it. An event that cannot be decided here
//! (a gap, a question to the source) blocks the later events of its own aggregate only.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use mongodb::bson::{DateTime, RawDocument, RawDocumentBuf};

use super::cursor::{
    BuildProgress, Cursor, CursorDecision, EventFacts, OrderingMode, PipelineStart, SourceEvidence, SourceQuestion,
    decide,
};
use super::cursor_document::{CursorIdScheme, StoredCursorFields, cursor_document, cursor_statement};
use super::delivered_event::{DeliveredEvent, EventBody, PositionKey};
use super::discarded::DiscardedEvents;
use super::identity::Identity;
use super::memory_fold::{FoldKey, MemoryFolding, MemoryFolds};
use super::model_set::{AppliedModel, CurrentModels, ModelSet, ModelSetMode};
use super::parked::{ParkReason, ParkedEntry, parked_event_document, parked_event_id};
use super::paused_models::PausedModels;
use super::projection::{self, ProjectionEvent};
use super::read_model::ReadModel;
use super::statement::WriteStatement;
use super::typed_index::{EventIndex, ModelIndex};
use super::upcast::UpcastedEvents;
use crate::erasure::{CurrentErased, ErasedAggregates};
use crate::event::Operation;
use crate::failpoints::{Failpoint, abort_if_fatal};
use crate::trace::wall_clock;

/// An event that waits for its transaction, with what is known about it.
#[derive(Clone)]
pub(super) struct PendingEvent {
    pub(super) event: Arc<DeliveredEvent>,
    pub(super) identity: Identity,
    pub(super) evidence: Option<SourceEvidence>,
    /// The source does not have the events before it, or must not be asked: it is parked.
    pub(super) is_unhealable: bool,
    /// Expected number of statements; at least one, as every event takes part in the group limits.
    pub(super) expected_statements: usize,
    pub(super) submitted_at: SystemTime,
}

/// What was done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApplyOutcome {
    /// Applied in all read models in which its aggregate is not parked.
    Applied,
    /// Nothing was written: it was applied before, or its aggregate is erased.
    Duplicate,
    /// Queued in at least one read model in which its aggregate is parked.
    Parked,
    /// As `Parked`, and its message is dead-lettered.
    DeadLetter,
}

/// What a transaction decides about an event.
#[derive(Clone, Debug)]
pub(super) enum PlannedOutcome {
    Done(ApplyOutcome),
    Gap {
        from: i64,
        to: i64,
    },
    NeedsSource(SourceQuestion),
    /// An earlier event of the same aggregate is not decided yet.
    Blocked,
}

impl std::fmt::Debug for SourceQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::IsFirst { .. } => "IsFirst",
            Self::SeenBefore { .. } => "SeenBefore",
        })
    }
}

/// The rules of all transactions of an applier.
pub(super) struct ApplyRules {
    pub(super) naming: CursorIdScheme,
    pub(super) mode: OrderingMode,
    pub(super) models: CurrentModels,
    pub(super) paused: PausedModels,
    pub(super) erased: CurrentErased,
    pub(super) dead_letter_poison: bool,
    /// Of builds; empty for live events.
    pub(super) discarded: DiscardedEvents,
    /// Changes with the subscription.
    pub(super) park_at_delivery: AtomicU32,
}

impl ApplyRules {
    /// Whether it claims to be the first of its aggregate and is no known redelivery. Only a sequence can tell.
    pub(super) fn looks_like_first_event(&self, pending: &PendingEvent) -> bool {
        let OrderingMode::Sequence { first, .. } = self.mode else { return false };
        let event = &pending.event;
        !self.naming.by_collection
            && event.sequence.is_some_and(|sequence| sequence <= first)
            && event.delivery_count == 0
    }
}

impl ApplyRules {
    /// What an operator must know before a retry.
    fn park_detail(&self, reason: ParkReason, cursor: Option<&PositionKey>, event: &DeliveredEvent) -> String {
        if self.lacks_sequence(event) {
            return "the event has no usable sequence".to_owned();
        }
        let is_behind = cursor.zip(event.position.as_ref()).is_some_and(|(cursor, position)| position < cursor);
        if reason == ParkReason::DeadLettered && self.mode == OrderingMode::Position && is_behind {
            return "later events are applied; without a sequence it is unknown if this one is too: a retry may apply it twice"
                .to_owned();
        }
        String::new()
    }

    /// The sequence with which an aggregate begins in a pipeline that did not start at the beginning; `None` for its first event.
    fn beginning_at(&self, event: &DeliveredEvent) -> Option<i64> {
        match self.mode {
            OrderingMode::Sequence { start: PipelineStart::Now, first, .. } => event.sequence.filter(|it| *it > first),
            OrderingMode::Sequence { start: PipelineStart::Beginning, .. } | OrderingMode::Position => None,
        }
    }

    /// Whether its place in the aggregate is unknown, because the source has a sequence and the event lacks it.
    fn lacks_sequence(&self, event: &DeliveredEvent) -> bool {
        event.sequence.is_none() && self.mode != OrderingMode::Position
    }

    /// Whether only its message id identifies it when it is delivered again: the cursor says nothing about it.
    fn queues_by_message_id(&self, event: &DeliveredEvent) -> bool {
        event.dead_lettered || self.lacks_sequence(event)
    }
}

fn is_queued_already(state: &PlannedAggregate, event: &DeliveredEvent) -> bool {
    let parked = state.cursor.iter().flat_map(|cursor| cursor.parked.values());
    parked.flat_map(|entry| &entry.dead_letter_ids).any(|id| *id == event.message_id)
}

/// Statements the server is known to refuse, with the error. By name of the model, as the next attempt may have another generation of models.
pub(super) type RefusedStatements = HashMap<RefusedStatement, String>;

/// The event and the name of the model that a refused statement comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RefusedStatement {
    pub(super) event: EventIndex,
    pub(super) model: String,
}

/// The event and the model that a statement comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StatementOrigin {
    pub(super) event: EventIndex,
    pub(super) model: ModelIndex,
}

/// A statement with the event and the model it comes from.
pub(super) struct PlannedStatement {
    pub(super) origin: StatementOrigin,
    pub(super) statement: WriteStatement,
}

impl AsRef<WriteStatement> for PlannedStatement {
    fn as_ref(&self) -> &WriteStatement {
        &self.statement
    }
}

#[derive(Default)]
pub(super) struct TransactionPlan {
    /// One per event.
    pub(super) outcomes: Vec<(EventIndex, PlannedOutcome)>,
    pub(super) statements: Vec<PlannedStatement>,
    /// Cursors of aggregates that have none yet.
    pub(super) first_cursors: Vec<RawDocumentBuf>,
    /// Entries of an `update` command.
    pub(super) cursors: Vec<RawDocumentBuf>,
    /// The ids of cursors that hold for the generation of a build now, and change in nothing else.
    pub(super) built_cursors: Vec<RawDocumentBuf>,
    pub(super) parked: Vec<RawDocumentBuf>,
    pub(super) counts: CommitCounts,
}

/// Counted once the transaction has committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommitCounts {
    pub(super) applied: u64,
    pub(super) duplicates: u64,
    pub(super) regressed: u64,
    pub(super) parked: u64,
    /// Applied events by model index: an event that is parked in one model may be applied in another.
    pub(super) models: Vec<u64>,
}

#[derive(Default)]
struct PlannedAggregate {
    cursor: Option<Cursor>,
    /// The optional fields of the cursor as read, or of the epoch floor used in its place; `None` if there was neither.
    stored: Option<StoredCursorFields>,
    changed: bool,
    blocked: bool,
    /// The build that runs has applied none of its events.
    is_unbuilt: bool,
    /// More changes in its cursor than what it holds for.
    needs_full_cursor: bool,
}

pub(super) struct TransactionPlanner<'a> {
    rules: &'a ApplyRules,
    models: &'a ModelSet,
    refused: &'a RefusedStatements,
    paused: Arc<BTreeSet<String>>,
    erased: Arc<ErasedAggregates>,
    upcasted: Option<&'a UpcastedEvents>,
    now: DateTime,
    state: HashMap<Identity, PlannedAggregate>,
    plan: TransactionPlan,
    folding: &'a MemoryFolding,
    folds: MemoryFolds,
}

impl<'a> TransactionPlanner<'a> {
    pub(super) fn new(
        rules: &'a ApplyRules,
        models: &'a ModelSet,
        refused: &'a RefusedStatements,
        cursors: HashMap<Identity, Cursor>,
        now: DateTime,
        folding: &'a MemoryFolding,
    ) -> Self {
        let from_stored = |cursor: Cursor| PlannedAggregate {
            stored: Some(StoredCursorFields::of(&cursor)),
            is_unbuilt: cursor.build.is_none_or(|build| build.generation != models.generation),
            cursor: Some(cursor),
            ..PlannedAggregate::default()
        };
        let state = cursors.into_iter().map(|(identity, cursor)| (identity, from_stored(cursor))).collect();
        let counts = CommitCounts { models: vec![0; models.models.len()], ..CommitCounts::default() };
        let (paused, plan) = (rules.paused.get(), TransactionPlan { counts, ..TransactionPlan::default() });
        let (erased, folds) = (rules.erased.get(), MemoryFolds::default());
        Self { rules, models, refused, paused, erased, upcasted: None, now, state, plan, folding, folds }
    }

    pub(super) fn with_upcasted(self, upcasted: &'a UpcastedEvents) -> Self {
        Self { upcasted: Some(upcasted), ..self }
    }

    /// An error names what cannot be folded in memory.
    pub(super) fn plan(
        mut self,
        events: &[PendingEvent],
        indices: &[EventIndex],
    ) -> Result<TransactionPlan, HashSet<FoldKey>> {
        let mut states = std::mem::take(&mut self.state);
        self.plan.outcomes.reserve(indices.len());
        for index in indices {
            let pending = &events[*index];
            // Later events of the group see the cursor as the earlier ones leave it.
            let state = states.entry(pending.identity.clone()).or_default();
            let outcome = self.plan_event(*index, pending, state);
            self.plan.outcomes.push((*index, outcome));
        }
        self.write_cursors(events, indices, &mut states);
        self.plan.statements.extend(std::mem::take(&mut self.folds).finish()?);
        Ok(self.plan)
    }

    fn plan_event(
        &mut self,
        index: EventIndex,
        pending: &PendingEvent,
        state: &mut PlannedAggregate,
    ) -> PlannedOutcome {
        if state.blocked {
            return PlannedOutcome::Blocked;
        }
        // A late message, or one of an id that is used again: nothing of it may come back.
        if self.erased.contains(&pending.identity) {
            self.plan.counts.duplicates += 1;
            return PlannedOutcome::Done(ApplyOutcome::Duplicate);
        }
        if self.models.mode == ModelSetMode::Build {
            return self.plan_build(index, pending, state);
        }
        let event = &*pending.event;
        let mut decision = decide(state.cursor.as_ref(), pending.facts(), self.rules.mode);
        let is_gap = matches!(decision, CursorDecision::Gap { .. });
        if Failpoint::NoCursorCheck.is_enabled() || (is_gap && Failpoint::GapIgnored.is_enabled()) {
            decision = CursorDecision::Next;
        }
        // Without a sequence the gap went unnoticed, and later events may be applied already.
        if event.dead_lettered && self.rules.mode == OrderingMode::Position {
            decision = match state.cursor.as_ref().is_some_and(|cursor| is_resolved_dead_letter(cursor, event)) {
                true => CursorDecision::Duplicate,
                false => CursorDecision::Next,
            };
        }
        if decision == CursorDecision::NoSequence && is_queued_already(state, event) {
            decision = CursorDecision::Duplicate;
        }
        match decision {
            CursorDecision::Next => self.apply_or_park(index, pending, state, self.park_reason(event)),
            CursorDecision::Duplicate => {
                self.plan.counts.duplicates += 1;
                PlannedOutcome::Done(ApplyOutcome::Duplicate)
            }
            CursorDecision::Regressed => {
                self.plan.counts.regressed += 1;
                self.apply_or_park(index, pending, state, Some(ParkReason::VersionRegressed))
            }
            CursorDecision::NoSequence => self.apply_or_park(index, pending, state, Some(ParkReason::Unhealable)),
            CursorDecision::Gap { .. } | CursorDecision::AskSource(SourceQuestion::IsFirst { .. })
                if pending.is_unhealable =>
            {
                self.apply_or_park(index, pending, state, Some(ParkReason::Unhealable))
            }
            CursorDecision::Gap { from, to } => {
                state.blocked = true;
                PlannedOutcome::Gap { from, to }
            }
            CursorDecision::AskSource(question) => {
                state.blocked = true;
                PlannedOutcome::NeedsSource(question)
            }
        }
    }

    /// Why the event is parked without an attempt.
    fn park_reason(&self, event: &DeliveredEvent) -> Option<ParkReason> {
        match &event.body {
            EventBody::Marker(_) => Some(ParkReason::Marker),
            EventBody::Oversize(_) => Some(ParkReason::NoBody),
            EventBody::Document(_) if event.dead_lettered => Some(ParkReason::DeadLettered),
            EventBody::Document(_) if event.delivery_count >= self.rules.park_at_delivery.load(Relaxed) => {
                Some(ParkReason::DeliveryCount)
            }
            EventBody::Document(_) => None,
        }
    }

    /// Applies or parks an event that is next, in each model that the cursor holds for.
    fn apply_or_park(
        &mut self,
        index: EventIndex,
        pending: &PendingEvent,
        state: &mut PlannedAggregate,
        park_reason: Option<ParkReason>,
    ) -> PlannedOutcome {
        let event = &*pending.event;
        if park_reason.is_none() {
            abort_if_fatal(event.event_type.as_deref());
        }
        let first_sequence = state.cursor.is_none().then(|| self.rules.beginning_at(event)).flatten();
        let cursor = state.cursor.get_or_insert_default();
        cursor.first_sequence = cursor.first_sequence.or(first_sequence);
        // A model that joined later gets no event before a build has applied the earlier ones. An aggregate without a cursor has none. One that serves has
        // all of them, unless the read-model database was restored to a time before its build.
        let holds = if cursor.holds == 0 { self.models.generation } else { cursor.holds };
        let is_applied = |model: &AppliedModel| model.since <= holds || !model.is_building;
        let outcome = self.apply_to_models(index, event, cursor, park_reason, None, is_applied);
        cursor.holds = if holds >= self.models.newest() { self.models.generation } else { holds };
        // Also when the event is parked: it is in the queue, so a redelivery is a duplicate. An event without its sequence has no place that
        // the cursor could move to.
        if !self.rules.lacks_sequence(event) {
            cursor.advance(pending.facts());
        }
        cursor.document_deleted = pending.event.operation == Operation::Delete;
        state.changed = true;
        outcome
    }

    /// Applies an event that the cursor has passed to the models of a build. Events above the cursor are left to the live applier.
    fn plan_build(
        &mut self,
        index: EventIndex,
        pending: &PendingEvent,
        state: &mut PlannedAggregate,
    ) -> PlannedOutcome {
        let generation = self.models.generation;
        let Some(cursor) = state.cursor.as_mut().filter(|cursor| cursor.holds < generation) else {
            return PlannedOutcome::Done(ApplyOutcome::Duplicate);
        };
        let event = &*pending.event;
        if self.rules.mode == OrderingMode::Position {
            // It is the document as the source had it after the cursor was read.
            if cursor.position != event.position {
                return PlannedOutcome::Blocked;
            }
            cursor.holds = generation;
        } else {
            let (Some(sequence), Some(at)) = (event.sequence, cursor.sequence) else { return PlannedOutcome::Blocked };
            let built = cursor.build.filter(|build| build.generation == generation).map(|build| build.sequence);
            if built.is_some_and(|built| sequence <= built) {
                return PlannedOutcome::Done(ApplyOutcome::Duplicate);
            }
            if sequence > at {
                return PlannedOutcome::Blocked;
            }
            cursor.build = (sequence < at).then_some(BuildProgress { generation, sequence });
            cursor.holds = if sequence < at { cursor.holds } else { generation };
        }
        let fold = state.is_unbuilt.then_some(&pending.identity);
        let is_unclear = cursor.parked.values().any(|entry| entry.reason.affects_all_models());
        let reason = is_unclear.then_some(ParkReason::Unhealable);
        let outcome = self.apply_to_models(index, event, cursor, reason, fold, |_| true);
        state.needs_full_cursor |= !matches!(outcome, PlannedOutcome::Done(ApplyOutcome::Applied));
        state.changed = true;
        outcome
    }

    fn apply_to_models(
        &mut self,
        index: EventIndex,
        event: &DeliveredEvent,
        cursor: &mut Cursor,
        park_reason: Option<ParkReason>,
        fold: Option<&Identity>,
        holds_for: impl Fn(&AppliedModel) -> bool,
    ) -> PlannedOutcome {
        let (mut is_poison, mut is_queued) = (false, false);
        let models = self.models.models.iter().enumerate().filter(|(_, applied)| holds_for(applied));
        for (number, applied) in models {
            let AppliedModel { projection: model, name, .. } = applied;
            let origin = StatementOrigin { event: index, model: ModelIndex::new(number) };
            // Without type and body it is unknown which models the event concerns, so it concerns all.
            let unknown = event.event_type.is_none() && park_reason.is_some();
            let concerned = model.handles(event) || unknown || park_reason.is_some_and(ParkReason::affects_all_models);
            if !concerned || self.rules.discarded.contains(model.name(), event) {
                continue;
            }
            // Parked without an attempt, like an event that cannot be applied: what comes later queues behind it, in order.
            let is_paused = !self.paused.is_empty() && self.paused.contains(name);
            if is_paused && Failpoint::PausedEventsSkipped.is_enabled() {
                continue;
            }
            let park_reason = park_reason.or(is_paused.then_some(ParkReason::Paused));
            let is_live = self.models.mode == ModelSetMode::Live;
            let lacks_events = is_live && cursor.holds != 0 && applied.since > cursor.holds;
            let park_reason = park_reason.or(lacks_events.then_some(ParkReason::NotBuilt));
            // Checked per model: the aggregate may be parked in one and current in another.
            let is_parked = cursor.parked.contains_key(model.name()) && !Failpoint::ParkedCheckSkipped.is_enabled();
            // An aggregate that is parked already only queues; its reason stays that of the first event.
            let with_detail = |reason| (reason, self.rules.park_detail(reason, cursor.position.as_ref(), event));
            let queued_detail = park_reason.map(with_detail).map(|(_, detail)| detail).unwrap_or_default();
            let refused = if is_parked { None } else { park_reason.map(with_detail) };
            let refused = match refused {
                None if !is_parked => {
                    self.add_statements(origin, event, fold).err().map(|detail| (ParkReason::Poison, detail))
                }
                refused => refused,
            };
            if let Some((reason, detail)) = refused.filter(|_| !Failpoint::PoisonSkipped.is_enabled()) {
                is_poison |= reason == ParkReason::Poison;
                let entry = || new_parked_entry(reason, detail, event, self.now);
                cursor.parked.entry(model.name().to_owned()).or_insert_with(entry);
            }
            if let (Some(entry), Some(reason)) = (cursor.parked.get_mut(model.name()), park_reason)
                && entry.reason == ParkReason::Paused
                && reason != ParkReason::Paused
            {
                // A resumed read model applies its queue by itself. This event needs an operator.
                (entry.reason, entry.detail) = (reason, queued_detail);
            }
            if let Some(entry) = cursor.parked.get_mut(model.name())
                && !Failpoint::ParkedCheckSkipped.is_enabled()
            {
                let id =
                    parked_event_id(&self.rules.naming, &event.namespace, &event.aggregate, model.name(), entry.next);
                self.plan.parked.push(parked_event_document(id, event, self.now));
                entry.next += 1;
                if self.rules.queues_by_message_id(event) {
                    entry.dead_letter_ids.push(event.message_id.clone());
                }
                is_queued = true;
            }
        }
        PlannedOutcome::Done(self.count_outcome(is_queued, is_poison))
    }

    fn count_outcome(&mut self, is_queued: bool, is_poison: bool) -> ApplyOutcome {
        let counts = &mut self.plan.counts;
        match (is_queued, is_poison && self.rules.dead_letter_poison) {
            (false, _) => {
                counts.applied += 1;
                ApplyOutcome::Applied
            }
            (true, dead_letter) => {
                counts.parked += 1;
                if dead_letter { ApplyOutcome::DeadLetter } else { ApplyOutcome::Parked }
            }
        }
    }

    /// Adds the statements of one model; an error makes the event poison. `fold`: the aggregate, if its documents do not exist yet.
    fn add_statements(
        &mut self,
        origin: StatementOrigin,
        event: &DeliveredEvent,
        fold: Option<&Identity>,
    ) -> Result<(), String> {
        let model = &*self.models.models[origin.model.get()].projection;
        if !self.refused.is_empty() {
            let statement = RefusedStatement { event: origin.event, model: model.name().to_owned() };
            if let Some(refused) = self.refused.get(&statement) {
                return Err(refused.clone());
            }
        }
        let EventBody::Document(document) = &event.body else {
            unreachable!("park_reason parks events without a body");
        };
        let upcasted = self.upcasted.and_then(|upcasted| upcasted.get(origin.event.get(), model, event));
        let document: &RawDocument = match upcasted {
            Some(upcasted) => upcasted.as_ref().map_err(Clone::clone)?,
            None => document,
        };
        let event = ProjectionEvent::new(event, document);
        match fold.filter(|aggregate| self.is_foldable(origin, aggregate)).zip(model.as_read_model()) {
            Some((aggregate, model)) => self.folds.add(origin, aggregate, model, &event),
            None => {
                let statements = projection::project(model, &event)?.list.into_iter();
                self.plan.statements.extend(statements.map(|statement| PlannedStatement { origin, statement }));
            }
        }
        self.plan.counts.models[origin.model.get()] += 1;
        Ok(())
    }

    fn is_foldable(&self, origin: StatementOrigin, aggregate: &Identity) -> bool {
        let MemoryFolding::Except(unfoldable) = self.folding else { return false };
        let model = self.models.models[origin.model.get()].projection.as_read_model();
        model.is_some_and(ReadModel::is_keyed_by_aggregate)
            && (unfoldable.is_empty() || !unfoldable.contains(&(origin.model.get(), aggregate.clone())))
    }

    /// One cursor write per changed aggregate.
    fn write_cursors(
        &mut self,
        events: &[PendingEvent],
        indices: &[EventIndex],
        states: &mut HashMap<Identity, PlannedAggregate>,
    ) {
        for pending in indices.iter().map(|index| &events[*index]) {
            if let Some(PlannedAggregate { cursor: Some(cursor), stored, changed, needs_full_cursor, .. }) =
                states.get_mut(&pending.identity)
                && std::mem::take(changed)
            {
                // Once per aggregate: `changed` was reset by the first of its events.
                let id = self.rules.naming.id(&pending.event.namespace, &pending.event.aggregate);
                let is_built = self.models.mode == ModelSetMode::Build && cursor.holds == self.models.generation;
                match stored {
                    Some(_) if is_built && !*needs_full_cursor => self.plan.built_cursors.push(id),
                    Some(stored) => self.plan.cursors.push(cursor_statement(&id, cursor, *stored, self.models)),
                    None => self.plan.first_cursors.push(cursor_document(&id, cursor, self.models)),
                }
            }
        }
    }
}

impl PendingEvent {
    pub(super) fn new(event: DeliveredEvent, rules: &ApplyRules) -> Self {
        let identity = rules.naming.identity(&event.namespace, &event.aggregate);
        Self::with_identity(event, identity, rules)
    }

    /// As [`Self::new`], after another event that is often of the same aggregate.
    pub(super) fn new_after(previous: Option<&Self>, event: DeliveredEvent, rules: &ApplyRules) -> Self {
        let is_same = |previous: &&Self| {
            previous.event.aggregate == event.aggregate && previous.event.namespace == event.namespace
        };
        match previous.filter(is_same) {
            Some(previous) => Self::with_identity(event, previous.identity.clone(), rules),
            None => Self::new(event, rules),
        }
    }

    fn with_identity(event: DeliveredEvent, identity: Identity, rules: &ApplyRules) -> Self {
        let models = rules.models.get();
        let expected = models.models.iter().filter(|model| model.projection.handles(&event)).count();
        let expected_statements = expected.max(1);
        let submitted_at = wall_clock();
        // Reading the missing events may be what ends the pod.
        let is_unhealable = event.delivery_count == DeliveredEvent::PARK_UNTRIED;
        Self { event: Arc::new(event), identity, evidence: None, is_unhealable, expected_statements, submitted_at }
    }

    fn facts(&self) -> EventFacts<'_> {
        let DeliveredEvent { position, sequence, key, .. } = &*self.event;
        EventFacts { position: position.as_ref(), sequence: *sequence, key, evidence: self.evidence }
    }
}

/// Without a sequence: whether a dead letter is certainly applied, or queued.
fn is_resolved_dead_letter(cursor: &Cursor, event: &DeliveredEvent) -> bool {
    let mut queued = cursor.parked.values().flat_map(|entry| &entry.dead_letter_ids);
    // A position belongs to one event of an aggregate. A lower one proves nothing: the bus may have passed the event over.
    let is_last = event.position.is_some() && cursor.position == event.position;
    is_last || queued.any(|id| *id == event.message_id)
}

fn new_parked_entry(reason: ParkReason, detail: String, event: &DeliveredEvent, now: DateTime) -> ParkedEntry {
    ParkedEntry {
        reason,
        detail,
        event_id: event.key.clone(),
        sequence: event.sequence,
        since: now,
        head: 0,
        next: 0,
        dead_letter_ids: vec![],
    }
}
