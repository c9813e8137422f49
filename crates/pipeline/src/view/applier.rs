//! One per pod: gathers the events of all sessions into transactions.
//!
//! What is handed in waits in a [queue](super::queue) until a transaction takes it. As many as there are connections run side by side,
//! and each session is told when all it handed in is resolved.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mongodb::Database;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::blocked_aggregates::BlockedAggregates;
use super::config::{Config, OnPoison};
use super::counters::{ApplyCounters, ApplyCounts, ReadModelCounts};
use super::cursor::OrderingMode;
use super::cursor_document::CursorNaming;
use super::error::Error;
use super::group::{EventResult, EventResults, GroupRunner, group_by_aggregate};
use super::observer::ApplyObserver;
use super::orphaned_transactions::OrphanedTransactions;
use super::plan::{ApplyRules, PendingEvent};
use super::projection::Projection;
use super::queue::{GroupLimits, Submission, SubmissionQueue, TransactionGroup};
use super::session_applier::SessionApplier;
use super::source_history::SourceHistory;
use super::transaction::TransactionStore;

/// Applies what its [`SessionApplier`]s hand in, while it runs.
pub struct Applier {
    context: Arc<ApplierContext>,
}

/// For sessions, and for who asks how it goes.
#[derive(Clone)]
pub struct Handle {
    pub(super) context: Arc<ApplierContext>,
}

/// What is applied where, and in what order.
pub struct ApplierSetup {
    pub config: Config,
    /// The database of the read models.
    pub database: Database,
    /// The pipeline's name; keys its cursors.
    pub pipeline: String,
    pub mode: OrderingMode,
    /// In a source of documents, the same key in two collections is two aggregates.
    pub by_collection: bool,
    pub models: Vec<Arc<dyn Projection>>,
    /// Where missing events are read; needed where events have a sequence.
    pub history: Option<SourceHistory>,
}

pub(super) struct ApplierContext {
    pub(super) config: Config,
    pub(super) groups: GroupRunner,
    pub(super) history: Option<SourceHistory>,
    pub(super) counters: Arc<ApplyCounters>,
    pub(super) queue: SubmissionQueue,
}

impl Applier {
    /// Two models of one name are refused: an aggregate is parked under it.
    pub fn new(setup: ApplierSetup) -> Result<Self, Error> {
        let ApplierSetup { config, database, pipeline, mode, by_collection, models, history } = setup;
        let mut names: Vec<&str> = models.iter().map(|model| model.name()).collect();
        names.sort_unstable();
        if let Some(duplicate) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::DuplicateModelName(duplicate[0].to_owned()));
        }
        let counters = Arc::new(ApplyCounters::new(models.iter().map(|model| model.name())));
        let orphaned = OrphanedTransactions::new(&pipeline);
        let rules = ApplyRules {
            naming: CursorNaming { pipeline, by_collection },
            mode,
            models,
            dead_letter_poison: config.on_poison == OnPoison::DeadLetter,
            park_at_delivery: config.park_at_delivery.get(),
        };
        let groups = GroupRunner {
            store: TransactionStore { database, within: config.transaction_within },
            rules,
            counters: counters.clone(),
            retry_for: config.retry_for,
            alone_at_delivery: config.alone_at_delivery,
            orphaned,
            retry_lock: tokio::sync::Mutex::new(()),
            blocked: BlockedAggregates::default(),
            verify_first_events: AtomicU32::new(0),
            stopping: CancellationToken::new(),
            observer: OnceLock::new(),
        };
        let limits = GroupLimits {
            statements: config.group_statements,
            bytes: config.group_bytes,
            within: config.group_within,
            groups: config.connections,
        };
        let context = ApplierContext { config, groups, history, counters, queue: SubmissionQueue::new(limits) };
        Ok(Self { context: Arc::new(context) })
    }

    /// One is told, and the first stays.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ApplyObserver>) -> Self {
        let _ = self.context.groups.observer.set(observer);
        self
    }

    pub fn handle(&self) -> Handle {
        Handle { context: self.context.clone() }
    }

    /// Returns after `stop`, when all that was handed in before is resolved. What comes later is told that it failed.
    pub async fn run(self, stop: CancellationToken) {
        let mut workers = JoinSet::new();
        for _ in 0..self.context.config.connections.get() {
            workers.spawn(self.context.clone().run_worker());
        }
        let stopped = async {
            stop.cancelled().await;
            self.context.queue.close();
        };
        tokio::pin!(stopped);
        let mut is_open = true;
        loop {
            tokio::select! {
                () = &mut stopped, if is_open => is_open = false,
                // cancel-safe: join_next. While it is open, a worker only ends by a panic, and those who wait need another.
                ended = workers.join_next() => match ended {
                    Some(Err(error)) => {
                        tracing::error!(error = %error, "a transaction's task ended before its time; another takes its place");
                        workers.spawn(self.context.clone().run_worker());
                    }
                    Some(Ok(())) => {}
                    None => break,
                },
            }
        }
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.context.queue.close();
    }
}

