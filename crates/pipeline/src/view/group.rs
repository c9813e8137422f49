//! A group of events, until each of them has an answer.
//!
//! The usual case is one transaction. What the server refuses for good is taken apart: the culprit's aggregate alone, statement by
//! statement, and the others in halves, so that one bad event costs them a few more transactions and nothing else. What fails in passing
//! is run again as it is, with jitter, one group of this pod at a time: two that meet at a hot document would meet again. A conflict that
//! lasts is somebody's who holds a document for long: the group is halved until those who want that document are alone, and they wait
//! apart while the others are answered; [next time](super::stuck) from the beginning.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::blocked_aggregates::BlockedAggregates;
use super::counters::ApplyCounters;
use super::error::Error;
use super::identity::Identity;
use super::observer::{ApplyObserver, ApplyTimings};
use super::orphaned_transactions::{self, OrphanedTransactions};
use super::plan::{ApplyOutcome, ApplyRules, PendingEvent, PlannedOutcome, RefusedStatements};
use super::transaction::{TransactionAttempt, TransactionFailure, TransactionStore};
use crate::failpoints::{Failpoint, LoopStall};
use crate::retry;
use crate::trace::wall_clock;

/// What runs groups; one per pod.
pub(super) struct GroupRunner {
    pub(super) store: TransactionStore,
    pub(super) rules: ApplyRules,
    pub(super) counters: Arc<ApplyCounters>,
    pub(super) retry_for: Duration,
    pub(super) alone_at_delivery: u32,
    pub(super) orphaned: OrphanedTransactions,
    /// Held by the one group that is run again after a conflict.
    pub(super) retry_lock: Mutex<()>,
    pub(super) blocked: BlockedAggregates,
    /// So many more groups take no event's word that it is its aggregate's first: some came again lately.
    pub(super) verify_first_events: AtomicU32,
    /// Cancelled when the pod is about to stop: nothing is begun any more, and nothing tried again.
    pub(super) stopping: CancellationToken,
    /// Set before anything is applied, if at all.
    pub(super) observer: OnceLock<Arc<dyn ApplyObserver>>,
}

/// What a session is told of one event.
#[derive(Clone, Debug)]
pub(super) enum EventResult {
    Planned(PlannedOutcome),
    Failed(Arc<Error>),
    Unknown,
}

/// Some of a group's events, by their places; those of one aggregate are always together.
struct SubGroup {
    indices: Vec<usize>,
    refusals: RefusedStatements,
    strict: bool,
    /// How long conflicts are bad luck.
    conflict_timeout: Duration,
}

/// Answers by place, as far as they are known.
pub(super) type EventResults = Vec<Option<EventResult>>;

/// Soon for what was bad luck, and never so long that a recovered server waits for us.
const FIRST_BACKOFF: Duration = Duration::from_millis(4);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// Live pods that meet at a hot document are done with it far sooner.
const CONFLICT_TIMEOUT: Duration = Duration::from_millis(300);
/// What is delivered again is seldom delivered alone.
const VERIFIED_GROUPS: u32 = 100;
/// For the halves of a group that had more.
const SPLIT_CONFLICT_TIMEOUT: Duration = Duration::from_millis(50);

impl GroupRunner {
    /// Tells all that can be had soon. Who is told nothing conflicts with somebody that holds on: see [`Self::resolve_blocked`].
    pub(super) async fn resolve(&self, candidates: &[PendingEvent], results: &mut EventResults) {
        LoopStall::Applier.block_if_enabled().await;
        self.run_all(candidates, self.initial_parts(candidates), results).await;
    }

    /// One aggregate that was told nothing, as long as it may take; what is not had then has failed.
    pub(super) async fn resolve_blocked(
        &self,
        candidates: &[PendingEvent],
        indices: Vec<usize>,
    ) -> Vec<(usize, EventResult)> {
        let mut results = vec![None; candidates.len()];
        let part = SubGroup { conflict_timeout: self.retry_for, ..SubGroup::of(indices) };
        self.run_all(candidates, vec![part], &mut results).await;
        match results.iter().enumerate().find(|(_, results)| results.is_some()) {
            Some((at, Some(EventResult::Planned(_)))) => self.blocked.clear(&candidates[at].identity),
            Some((at, _)) => self.blocked.mark(&candidates[at].identity, Instant::now()),
            None => {}
        }
        results.into_iter().enumerate().filter_map(|(at, results)| Some((at, results?))).collect()
    }

