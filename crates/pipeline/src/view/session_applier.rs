//! A session's way into the applier: one batch at a time, and none before the last is resolved.
//!
//! What only the source can say (a gap, an event seen before) is asked here, outside any transaction: only this session waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::applier::ApplierContext;
use super::cursor::{SourceEvidence, SourceQuestion};
use super::delivered_event::DeliveredEvent;
use super::error::Error;
use super::group::EventResult;
use super::identity::Identity;
use super::plan::{ApplyOutcome, PendingEvent, PlannedOutcome};
use super::queue::Submission;
use super::source_history::SourceHistory;
use crate::failpoints::Failpoint;
use crate::retry;

/// Takes `&mut` to apply, so that a session cannot have two transactions under way. A call that was dropped half-way is waited for by
/// the next.
pub struct SessionApplier {
    context: Arc<ApplierContext>,
    /// Answers that a dropped call did not wait for.
    unresolved: Vec<oneshot::Receiver<Vec<EventResult>>>,
}

/// What became of a batch.
#[derive(Debug)]
pub struct AppliedBatch {
    /// Of the batch's first events, in order: these may be settled, each as its outcome says.
    pub outcomes: Vec<ApplyOutcome>,
    /// Of the rest.
    pub end: BatchEnd,
}

/// How a batch ended.
#[derive(Clone, Debug)]
pub enum BatchEnd {
    /// There is no rest.
    Complete,
    /// It is not known whether the rest was applied. Drop the session's buffer and accept it again: the cursor knows.
    Unknown,
    /// The rest was not applied. Drop the session's buffer and accept it again, at once or when an operator has acted: see
    /// [`Error::class`].
    Failed(Arc<Error>),
}

/// Pauses between looks for what is missing.
const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_millis(500);

/// An event with its place in the batch; none for one that was read from the source.
struct BatchEvent {
    at: Option<usize>,
    candidate: PendingEvent,
}

impl SessionApplier {
    pub(super) fn new(context: Arc<ApplierContext>) -> Self {
        Self { context, unresolved: vec![] }
    }

    /// Applies a batch of one session, in order. Returns when every event is resolved, or none of the rest can be.
    pub async fn apply(&mut self, events: Vec<DeliveredEvent>) -> AppliedBatch {
        self.await_abandoned_calls().await;
        let mut outcomes: Vec<Option<ApplyOutcome>> = vec![None; events.len()];
        let rules = &self.context.groups.rules;
        let batch_event = events.into_iter().enumerate();
        let mut pending: VecDeque<BatchEvent> = batch_event
            .map(|(at, event)| BatchEvent { at: Some(at), candidate: PendingEvent::new(event, rules) })
            .collect();
        let mut repair = GapRepair::default();
        while !pending.is_empty() {
            let batch = self.take_batch(&mut pending);
            let end = match self.submit(&batch).await {
                Ok(results) => self.process_results(batch, results, &mut outcomes, &mut pending, &mut repair).await,
                Err(end) => Some(end),
            };
            if let Some(end) = end {
                return finish(outcomes, end);
            }
        }
        finish(outcomes, BatchEnd::Complete)
    }

    /// As many as one transaction takes.
    fn take_batch(&self, pending: &mut VecDeque<BatchEvent>) -> Vec<BatchEvent> {
        let (mut bytes, mut statements) = (0, 0);
        let mut batch: Vec<BatchEvent> = vec![];
        while let Some(next) = pending.front() {
            bytes += next.candidate.event.body.len();
            statements += next.candidate.weight;
            let fits = statements <= self.context.queue.max_statements() && bytes <= self.context.config.group_bytes;
            if !fits && !batch.is_empty() {
                break;
            }
            batch.extend(pending.pop_front());
        }
        batch
    }

