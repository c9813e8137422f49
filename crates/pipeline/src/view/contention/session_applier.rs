//! Applies the batches of one session: one at a time, and none before the previous one is resolved.
//!
//! Questions that only the source can answer (a gap, an event seen before) are asked here, outside any transaction, so that only this
//! session waits for the answer. A gap first waits for what the session is about to bring: see [`gaps`](super::gaps).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::event_results::EventResult;
use super::gaps::{Arrivals, Gaps, MissingEvents, NoArrivals, WaitingAggregate, arrange, take_aggregate};
use super::group_commit_queue::Submission;
use crate::failpoints::Failpoint;
use crate::view::applier::ApplierContext;
use crate::view::cursor::{OrderingMode, SourceEvidence, SourceQuestion};
use crate::view::delivered_event::DeliveredEvent;
use crate::view::error::Error;
use crate::view::identity::Identity;
use crate::view::plan::{ApplyOutcome, PendingEvent, PlannedOutcome};
use crate::view::source_event_reader::SourceEventReader;
use crate::view::typed_index::BatchIndex;

/// [`apply`](Self::apply) takes `&mut self`, so that a session cannot have two transactions in flight. If a call is cancelled, the next one
/// waits for its results.
pub struct SessionApplier {
    context: Arc<ApplierContext>,
    /// Results that a cancelled call did not wait for.
    unresolved: Vec<oneshot::Receiver<Vec<EventResult>>>,
    /// The highest sequence of each aggregate that this session has resolved: a hint, with which most gaps inside a batch are closed before a
    /// transaction finds them.
    resolved: HashMap<Identity, i64>,
}

/// The result of a batch.
#[derive(Debug)]
pub struct AppliedBatch {
    /// Of the first events, in order: they may be settled as their outcomes say.
    pub outcomes: Vec<ApplyOutcome>,
    /// What happened to the other events.
    pub end: BatchEnd,
}

/// How a batch ended.
#[derive(Clone, Debug)]
pub enum BatchEnd {
    /// Every event has an outcome.
    Complete,
    /// It is unknown whether the other events were applied. Close the session and accept it again: the cursor knows.
    Unknown,
    /// The other events were not applied. Close the session and accept it again, at once or after operator action: see [`Error::class`].
    Failed(Arc<Error>),
}

/// A session of buckets may have many aggregates; without a hint a gap only costs one more transaction.
const MAX_HINTS: usize = 10_000;

/// An event of the batch, or one read from the source, which has no index.
pub(super) struct BatchEvent {
    index: Option<BatchIndex>,
    pub(super) pending: PendingEvent,
}

impl BatchEvent {
    pub(super) fn without_position(mut self) -> Self {
        Arc::make_mut(&mut self.pending.event).position = None;
        self
    }
}

/// The events of one batch and what is known about them.
#[derive(Default)]
struct Batch {
    outcomes: Vec<Option<ApplyOutcome>>,
    /// Ready to be submitted, in order.
    ready: VecDeque<BatchEvent>,
    gaps: Gaps,
}

impl SessionApplier {
    pub(in crate::view) fn new(context: Arc<ApplierContext>) -> Self {
        Self { context, unresolved: vec![], resolved: HashMap::new() }
    }

    /// Applies a batch in order. Returns when every event is resolved, or when the remaining ones cannot be.
    pub async fn apply(&mut self, events: Vec<DeliveredEvent>) -> AppliedBatch {
        self.apply_with(events, &mut NoArrivals).await
    }

