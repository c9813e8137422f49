//! Runs a group of events until each of them has a result, or waits for a locked document.
//!
//! Usually that is one transaction. If the server refuses a statement, the group is split: the culprit's aggregate alone, the others in
//! halves. A transient failure is retried as it is, with jitter, one group of this pod at a time: two that conflict on a hot document would
//! conflict again. If a conflict lasts, somebody holds a document for long. The group is then halved until the aggregates that need the
//! document are alone; they [wait apart](super::blocked_aggregates) while the others get their results.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::blocked_aggregates::BlockedAggregates;
use super::event_results::{EventResult, EventResults};
use super::orphaned_transactions::{self, OrphanedTransactions};
use super::sub_group::{SubGroup, group_by_aggregate};
use crate::failpoints::{Failpoint, LoopStall};
use crate::retry;
use crate::trace::wall_clock;
use crate::view::applier_config::Config;
use crate::view::counters::ApplyCounters;
use crate::view::error::Error;
use crate::view::identity::Identity;
use crate::view::model_set::ModelSetMode;
use crate::view::observer::{ApplyObserver, ApplyTimestamps};
use crate::view::plan::{ApplyOutcome, ApplyRules, PendingEvent, PlannedOutcome};
use crate::view::transaction::{TransactionAttempt, TransactionFailure, TransactionStore};
use crate::view::typed_index::EventIndex;

/// Runs the groups of a pod.
pub(in crate::view) struct TransactionGroupRunner {
    store: TransactionStore,
    rules: ApplyRules,
    counters: Arc<ApplyCounters>,
    retry_for: Duration,
    alone_at_delivery: u32,
    /// Held by the one group that is being retried after a conflict.
    retry_lock: Mutex<()>,
    blocked: BlockedAggregates,
    orphaned: OrphanedTransactions,
    first_events: FirstEventShortcut,
    /// Cancelled when the pod stops: no transaction starts or is retried after that.
    stopping: CancellationToken,
    /// Set before the first event, if at all.
    observer: OnceLock<Arc<dyn ApplyObserver>>,
}

/// Short for a chance conflict, and never so long that a recovered server waits for us.
const FIRST_BACKOFF: Duration = Duration::from_millis(4);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// How long a group waits for the next generation before it tries again.
const OUTDATED_WAIT: Duration = Duration::from_millis(500);

impl TransactionGroupRunner {
    pub(in crate::view) fn new(
        config: &Config,
        store: TransactionStore,
        rules: ApplyRules,
        counters: Arc<ApplyCounters>,
    ) -> Self {
        Self {
            store,
            counters,
            retry_for: config.retry_for,
            alone_at_delivery: config.alone_at_delivery,
            retry_lock: Mutex::new(()),
            blocked: BlockedAggregates::default(),
            orphaned: OrphanedTransactions::new(&rules.naming.pipeline),
            rules,
            first_events: FirstEventShortcut::default(),
            stopping: CancellationToken::new(),
            observer: OnceLock::new(),
        }
    }

    pub(in crate::view) fn rules(&self) -> &ApplyRules {
        &self.rules
    }

    /// The first observer stays.
    pub(in crate::view) fn set_observer(&self, observer: Arc<dyn ApplyObserver>) {
        let _ = self.observer.set(observer);
    }

    pub(in crate::view) fn is_traced(&self) -> bool {
        self.observer.get().is_some_and(|observer| observer.needs_trace())
    }

    pub(in crate::view) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Sets every result that is available soon. Events without one need a locked document: see [`Self::resolve_blocked`].
    pub(in crate::view) async fn resolve(&self, events: &[PendingEvent], results: &mut EventResults) {
        LoopStall::Applier.block_if_enabled().await;
        self.run_all(events, self.initial_sub_groups(events), results).await;
    }

