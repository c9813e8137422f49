//! One per pod: applies the events of all sessions in transactions.
//!
//! Submitted batches wait in a queue until a transaction takes them. As many transactions run concurrently as there are connections; each
//! session gets its results once all events of its batch are resolved. How groups are formed, retried and split is in
//! [`contention`](super::contention).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mongodb::Database;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::applier_config::{Config, OnPoison};
use super::contention::{
    GroupCommitQueue, GroupLimits, OpenGroup, SessionApplier, TransactionGroup, TransactionGroupRunner,
};
use super::counters::{ApplyCounters, ApplyCounts, ReadModelCounts};
use super::cursor::OrderingMode;
use super::cursor_document::CursorIdScheme;
use super::discarded::DiscardedEvents;
use super::error::Error;
use super::model_set::{CurrentModels, ModelSet};
use super::observer::ApplyObserver;
use super::plan::ApplyRules;
use super::projection::Projection;
use super::source_event_reader::SourceEventReader;
use super::transaction::TransactionStore;
use crate::erasure::ErasedAggregates;
use crate::event::{AggregateId, Namespace};

/// Applies the batches that its [`SessionApplier`]s submit, while it runs.
pub struct Applier {
    context: Arc<ApplierContext>,
}

/// For sessions, and for reading the counters.
#[derive(Clone)]
pub struct Handle {
    pub(super) context: Arc<ApplierContext>,
}

/// What an applier needs: database, models, and the order of events.
pub struct ApplierSetup {
    pub config: Config,
    /// The read-model database.
    pub database: Database,
    /// Name of the pipeline; part of the cursor ids.
    pub pipeline: String,
    pub mode: OrderingMode,
    /// In a source of documents, one key in two collections is two aggregates.
    pub by_collection: bool,
    pub models: ModelSet,
    /// For reading missing events; needed if events have a sequence.
    pub history: Option<SourceEventReader>,
}

pub(super) struct ApplierContext {
    pub(super) config: Config,
    pub(super) runner: TransactionGroupRunner,
    pub(super) history: Option<SourceEventReader>,
    pub(super) counters: Arc<ApplyCounters>,
    pub(super) queue: GroupCommitQueue,
}

impl Applier {
    /// Fails if two models have one name, as aggregates are parked under it.
    pub fn new(setup: ApplierSetup) -> Result<Self, Error> {
        let ApplierSetup { config, database, pipeline, mode, by_collection, models, history } = setup;
        let mut names: Vec<&str> = models.names().collect();
        names.sort_unstable();
        if let Some(duplicate) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::DuplicateModelName(duplicate[0].to_owned()));
        }
        let counters = Arc::new(ApplyCounters::new(models.names()));
        let rules = ApplyRules {
            naming: CursorIdScheme { pipeline, by_collection },
            mode,
            models: CurrentModels::new(models),
            paused: Default::default(),
            erased: Default::default(),
            dead_letter_poison: config.on_poison == OnPoison::DeadLetter,
            discarded: DiscardedEvents::default(),
            park_at_delivery: config.park_at_delivery.get().into(),
        };
        let store = TransactionStore { database, within: config.transaction_within };
        let runner = TransactionGroupRunner::new(&config, store, rules, counters.clone());
        let limits = GroupLimits {
            statements: config.group_statements,
            bytes: config.group_bytes,
            within: config.group_within,
            groups: config.connections,
        };
        let context = ApplierContext { config, runner, history, counters, queue: GroupCommitQueue::new(limits) };
        Ok(Self { context: Arc::new(context) })
    }

    /// Reports applied events to `observer`; the first observer stays.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ApplyObserver>) -> Self {
        self.context.runner.set_observer(observer);
        self
    }

    pub fn handle(&self) -> Handle {
        Handle { context: self.context.clone() }
    }

    /// Returns after `stop`, once all earlier submissions are resolved. Later ones fail.
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
                // cancel-safe: join_next. While the queue is open a worker ends only by a panic, and must be replaced.
                ended = workers.join_next() => match ended {
                    Some(Err(error)) => {
                        tracing::error!(error = %error, "applier worker panicked; starting a replacement");
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
    /// The applier of one session.
    pub fn session_applier(&self) -> SessionApplier {
        SessionApplier::new(self.context.clone())
    }

    /// Whether applied events should carry their trace context.
    pub fn is_traced(&self) -> bool {
        self.context.runner.is_traced()
    }

    /// The next transactions apply this set, unless it is older than the present one.
    pub fn set_models(&self, models: ModelSet) {
        self.context.runner.rules().models.replace(models);
    }

    /// The next transactions queue the events of these read models, by name, instead of applying them.
    pub fn set_paused_models(&self, names: BTreeSet<String>) {
        self.context.runner.rules().paused.set(names);
    }

    /// The next transactions ignore the events of these aggregates. Set it before [`set_models`](Self::set_models): a generation comes with its tombstones.
    pub fn set_erased(&self, erased: ErasedAggregates) {
        self.context.runner.rules().erased.set(erased);
    }

    /// Whether the events of this aggregate are ignored.
    pub(crate) fn is_erased(&self, aggregate: &AggregateId) -> bool {
        let rules = self.context.runner.rules();
        let erased = rules.erased.get();
        // Without a scope: only aggregates of events are asked for.
        !erased.is_empty() && erased.contains(&rules.naming.identity(&Namespace::new("", ""), aggregate))
    }

    /// The read models that transactions apply now.
    pub(crate) fn models_now(&self) -> Vec<Arc<dyn Projection>> {
        let models = self.context.runner.rules().models.get();
        models.models.iter().map(|model| model.projection.clone()).collect()
    }

    /// The generation that transactions apply now.
    pub fn generation(&self) -> u64 {
        self.context.runner.rules().models.get().generation
    }

    /// Notified when a transaction finds that another pod knows a later generation.
    pub fn outdated(&self) -> Arc<Notify> {
        self.context.runner.rules().models.outdated()
    }

    /// For the next transactions.
    pub(crate) fn set_park_at_delivery(&self, delivery_count: u32) {
        self.context.runner.rules().park_at_delivery.store(delivery_count, Relaxed);
    }

    pub fn counts(&self) -> ApplyCounts {
        self.context.counters.snapshot()
    }

    /// Counters by read model.
    pub fn models(&self) -> Vec<ReadModelCounts> {
        self.context.counters.models()
    }

    /// For a pod that stops: drops pending submissions and later ones untried, and ends retries. Running transactions are resolved.
    pub(crate) fn drop_pending(&self) {
        self.context.runner.stop();
        self.context.queue.drop_pending();
    }

    /// Returns when less is pending than the next transactions take, so that more sessions would be of use. Few sessions with many events are
    /// faster than many with few. Cancel-safe.
    pub(crate) async fn wait_for_capacity(&self) {
        self.context.queue.wait_for_capacity().await;
    }
}

impl ApplierContext {
    async fn run_worker(self: Arc<Self>) {
        // Blocked aggregates wait in tasks of their own, so that the worker can take the next group.
        let mut blocked = JoinSet::new();
        while let Some(TransactionGroup { submissions, running }) = self.queue.next().await {
            let mut group = OpenGroup::new(submissions);
            group.resolve(&self.runner).await;
            // Before the replies: the queue may start the next group now.
            drop(running);
            if let Some(rest) = group.into_unresolved() {
                let context = self.clone();
                blocked.spawn(async move { rest.resolve_blocked(&context.runner).await });
            }
            // Only reaps finished tasks.
            while blocked.try_join_next().is_some() {}
        }
        while blocked.join_next().await.is_some() {}
    }
}