    async fn submit(&mut self, batch: &[BatchEvent]) -> Result<Vec<EventResult>, BatchEnd> {
        let candidates: Vec<PendingEvent> = batch.iter().map(|batch_event| batch_event.candidate.clone()).collect();
        let mut submissions = vec![candidates];
        if Failpoint::OverlappingTransactions.is_enabled() {
            let half = submissions[0].len() / 2;
            let second = submissions[0].split_off(half);
            submissions.push(second);
        }
        for candidates in submissions.into_iter().filter(|piece| !piece.is_empty()) {
            let (reply, results) = oneshot::channel();
            self.unresolved.push(results);
            self.context.queue.submit(Submission { candidates, reply, submitted_at: Instant::now() });
        }
        let mut results = vec![];
        while let Some(receiver) = self.unresolved.first_mut() {
            let received = receiver.await;
            self.unresolved.remove(0);
            results.extend(received.map_err(|_| BatchEnd::Failed(Arc::new(Error::Stopped)))?);
        }
        Ok(results)
    }

    async fn await_abandoned_calls(&mut self) {
        while let Some(receiver) = self.unresolved.first_mut() {
            let _ = receiver.await;
            self.unresolved.remove(0);
        }
    }

    /// Writes down what is done, and puts what is held back in front of what waits, with what the source says of it.
    async fn process_results(
        &self,
        batch: Vec<BatchEvent>,
        results: Vec<EventResult>,
        outcomes: &mut [Option<ApplyOutcome>],
        pending: &mut VecDeque<BatchEvent>,
        repair: &mut GapRepair,
    ) -> Option<BatchEnd> {
        let mut retry: Vec<BatchEvent> = vec![];
        let mut end = None;
        for (batch_event, results) in batch.into_iter().zip(results) {
            match results {
                EventResult::Planned(PlannedOutcome::Done(outcome)) => {
                    if let Some(at) = batch_event.at {
                        outcomes[at] = Some(outcome);
                    }
                }
                EventResult::Planned(PlannedOutcome::Blocked) => retry.push(batch_event),
                // Boxed, as they are seldom: every session would carry the room for them.
                EventResult::Planned(PlannedOutcome::Gap { from, to }) => {
                    match Box::pin(self.fill_gap(&batch_event, from, to, repair)).await {
                        Ok(HeldEvent { predecessors, held }) => retry.extend(predecessors.into_iter().chain([held])),
                        Err(error) => end = end.or(Some(BatchEnd::Failed(Arc::new(error)))),
                    }
                }
                EventResult::Planned(PlannedOutcome::NeedsSource(question)) => {
                    match Box::pin(self.ask_source(&batch_event, question)).await {
                        Ok(HeldEvent { predecessors, held }) => retry.extend(predecessors.into_iter().chain([held])),
                        Err(error) => end = end.or(Some(BatchEnd::Failed(Arc::new(error)))),
                    }
                }
                EventResult::Failed(error) => end = end.or(Some(BatchEnd::Failed(error))),
                // What may have been applied weighs more than what was not.
                EventResult::Unknown => end = Some(BatchEnd::Unknown),
            }
        }
        for batch_event in retry.into_iter().rev() {
            pending.push_front(batch_event);
        }
        end
    }

    fn history(&self) -> Result<&SourceHistory, Error> {
        self.context.history.as_ref().ok_or(Error::Unreadable {
            what: "source",
            field: "sequence",
            problem: "cannot be asked for: the applier was given no history",
        })
    }

    /// Reads what is missing; when the source does not have it, waits, and at last lets the event be parked.
    async fn fill_gap(
        &self,
        held: &BatchEvent,
        from: i64,
        to: i64,
        repair: &mut GapRepair,
    ) -> Result<HeldEvent, Error> {
        let event = &held.candidate.event;
        let found = self.history()?.read_range(&event.aggregate, from, to).await?;
        if found.first().is_some_and(|first| first.sequence == Some(from)) {
            if repair.aggregate.as_ref() != Some(&held.candidate.identity) {
                self.context.counters.totals.gaps_healed.fetch_add(1, Relaxed);
                tracing::info!(aggregate = ?event.aggregate, from, to, "a gap is healed from the source");
            }
            repair.aggregate = Some(held.candidate.identity.clone());
            return Ok(HeldEvent { predecessors: self.batch_event(found, None), held: held.retry() });
        }
        let gap = repair.unfilled_gap(&held.candidate.identity, from);
        if gap.since.elapsed() < self.context.config.gap_timeout {
            sleep(gap.next_poll_delay()).await;
            return Ok(HeldEvent { predecessors: vec![], held: held.retry() });
        }
        tracing::warn!(aggregate = ?event.aggregate, from, to, "the source does not have what is missing");
        let mut parked = held.retry();
        parked.candidate.is_unhealable = true;
        Ok(HeldEvent { predecessors: vec![], held: parked })
    }