impl Handle {
    /// A session's way in.
    pub fn session_applier(&self) -> SessionApplier {
        SessionApplier::new(self.context.clone())
    }

    /// Whether somebody traces what is applied.
    pub fn is_traced(&self) -> bool {
        self.context.groups.observer.get().is_some_and(|observer| observer.needs_trace())
    }

    pub fn counts(&self) -> ApplyCounts {
        self.context.counters.snapshot()
    }

    /// One for each read model.
    pub fn models(&self) -> Vec<ReadModelCounts> {
        self.context.counters.models()
    }

    /// The pod is about to stop: what has not begun is given back untried, now and from now on, and what fails is not tried again. What is
    /// under way is resolved.
    pub(crate) fn drop_pending(&self) {
        self.context.groups.stopping.cancel();
        self.context.queue.drop_pending();
    }

    /// Returns while there is less in hand than the next transactions take: whoever would bring more sessions need not hurry before. A
    /// few with much to say are served better than many that have said little. Cancel-safe.
    pub(crate) async fn wait_for_capacity(&self) {
        self.context.queue.wait_for_capacity().await;
    }
}

impl ApplierContext {
    async fn run_worker(self: Arc<Self>) {
        // Who conflicts with somebody that holds on waits beside the work, not in it.
        let mut waiting = JoinSet::new();
        while let Some(TransactionGroup { submissions, running }) = self.queue.next().await {
            let mut open = OpenGroup::from_submissions(submissions);
            self.groups.resolve(&open.candidates, &mut open.results).await;
            drop(running);
            if let Some(rest) = open.reply_resolved() {
                waiting.spawn(self.clone().resolve_blocked(rest));
            }
            while waiting.try_join_next().is_some() {}
        }
        while waiting.join_next().await.is_some() {}
    }

    /// Side by side: nobody waits for another's document.
    async fn resolve_blocked(self: Arc<Self>, mut open: OpenGroup) {
        let unresolved: Vec<usize> = (0..open.results.len()).filter(|at| open.results[*at].is_none()).collect();
        let candidates = std::mem::take(&mut open.candidates);
        let aggregates = group_by_aggregate(&candidates, &unresolved).into_iter();
        let mut waits: FuturesUnordered<_> =
            aggregates.map(|places| self.groups.resolve_blocked(&candidates, places)).collect();
        while let Some(results) = waits.next().await {
            for (at, results) in results {
                open.results[at] = Some(results);
            }
            open.send_resolved();
        }
    }
}

/// A group of which not every submission has its answer yet.
struct OpenGroup {
    candidates: Vec<PendingEvent>,
    /// How many events each submission has; in their order.
    event_counts: Vec<usize>,
    replies: Vec<Option<oneshot::Sender<Vec<EventResult>>>>,
    results: EventResults,
}

impl OpenGroup {
    fn from_submissions(group: Vec<Submission>) -> Self {
        let event_counts: Vec<usize> = group.iter().map(|submission| submission.candidates.len()).collect();
        let mut candidates = Vec::with_capacity(event_counts.iter().sum());
        let mut replies = Vec::with_capacity(group.len());
        for submission in group {
            candidates.extend(submission.candidates);
            replies.push(Some(submission.reply));
        }
        let results = vec![None; candidates.len()];
        Self { candidates, event_counts, replies, results }
    }

    /// Answers every submission of which all is known.
    fn send_resolved(&mut self) {
        let mut at = 0;
        for (length, reply) in self.event_counts.iter().zip(&mut self.replies) {
            let results = &mut self.results[at..at + length];
            at += length;
            if results.iter().all(Option::is_some)
                && let Some(reply) = reply.take()
            {
                // A session that has gone meanwhile needs no answer.
                let _ = reply.send(results.iter().flatten().cloned().collect());
            }
        }
    }

    /// Answers what can be answered; what is left holds on to no more than it must.
    fn reply_resolved(mut self) -> Option<Self> {
        self.send_resolved();
        let (mut candidates, mut results) = (self.candidates.into_iter(), self.results.into_iter());
        let mut rest = Self { candidates: vec![], event_counts: vec![], replies: vec![], results: vec![] };
        for (length, reply) in self.event_counts.into_iter().zip(self.replies) {
            let (candidates, results) = (candidates.by_ref().take(length), results.by_ref().take(length));
            if reply.is_some() {
                rest.candidates.extend(candidates);
                rest.results.extend(results);
                rest.event_counts.push(length);
                rest.replies.push(reply);
            } else {
                candidates.zip(results).for_each(drop);
            }
        }
        (!rest.replies.is_empty()).then_some(rest)
    }
}