    /// As [`apply`](Self::apply). An aggregate with a gap waits for `arrivals` before the source is asked; whatever arrives becomes part of the
    /// batch.
    pub async fn apply_with(&mut self, events: Vec<DeliveredEvent>, arrivals: &mut impl Arrivals) -> AppliedBatch {
        self.await_cancelled_calls().await;
        let mut batch = Batch::default();
        self.add_events(&mut batch, events);
        self.close_known_gaps(&mut batch.ready);
        let mut has_ended = false;
        loop {
            while !batch.ready.is_empty() {
                let part = self.take_part(&mut batch.ready);
                let end = match self.submit(&part).await {
                    Ok(results) => self.process_results(part, results, &mut batch, arrivals.gap_wait()).await,
                    Err(end) => Some(end),
                };
                if let Some(end) = end {
                    return applied_batch(batch.outcomes, end);
                }
            }
            let Some(deadline) = batch.gaps.next_deadline() else {
                return applied_batch(batch.outcomes, BatchEnd::Complete);
            };
            let within = deadline.saturating_duration_since(Instant::now());
            let arrived = if has_ended { NoArrivals.next(within).await } else { arrivals.next(within).await };
            // Nothing is worth waiting for once nothing will arrive.
            let now = if arrived.is_none() { deadline } else { Instant::now() };
            has_ended |= arrived.is_none();
            self.add_events(&mut batch, arrived.unwrap_or_default());
            batch.ready.extend(batch.gaps.take_filled());
            for aggregate in batch.gaps.take_expired(now) {
                // Boxed because it is rare: otherwise every session future has its size.
                if let Err(error) = Box::pin(self.ask_for_missing(aggregate, &mut batch)).await {
                    return applied_batch(batch.outcomes, BatchEnd::Failed(error));
                }
            }
        }
    }

    fn add_events(&self, batch: &mut Batch, events: Vec<DeliveredEvent>) {
        let rules = self.context.runner.rules();
        for event in events {
            let index = Some(BatchIndex::new(batch.outcomes.len()));
            batch.outcomes.push(None);
            let event = BatchEvent { index, pending: PendingEvent::new(event, rules) };
            batch.ready.extend(batch.gaps.add(event));
        }
    }

    /// Arranges the aggregates of which the batch brings the missing events itself.
    fn close_known_gaps(&self, ready: &mut VecDeque<BatchEvent>) {
        let mut expected: HashMap<&Identity, i64> = HashMap::new();
        let mut gaps: Vec<(Identity, i64)> = vec![];
        for event in ready.iter() {
            let identity = &event.pending.identity;
            let (Some(sequence), Some(resolved)) = (event.pending.event.sequence, self.resolved.get(identity)) else {
                continue;
            };
            let next = expected.entry(identity).or_insert_with(|| resolved.saturating_add(1));
            if sequence == *next {
                *next = next.saturating_add(1);
            } else if sequence > *next && !gaps.iter().any(|(known, _)| known == identity) {
                gaps.push((identity.clone(), resolved.saturating_add(1)));
            }
        }
        for (identity, expected) in gaps {
            let events = take_aggregate(ready, &identity);
            ready.extend(arrange(events, expected));
        }
    }

    /// As many events as fit into one transaction.
    fn take_part(&self, waiting: &mut VecDeque<BatchEvent>) -> Vec<BatchEvent> {
        let (mut bytes, mut statements) = (0, 0);
        let mut part: Vec<BatchEvent> = vec![];
        while let Some(next) = waiting.front() {
            bytes += next.pending.event.body.len();
            statements += next.pending.expected_statements;
            let fits = statements <= self.context.queue.max_statements() && bytes <= self.context.config.group_bytes;
            // A single event that exceeds the limits is applied alone.
            if !fits && !part.is_empty() {
                break;
            }
            part.extend(waiting.pop_front());
        }
        part
    }

    async fn submit(&mut self, part: &[BatchEvent]) -> Result<Vec<EventResult>, BatchEnd> {
        let mut submissions: Vec<Vec<PendingEvent>> = vec![part.iter().map(|event| event.pending.clone()).collect()];
        if Failpoint::OverlappingTransactions.is_enabled() {
            let half = submissions[0].len() / 2;
            let second = submissions[0].split_off(half);
            submissions.push(second);
        }
        for events in submissions.into_iter().filter(|events| !events.is_empty()) {
            let (reply, results) = oneshot::channel();
            self.unresolved.push(results);
            self.context.queue.submit(Submission { events, reply, submitted_at: Instant::now() });
        }
        let mut results = vec![];
        // A receiver is removed only after its reply: if this call is cancelled, the next one still waits for it.
        while let Some(receiver) = self.unresolved.first_mut() {
            let received = receiver.await;
            self.unresolved.remove(0);
            results.extend(received.map_err(|_| BatchEnd::Failed(Arc::new(Error::Stopped)))?);
        }
        Ok(results)
    }