    async fn run_all(&self, candidates: &[PendingEvent], mut parts: Vec<SubGroup>, results: &mut EventResults) {
        while let Some(part) = parts.pop() {
            if self.stopping.is_cancelled() {
                set_results(results, &part, &EventResult::Failed(Arc::new(Error::Stopped)));
                continue;
            }
            match self.run_with_retries(candidates, &part).await {
                Ok(answers) => {
                    for (at, answer) in answers {
                        results[at] = Some(EventResult::Planned(answer));
                    }
                }
                Err(TransactionFailure::Refused { culprit: None, error }) if part.strict => {
                    set_results(results, &part, &EventResult::Failed(Arc::new(error)));
                }
                Err(TransactionFailure::Refused { culprit, error }) => {
                    isolate_refused(candidates, part, culprit, &error, &mut parts)
                }
                Err(TransactionFailure::Unknown) => {
                    self.counters.totals.unknown.fetch_add(1, Relaxed);
                    set_results(results, &part, &EventResult::Unknown);
                }
                Err(TransactionFailure::Transient(error))
                    if error.is_conflict() && part.conflict_timeout < self.retry_for =>
                {
                    match split_in_half(candidates, &part) {
                        Some(split_in_half) => parts.extend(split_in_half),
                        None => self.blocked.mark(&candidates[part.indices[0]].identity, Instant::now()),
                    }
                }
                Err(TransactionFailure::Transient(error) | TransactionFailure::Fatal(error)) => {
                    set_results(results, &part, &EventResult::Failed(Arc::new(error)));
                }
            }
        }
    }

    /// One part, but for aggregates with an event that was delivered suspiciously often; without those that are stuck.
    fn initial_parts(&self, candidates: &[PendingEvent]) -> Vec<SubGroup> {
        let suspicious = |candidate: &&PendingEvent| candidate.event.delivery_count >= self.alone_at_delivery;
        let alone: HashSet<&Identity> = candidates.iter().filter(suspicious).map(|it| &it.identity).collect();
        let indices = candidates.iter().map(|candidate| &candidate.identity).enumerate();
        let (apart, merge): (Vec<usize>, Vec<usize>) = self
            .blocked
            .unblocked(indices, Instant::now())
            .into_iter()
            .partition(|at| alone.contains(&candidates[*at].identity));
        let mut parts: Vec<SubGroup> =
            group_by_aggregate(candidates, &apart).into_iter().map(SubGroup::strict).collect();
        if !merge.is_empty() {
            parts.push(SubGroup::of(merge));
        }
        parts
    }

    /// Runs one part until it is committed, refused, or given up.
    async fn run_with_retries(
        &self,
        candidates: &[PendingEvent],
        part: &SubGroup,
    ) -> Result<Vec<(usize, PlannedOutcome)>, TransactionFailure> {
        let started = Instant::now();
        let mut failures = 0;
        let mut alone = None;
        loop {
            let SubGroup { indices, refusals, strict, conflict_timeout } = part;
            let trust_first_events = failures == 0 && self.should_trust_first_events();
            let attempt = TransactionAttempt {
                rules: &self.rules,
                candidates,
                part: indices,
                refusals,
                strict: *strict,
                trust_first_events,
            };
            let started_at = wall_clock();
            let error = match self.store.attempt(attempt).await {
                Ok((answers, counts)) => {
                    self.counters.record_commit(&counts);
                    self.notify_observer(candidates, &answers, started_at);
                    return Ok(answers);
                }
                Err(TransactionFailure::Transient(error)) => error,
                Err(failure) => return Err(failure),
            };
            if trust_first_events && error.is_duplicate_key() {
                self.verify_first_events.store(VERIFIED_GROUPS, Relaxed);
            }
            let pause = retry::exponential_delay(failures, FIRST_BACKOFF, MAX_BACKOFF);
            failures += 1;
            let conflict_timeout =
                if error.is_conflict() { (*conflict_timeout).min(self.retry_for) } else { self.retry_for };
            if started.elapsed() + pause >= conflict_timeout {
                return Err(TransactionFailure::Transient(error));
            }
            tracing::debug!(error = %error, events = indices.len(), "run a transaction again");
            self.counters.totals.conflicts.fetch_add(1, Relaxed);
            // Who waits for long does not hold up those who may succeed. With the defect the lock would keep a batch's second half behind its first.
            let waits = part.conflict_timeout >= self.retry_for;
            let back_off = async {
                if alone.is_none() && !waits && !Failpoint::OverlappingTransactions.is_enabled() {
                    alone = Some(self.retry_lock.lock().await);
                }
                if started.elapsed() > orphaned_transactions::CHECK_AFTER {
                    self.orphaned.abort(self.store.database.client()).await;
                }
                sleep(pause.mul_f64(rand::random_range(0.2..1.0))).await;
            };
            if self.stopping.run_until_cancelled(back_off).await.is_none() {
                return Err(TransactionFailure::Fatal(Error::Stopped));
            }
        }
    }