    /// Resolves one aggregate on a locked document; after `retry_for` its events have failed.
    pub(in crate::view) async fn resolve_blocked(
        &self,
        events: &[PendingEvent],
        indices: Vec<EventIndex>,
    ) -> Vec<(EventIndex, EventResult)> {
        let mut results = EventResults::unresolved(events.len());
        let sub_group = SubGroup { conflict_timeout: self.retry_for, ..SubGroup::new(indices) };
        self.run_all(events, vec![sub_group], &mut results).await;
        let results: Vec<_> = results.into_resolved().collect();
        match results.first() {
            Some((index, EventResult::Planned(_))) => self.blocked.clear(&events[*index].identity),
            Some((index, _)) => self.blocked.mark(&events[*index].identity, Instant::now()),
            None => {}
        }
        results
    }

    async fn run_all(&self, events: &[PendingEvent], mut sub_groups: Vec<SubGroup>, results: &mut EventResults) {
        // Splits push onto the same list, so the order does not matter: no aggregate is in two sub-groups.
        while let Some(sub_group) = sub_groups.pop() {
            if self.stopping.is_cancelled() {
                results.set_all(&sub_group.indices, &EventResult::Failed(Arc::new(Error::Stopped)));
                continue;
            }
            match self.run_with_retries(events, &sub_group).await {
                Ok(outcomes) => {
                    for (index, outcome) in outcomes {
                        results.set(index, EventResult::Planned(outcome));
                    }
                }
                Err(TransactionFailure::Refused { culprit: None, error }) if sub_group.one_by_one => {
                    results.set_all(&sub_group.indices, &EventResult::Failed(Arc::new(error)));
                }
                Err(TransactionFailure::Refused { culprit, error }) => {
                    sub_group.isolate_refused(events, culprit, &error, &mut sub_groups);
                }
                Err(TransactionFailure::Unknown) => {
                    self.counters.totals.unknown.fetch_add(1, Relaxed);
                    results.set_all(&sub_group.indices, &EventResult::Unknown);
                }
                Err(TransactionFailure::Transient(error))
                    if error.is_conflict() && sub_group.conflict_timeout < self.retry_for =>
                {
                    match sub_group.split_in_half(events) {
                        Some(halves) => sub_groups.extend(halves),
                        None => self.blocked.mark(&events[sub_group.indices[0]].identity, Instant::now()),
                    }
                }
                Err(TransactionFailure::Transient(error) | TransactionFailure::Fatal(error)) => {
                    results.set_all(&sub_group.indices, &EventResult::Failed(Arc::new(error)));
                }
            }
        }
    }

    /// One sub-group, and one more for each aggregate with an event that was delivered suspiciously often; without blocked aggregates.
    fn initial_sub_groups(&self, events: &[PendingEvent]) -> Vec<SubGroup> {
        let is_suspicious = |pending: &&PendingEvent| pending.event.delivery_count >= self.alone_at_delivery;
        let suspicious: HashSet<&Identity> =
            events.iter().filter(is_suspicious).map(|pending| &pending.identity).collect();
        let identities = events.iter().map(|pending| &pending.identity);
        let (alone, together): (Vec<EventIndex>, Vec<EventIndex>) = self
            .blocked
            .unblocked(identities, Instant::now())
            .into_iter()
            .partition(|index| suspicious.contains(&events[*index].identity));
        let mut sub_groups: Vec<SubGroup> =
            group_by_aggregate(events, &alone).into_iter().map(SubGroup::one_by_one).collect();
        if !together.is_empty() {
            sub_groups.push(SubGroup::new(together));
        }
        sub_groups
    }