    async fn ask_source(&self, held: &BatchEvent, question: SourceQuestion) -> Result<HeldEvent, Error> {
        let event = &held.candidate.event;
        let mut held = held.retry();
        let mut predecessors = vec![];
        match question {
            SourceQuestion::IsFirst { sequence } => {
                let below = self.history()?.read_below(&event.aggregate, sequence).await?;
                if below.is_empty() {
                    held.candidate.evidence = Some(SourceEvidence::First);
                }
                predecessors = self.batch_event(below, Some(SourceEvidence::First));
            }
            SourceQuestion::SeenBefore { sequence, cursor, cursor_event } => {
                let history = self.history()?;
                let theirs = history.event_ids_at(&event.aggregate, sequence).await?;
                let ours = history.event_ids_at(&event.aggregate, cursor).await?;
                let holds = |ids: &[Identity], id: &Identity| ids == [id.clone()];
                let same = holds(&theirs, &Identity::of(&event.key))
                    && cursor_event.is_some_and(|id| holds(&ours, &Identity::of(&id)));
                held.candidate.evidence =
                    Some(if same { SourceEvidence::Same { cursor } } else { SourceEvidence::Different { cursor } });
            }
        }
        Ok(HeldEvent { predecessors, held })
    }

    /// Events from the source; `of_first` is known of the first of them.
    fn batch_event(&self, events: Vec<DeliveredEvent>, of_first: Option<SourceEvidence>) -> Vec<BatchEvent> {
        let rules = &self.context.groups.rules;
        let candidates = events.into_iter().map(|event| PendingEvent::new(event, rules));
        let mut batch_event: Vec<BatchEvent> = candidates.map(|candidate| BatchEvent { at: None, candidate }).collect();
        if let Some(first) = batch_event.first_mut() {
            first.candidate.evidence = of_first;
        }
        batch_event
    }
}

impl BatchEvent {
    fn retry(&self) -> Self {
        Self { at: self.at, candidate: self.candidate.clone() }
    }
}

/// An event that was held back, and what is to be applied before it.
struct HeldEvent {
    predecessors: Vec<BatchEvent>,
    held: BatchEvent,
}

/// Since when a gap is looked at in vain.
#[derive(Default)]
struct GapRepair {
    /// Whose gap is being filled page by page: counted once.
    aggregate: Option<Identity>,
    gap: HashMap<Identity, UnfilledGap>,
}

/// A gap that the source does not fill.
struct UnfilledGap {
    from: i64,
    since: Instant,
    polls: u32,
}

impl GapRepair {
    fn unfilled_gap(&mut self, identity: &Identity, from: i64) -> &mut UnfilledGap {
        let fresh = || UnfilledGap { from, since: Instant::now(), polls: 0 };
        let gap = self.gap.entry(identity.clone()).or_insert_with(fresh);
        if gap.from != from {
            *gap = fresh();
        }
        gap
    }
}

impl UnfilledGap {
    fn next_poll_delay(&mut self) -> Duration {
        self.polls += 1;
        retry::exponential_delay(self.polls, FIRST_POLL, MAX_POLL)
    }
}

/// The batch's first events that are resolved.
fn finish(outcomes: Vec<Option<ApplyOutcome>>, end: BatchEnd) -> AppliedBatch {
    AppliedBatch { outcomes: outcomes.into_iter().map_while(|outcome| outcome).collect(), end }
}