    fn should_trust_first_events(&self) -> bool {
        self.verify_first_events.fetch_update(Relaxed, Relaxed, |groups| groups.checked_sub(1)).is_err()
    }
}

impl GroupRunner {
    fn notify_observer(
        &self,
        candidates: &[PendingEvent],
        answers: &[(usize, PlannedOutcome)],
        started_at: SystemTime,
    ) {
        let Some(observer) = self.observer.get() else { return };
        let committed_at = wall_clock();
        for (at, answer) in answers {
            if let PlannedOutcome::Done(ApplyOutcome::Applied) = answer {
                let PendingEvent { event, submitted_at, .. } = &candidates[*at];
                observer.record_applied(event, ApplyTimings { submitted_at: *submitted_at, started_at, committed_at });
            }
        }
    }
}

impl SubGroup {
    fn of(indices: Vec<usize>) -> Self {
        Self { indices, refusals: RefusedStatements::new(), strict: false, conflict_timeout: CONFLICT_TIMEOUT }
    }

    fn strict(indices: Vec<usize>) -> Self {
        Self { strict: true, ..Self::of(indices) }
    }
}

/// By aggregates; one alone has none.
fn split_in_half(candidates: &[PendingEvent], part: &SubGroup) -> Option<[SubGroup; 2]> {
    let aggregates = group_by_aggregate(candidates, &part.indices);
    let (first, second) = aggregates.split_at(aggregates.len() / 2);
    let half = |aggregates| SubGroup { conflict_timeout: SPLIT_CONFLICT_TIMEOUT, ..merge(aggregates) };
    (!first.is_empty()).then(|| [first, second].map(half))
}

fn merge(aggregates: &[Vec<usize>]) -> SubGroup {
    let mut indices = aggregates.concat();
    indices.sort_unstable();
    SubGroup::of(indices)
}

/// What to run instead of a part that was refused.
fn isolate_refused(
    candidates: &[PendingEvent],
    mut part: SubGroup,
    culprit: Option<(usize, usize)>,
    error: &Error,
    parts: &mut Vec<SubGroup>,
) {
    let aggregates = group_by_aggregate(candidates, &part.indices);
    if let ([_], Some(culprit), true) = (&aggregates[..], culprit, part.strict) {
        // Refused twice, and alone the second time: it is parked in the next run.
        let aggregate = &candidates[culprit.0].event.aggregate;
        tracing::warn!(?aggregate, model = culprit.1, error = %error.detail(), "an event cannot be applied");
        part.refusals.insert(culprit, error.detail());
        return parts.push(part);
    }
    let culprit_identity = culprit.map(|(at, _)| &candidates[at].identity);
    let is_culprit = |indices: &Vec<usize>| culprit_identity == Some(&candidates[indices[0]].identity);
    let (culprits, others): (Vec<_>, Vec<_>) = aggregates.into_iter().partition(is_culprit);
    // One that is left is tried alone, whoever was blamed.
    let (culprits, others) =
        if others.len() == 1 && culprits.is_empty() { (others, vec![]) } else { (culprits, others) };
    let conflict_timeout = part.conflict_timeout;
    parts.extend(culprits.into_iter().map(|indices| SubGroup { conflict_timeout, ..SubGroup::strict(indices) }));
    let half = others.len().div_ceil(2).max(1);
    parts.extend(others.chunks(half).map(|half| SubGroup { conflict_timeout, ..merge(half) }));
}

/// In the order of their first events.
pub(super) fn group_by_aggregate(candidates: &[PendingEvent], indices: &[usize]) -> Vec<Vec<usize>> {
    let mut found: std::collections::HashMap<&Identity, usize> = std::collections::HashMap::new();
    let mut aggregates: Vec<Vec<usize>> = vec![];
    for at in indices {
        let number = *found.entry(&candidates[*at].identity).or_insert_with(|| {
            aggregates.push(vec![]);
            aggregates.len() - 1
        });
        aggregates[number].push(*at);
    }
    aggregates
}

fn set_results(results: &mut EventResults, part: &SubGroup, what: &EventResult) {
    for at in &part.indices {
        results[*at] = Some(what.clone());
    }
}