    /// Runs one transaction until it is committed, refused, or out of time.
    async fn run_with_retries(
        &self,
        events: &[PendingEvent],
        sub_group: &SubGroup,
    ) -> Result<Vec<(EventIndex, PlannedOutcome)>, TransactionFailure> {
        let SubGroup { indices, refused, one_by_one, conflict_timeout } = sub_group;
        let started = Instant::now();
        let mut failures = 0;
        let mut retry_guard = None;
        loop {
            let Some(models) = self.stopping.run_until_cancelled(self.rules.models.usable()).await else {
                return Err(TransactionFailure::Fatal(Error::Stopped));
            };
            // A retry always reads the cursors: the failure may have been an existing one.
            let is_live = models.mode == ModelSetMode::Live;
            let trust_first_events = is_live && failures == 0 && self.first_events.is_trusted();
            let attempt = TransactionAttempt {
                rules: &self.rules,
                models: &models,
                events,
                indices,
                refused,
                one_by_one: *one_by_one,
                trust_first_events,
            };
            let started_at = wall_clock();
            let error = match self.store.attempt(attempt).await {
                Ok((outcomes, counts)) => {
                    self.counters.record_commit(&models, &counts);
                    self.notify_observer(events, &outcomes, started_at);
                    return Ok(outcomes);
                }
                Err(TransactionFailure::Transient(error)) => error,
                Err(failure) => return Err(failure),
            };
            if trust_first_events && error.is_duplicate_key() {
                self.first_events.distrust();
            }
            let backoff = retry::exponential_delay(failures, FIRST_BACKOFF, MAX_BACKOFF);
            failures += 1;
            let timeout = if error.is_conflict() { (*conflict_timeout).min(self.retry_for) } else { self.retry_for };
            if started.elapsed() + backoff >= timeout {
                return Err(TransactionFailure::Transient(error));
            }
            tracing::debug!(error = %error, events = indices.len(), "transaction failed; retrying");
            if matches!(error, Error::Outdated) {
                // Every group of this pod waits for the same: it needs no lock.
                let loaded = self.rules.models.report_outdated(models.generation, OUTDATED_WAIT);
                if self.stopping.run_until_cancelled(loaded).await.is_none() {
                    return Err(TransactionFailure::Fatal(Error::Stopped));
                }
                continue;
            }
            self.counters.totals.conflicts.fetch_add(1, Relaxed);
            // A blocked aggregate waits long and must not hold the lock. With the failpoint the lock would keep the second half of a batch
            // behind the first.
            let is_blocked = *conflict_timeout >= self.retry_for;
            let back_off = async {
                if retry_guard.is_none() && !is_blocked && !Failpoint::OverlappingTransactions.is_enabled() {
                    retry_guard = Some(self.retry_lock.lock().await);
                }
                if started.elapsed() > orphaned_transactions::CHECK_AFTER {
                    self.orphaned.abort(self.store.database.client()).await;
                }
                sleep(backoff.mul_f64(rand::random_range(0.2..1.0))).await;
            };
            if self.stopping.run_until_cancelled(back_off).await.is_none() {
                return Err(TransactionFailure::Fatal(Error::Stopped));
            }
        }
    }

    fn notify_observer(
        &self,
        events: &[PendingEvent],
        outcomes: &[(EventIndex, PlannedOutcome)],
        started_at: SystemTime,
    ) {
        let Some(observer) = self.observer.get() else { return };
        let committed_at = wall_clock();
        for (index, outcome) in outcomes {
            if let PlannedOutcome::Done(ApplyOutcome::Applied) = outcome {
                let PendingEvent { event, submitted_at, .. } = &events[*index];
                observer
                    .record_applied(event, ApplyTimestamps { submitted_at: *submitted_at, started_at, committed_at });
            }
        }
    }
}

/// Whether an event that claims to be the first of its aggregate is applied without reading the cursor.
#[derive(Default)]
struct FirstEventShortcut {
    groups_to_verify: AtomicU32,
}

/// Redelivered events rarely come alone, so after one the next groups read their cursors.
const VERIFIED_GROUPS: u32 = 100;

impl FirstEventShortcut {
    /// Counts one group.
    fn is_trusted(&self) -> bool {
        self.groups_to_verify.fetch_update(Relaxed, Relaxed, |groups| groups.checked_sub(1)).is_err()
    }

    fn distrust(&self) {
        self.groups_to_verify.store(VERIFIED_GROUPS, Relaxed);
    }
}
