//! Applies the batches of one session: one at a time, and none before the previous one is resolved.
//!
//! Questions that only the source can answer (a gap, an event seen before) are asked here, outside any transaction, so that only this
//! session waits for the answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::event_results::EventResult;
use super::group_commit_queue::Submission;
use crate::failpoints::Failpoint;
use crate::retry;
use crate::view::applier::ApplierContext;
use crate::view::cursor::{SourceEvidence, SourceQuestion};
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

/// Delays between polls for missing events.
const FIRST_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_millis(500);

/// An event of the batch, or one read from the source, which has no index.
struct BatchEvent {
    index: Option<BatchIndex>,
    pending: PendingEvent,
}

impl SessionApplier {
    pub(in crate::view) fn new(context: Arc<ApplierContext>) -> Self {
        Self { context, unresolved: vec![] }
    }

    /// Applies a batch in order. Returns when every event is resolved, or when the remaining ones cannot be.
    pub async fn apply(&mut self, events: Vec<DeliveredEvent>) -> AppliedBatch {
        self.await_cancelled_calls().await;
        let mut outcomes: Vec<Option<ApplyOutcome>> = vec![None; events.len()];
        let rules = self.context.runner.rules();
        let indexed = events.into_iter().enumerate();
        let mut waiting: VecDeque<BatchEvent> = indexed
            .map(|(index, event)| BatchEvent {
                index: Some(BatchIndex::new(index)),
                pending: PendingEvent::new(event, rules),
            })
            .collect();
        let mut gaps = GapRepair::default();
        while !waiting.is_empty() {
            let part = self.take_part(&mut waiting);
            let end = match self.submit(&part).await {
                Ok(results) => self.process_results(part, results, &mut outcomes, &mut waiting, &mut gaps).await,
                Err(end) => Some(end),
            };
            if let Some(end) = end {
                return applied_batch(outcomes, end);
            }
        }
        applied_batch(outcomes, BatchEnd::Complete)
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

    /// Records outcomes, and puts undecided events back in front, with the answers of the source.
    async fn process_results(
        &self,
        part: Vec<BatchEvent>,
        results: Vec<EventResult>,
        outcomes: &mut [Option<ApplyOutcome>],
        waiting: &mut VecDeque<BatchEvent>,
        gaps: &mut GapRepair,
    ) -> Option<BatchEnd> {
        let mut undecided: Vec<BatchEvent> = vec![];
        let mut end = None;
        for (event, result) in part.into_iter().zip(results) {
            // Boxed because they are rare: otherwise every session future has their size.
            let answered = match result {
                EventResult::Planned(PlannedOutcome::Done(outcome)) => {
                    if let Some(index) = event.index {
                        outcomes[index.get()] = Some(outcome);
                    }
                    continue;
                }
                EventResult::Planned(PlannedOutcome::Blocked) => Ok(vec![event]),
                EventResult::Planned(PlannedOutcome::Gap { from, to }) => {
                    Box::pin(self.fill_gap(event, from, to, gaps)).await
                }
                EventResult::Planned(PlannedOutcome::NeedsSource(question)) => {
                    Box::pin(self.ask_source(event, question)).await
                }
                EventResult::Failed(error) => Err(error),
                // Outweighs a failure: these events may have been applied.
                EventResult::Unknown => {
                    end = Some(BatchEnd::Unknown);
                    continue;
                }
            };
            match answered {
                Ok(events) => undecided.extend(events),
                Err(error) => end = end.or(Some(BatchEnd::Failed(error))),
            }
        }
        for event in undecided.into_iter().rev() {
            waiting.push_front(event);
        }
        end
    }

    fn history(&self) -> Result<&SourceEventReader, Error> {
        self.context.history.as_ref().ok_or(Error::Unreadable {
            what: "source",
            field: "sequence",
            problem: "cannot be looked up: the applier has no source history",
        })
    }

    /// Returns the missing events and then `held`. If the source does not have them, waits; after `gap_timeout`, marks `held` for parking.
    async fn fill_gap(
        &self,
        mut held: BatchEvent,
        from: i64,
        to: i64,
        gaps: &mut GapRepair,
    ) -> Result<Vec<BatchEvent>, Arc<Error>> {
        let PendingEvent { event, identity, is_unhealable, .. } = &mut held.pending;
        let missing = self.history()?.read_range(&event.aggregate, from, to).await?;
        if missing.first().is_some_and(|first| first.sequence == Some(from)) {
            if gaps.being_healed.as_ref() != Some(identity) {
                self.context.counters.totals.gaps_healed.fetch_add(1, Relaxed);
                tracing::info!(aggregate = ?event.aggregate, from, to, "healing sequence gap from the source");
            }
            gaps.being_healed = Some(identity.clone());
            return Ok(self.source_events(missing, None).chain([held]).collect());
        }
        let gap = gaps.unfilled(identity, from);
        if gap.since.elapsed() < self.context.config.gap_timeout {
            sleep(gap.next_poll_delay()).await;
        } else {
            tracing::warn!(aggregate = ?event.aggregate, from, to, "the source does not have the missing events; parking the aggregate");
            *is_unhealable = true;
        }
        Ok(vec![held])
    }

    /// Returns `held` with the answer of the source, after any earlier events.
    async fn ask_source(&self, mut held: BatchEvent, question: SourceQuestion) -> Result<Vec<BatchEvent>, Arc<Error>> {
        let PendingEvent { event, evidence, .. } = &mut held.pending;
        let history = self.history()?;
        let mut earlier = vec![];
        match question {
            SourceQuestion::IsFirst { sequence } => {
                earlier = history.read_below(&event.aggregate, sequence).await?;
                if earlier.is_empty() {
                    *evidence = Some(SourceEvidence::First);
                }
            }
            SourceQuestion::SeenBefore { sequence, cursor, cursor_event } => {
                let at_event = history.event_ids_at(&event.aggregate, sequence).await?;
                let at_cursor = history.event_ids_at(&event.aggregate, cursor).await?;
                let is_only = |ids: &[Identity], id: &Identity| ids == [id.clone()];
                let is_same = is_only(&at_event, &Identity::of(&event.key))
                    && cursor_event.is_some_and(|id| is_only(&at_cursor, &Identity::of(&id)));
                *evidence =
                    Some(if is_same { SourceEvidence::Same { cursor } } else { SourceEvidence::Different { cursor } });
            }
        }
        Ok(self.source_events(earlier, Some(SourceEvidence::First)).chain([held]).collect())
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

/// The gaps of one batch.
#[derive(Default)]
struct GapRepair {
    /// The aggregate whose gap is healed page by page: counted once.
    being_healed: Option<Identity>,
    unfilled: HashMap<Identity, UnfilledGap>,
}

/// A gap that the source has not filled yet.
struct UnfilledGap {
    from: i64,
    since: Instant,
    polls: u32,
}

impl GapRepair {
    fn unfilled(&mut self, aggregate: &Identity, from: i64) -> &mut UnfilledGap {
        let new = || UnfilledGap { from, since: Instant::now(), polls: 0 };
        let gap = self.unfilled.entry(aggregate.clone()).or_insert_with(new);
        if gap.from != from {
            *gap = new();
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

/// Keeps the outcomes up to the first unresolved event.
fn applied_batch(outcomes: Vec<Option<ApplyOutcome>>, end: BatchEnd) -> AppliedBatch {
    AppliedBatch { outcomes: outcomes.into_iter().map_while(|outcome| outcome).collect(), end }
}