    async fn await_cancelled_calls(&mut self) {
        while let Some(receiver) = self.unresolved.first_mut() {
            let _ = receiver.await;
            self.unresolved.remove(0);
        }
    }

    /// Records outcomes. Undecided events are ready again, with the answers of the source; or they wait for missing ones.
    async fn process_results(
        &mut self,
        part: Vec<BatchEvent>,
        results: Vec<EventResult>,
        batch: &mut Batch,
        gap_wait: Duration,
    ) -> Option<BatchEnd> {
        let mut undecided = VecDeque::new();
        let mut missing: Vec<(Identity, MissingEvents)> = vec![];
        let mut end = None;
        for (event, result) in part.into_iter().zip(results) {
            let question = match result {
                EventResult::Planned(PlannedOutcome::Done(outcome)) => {
                    self.record_outcome(&event, outcome, batch);
                    continue;
                }
                EventResult::Planned(PlannedOutcome::Blocked) => {
                    undecided.push_back(event);
                    continue;
                }
                EventResult::Planned(PlannedOutcome::Gap { from, to }) => {
                    missing.push((event.pending.identity.clone(), MissingEvents::Range { from, to }));
                    undecided.push_back(event);
                    continue;
                }
                EventResult::Planned(PlannedOutcome::NeedsSource(question)) => question,
                EventResult::Failed(error) => {
                    end = end.or(Some(BatchEnd::Failed(error)));
                    continue;
                }
                // Outweighs a failure: these events may have been applied.
                EventResult::Unknown => {
                    end = Some(BatchEnd::Unknown);
                    continue;
                }
            };
            if let Some(earlier) = MissingEvents::of_question(&question, self.first_sequence()) {
                missing.push((event.pending.identity.clone(), earlier));
                undecided.push_back(event);
                continue;
            }
            // Boxed because it is rare: otherwise every session future has its size.
            match Box::pin(self.ask_source(event, question)).await {
                Ok(event) => undecided.push_back(event),
                Err(error) => end = end.or(Some(BatchEnd::Failed(error))),
            }
        }
        undecided.append(&mut batch.ready);
        batch.ready = undecided;
        for (identity, missing) in missing {
            let events = take_aggregate(&mut batch.ready, &identity);
            batch.gaps.wait(missing, events, gap_wait);
        }
        batch.ready.extend(batch.gaps.take_filled());
        end
    }

    fn record_outcome(&mut self, event: &BatchEvent, outcome: ApplyOutcome, batch: &mut Batch) {
        if let Some(index) = event.index {
            batch.outcomes[index.get()] = Some(outcome);
        }
        let Some(sequence) = event.pending.event.sequence else { return };
        if self.resolved.len() >= MAX_HINTS {
            self.resolved.clear();
        }
        let highest = self.resolved.entry(event.pending.identity.clone()).or_insert(sequence);
        *highest = sequence.max(*highest);
    }

    fn first_sequence(&self) -> i64 {
        match self.context.runner.rules().mode {
            OrderingMode::Sequence { first, .. } => first,
            OrderingMode::Position => 0,
        }
    }

    fn history(&self) -> Result<&SourceEventReader, Error> {
        self.context.history.as_ref().ok_or(Error::Unreadable {
            what: "source",
            field: "sequence",
            problem: "cannot be looked up: the applier has no source history",
        })
    }

    /// Reads the missing events of an aggregate from the source: they and the aggregate's own events are ready then. If the source does not
    /// have them, waits again; after `gap_timeout`, marks the first event for parking.
    async fn ask_for_missing(&self, mut aggregate: WaitingAggregate, batch: &mut Batch) -> Result<(), Arc<Error>> {
        let has_timed_out = aggregate.has_waited_for() >= self.context.config.gap_timeout;
        let Some(held) = aggregate.events.first_mut() else { return Ok(()) };
        let found = match aggregate.missing {
            MissingEvents::Range { from, to } => self.read_gap(held, from, to, &mut batch.gaps).await?,
            MissingEvents::Below { sequence, .. } => self.read_earlier(held, sequence).await?,
        };
        match found {
            Some(found) => batch.ready.extend(found.into_iter().chain(aggregate.events)),
            None if !has_timed_out => batch.gaps.wait_again(aggregate),
            None => {
                let PendingEvent { event, is_unhealable, .. } = &mut held.pending;
                tracing::warn!(aggregate = ?event.aggregate, sequence = event.sequence, "the source does not have the missing events; parking the aggregate");
                *is_unhealable = true;
                batch.ready.extend(aggregate.events);
            }
        }
        Ok(())
    }

    /// The first page of the missing events; `None` if the source does not have the first of them.
    async fn read_gap(
        &self,
        held: &BatchEvent,
        from: i64,
        to: i64,
        gaps: &mut Gaps,
    ) -> Result<Option<Vec<BatchEvent>>, Arc<Error>> {
        let PendingEvent { event, identity, .. } = &held.pending;
        let missing = self.history()?.read_range(&event.aggregate, from, to).await?;
        if missing.first().is_none_or(|first| first.sequence != Some(from)) {
            return Ok(None);
        }
        if gaps.being_healed.as_ref() != Some(identity) {
            self.context.counters.totals.gaps_healed.fetch_add(1, Relaxed);
            tracing::info!(aggregate = ?event.aggregate, from, to, "healing sequence gap from the source");
        }
        gaps.being_healed = Some(identity.clone());
        Ok(Some(self.source_events(missing, None).collect()))
    }

    /// The first page of the events before the first one of an aggregate. Without any, `held` is marked as the first, if the source has it:
    /// a source that does not show it yet (a new primary) would not show the earlier ones either, and `None` is returned.
    async fn read_earlier(&self, held: &mut BatchEvent, sequence: i64) -> Result<Option<Vec<BatchEvent>>, Arc<Error>> {
        let PendingEvent { event, evidence, .. } = &mut held.pending;
        let mut earlier = self.history()?.read_up_to(&event.aggregate, sequence).await?;
        let own = Identity::of(&event.key);
        let is_visible = earlier.iter().any(|found| Identity::of(&found.key) == own);
        earlier.retain(|found| found.sequence < Some(sequence));
        if earlier.is_empty() {
            if !is_visible {
                return Ok(None);
            }
            *evidence = Some(SourceEvidence::First);
        }
        Ok(Some(self.source_events(earlier, Some(SourceEvidence::First)).collect()))
    }

    /// Returns the event with the answer of the source.
    async fn ask_source(&self, mut held: BatchEvent, question: SourceQuestion) -> Result<BatchEvent, Arc<Error>> {
        let PendingEvent { event, evidence, .. } = &mut held.pending;
        let SourceQuestion::SeenBefore { sequence, cursor, cursor_event } = question else { return Ok(held) };
        let history = self.history()?;
        let at_event = history.event_ids_at(&event.aggregate, sequence).await?;
        let at_cursor = history.event_ids_at(&event.aggregate, cursor).await?;
        let is_only = |ids: &[Identity], id: &Identity| ids == [id.clone()];
        let has_event = is_only(&at_event, &Identity::of(&event.key));
        let has_cursor_event = cursor_event.is_some_and(|id| is_only(&at_cursor, &Identity::of(&id)));
        *evidence = Some(match (has_event, has_cursor_event) {
            (true, true) => SourceEvidence::Same { cursor },
            (true, false) => SourceEvidence::EventOnly { cursor },
            (false, true) => SourceEvidence::CursorOnly { cursor },
            (false, false) => SourceEvidence::Different { cursor },
        });
        Ok(held)
    }

    /// Events read from the source; `evidence` is known about the first of them.
    fn source_events(
        &self,
        events: Vec<DeliveredEvent>,
        mut evidence: Option<SourceEvidence>,
    ) -> impl Iterator<Item = BatchEvent> {
        let rules = self.context.runner.rules();
        events.into_iter().map(move |event| {
            let pending = PendingEvent { evidence: evidence.take(), ..PendingEvent::new(event, rules) };
            BatchEvent { index: None, pending }
        })
    }
}

/// Keeps the outcomes up to the first unresolved event.
fn applied_batch(outcomes: Vec<Option<ApplyOutcome>>, end: BatchEnd) -> AppliedBatch {
    AppliedBatch { outcomes: outcomes.into_iter().map_while(|outcome| outcome).collect(), end }
}
