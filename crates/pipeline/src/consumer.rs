//! A pod's share in applying: sessions accepted, their events applied, side by side with every other pod.
//!
//! Leans on [`crate::session`] and [`crate::view`], and adds the order in which they begin and end: read models are checked and made
//! ready before the first session is accepted; sessions end before the applier they feed. Needs no lease: who holds a session is the bus's
//! to say, and what was applied the cursor's.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Database;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error_chain::error_chain;
use crate::publish::ClaimCheckStore;
use crate::retry::ErrorClass;
use crate::session::{self, SessionAcceptor, SessionProblem};
use crate::source::{SourceConfig, SourceKind};
use crate::view::{
    self, Applier, ApplierSetup, ApplyObserver, Error, PipelineStart, Projection, ReadModel, SourceHistory,
};

/// What can be set about consuming.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub session: session::Config,
    pub view: view::Config,
}

/// Where the consumer reads and writes.
#[derive(Clone)]
pub struct ConsumerDependencies {
    pub pipeline: String,
    pub source: SourceConfig,
    /// The database of the source, where missing events are read.
    pub source_database: Database,
    /// Where the pipeline began: whether an aggregate's first event must be the first the source holds.
    pub start: PipelineStart,
    /// Capture leaves event types out.
    pub filtered: bool,
    /// The database of the read models.
    pub views: Database,
    pub coordination: Database,
    pub bus: servicebus::Client,
    pub topic: String,
    pub subscription: String,
    /// Declared read models, checked against the server before they are used.
    pub models: Vec<Arc<ReadModel>>,
    /// Read models written in Rust.
    pub projections: Vec<Arc<dyn Projection>>,
}

/// Where the consumer of this pod stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConsumerState {
    /// Set before it runs, and after.
    #[default]
    Idle,
    /// Set while read models are checked and made ready.
    Preparing,
    /// Set while sessions are accepted and nothing stands in the way.
    Consuming,
    /// Set while something stands in the way; it goes on by itself when that is gone.
    Blocked(SessionProblem),
    /// Set when only an operator can mend it: rights, an index that differs.
    Halted(String),
    /// Set while what is in hand is settled.
    Stopping,
}

/// How often a halted consumer looks whether an operator has acted.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What saying good-bye to the bus may take, when sessions have ended or were cut short: one that hangs does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the applier may still take when the sessions have ended: nothing is left to be done, unless they were cut short.
const APPLIER_STOP_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Consumer {
    dependencies: ConsumerDependencies,
    projections: Vec<Arc<dyn Projection>>,
    applier: Applier,
    acceptor: SessionAcceptor,
    drain_within: Duration,
    phase: watch::Sender<ConsumerState>,
    handle: Handle,
}

/// What the rest of the pod may know of the consumer.
#[derive(Clone)]
pub struct Handle {
    phase: watch::Receiver<ConsumerState>,
    sessions: session::SessionMonitor,
    applier: view::Handle,
}

/// A look at all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    pub sessions: session::SessionCounts,
    pub events: view::ApplyCounts,
}

impl Handle {
    pub fn state(&self) -> ConsumerState {
        let phase = self.phase.borrow().clone();
        match (phase, self.sessions.problem()) {
            (ConsumerState::Consuming, Some(problem)) => ConsumerState::Blocked(problem),
            (phase, _) => phase,
        }
    }

    pub fn counts(&self) -> ConsumerCounts {
        ConsumerCounts { sessions: self.sessions.counts(), events: self.applier.counts() }
    }

    /// What was applied in each read model, and when last.
    pub fn models(&self) -> Vec<view::ReadModelCounts> {
        self.applier.models()
    }

    /// When a batch was last dealt with; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        self.sessions.last_progress()
    }
}

impl Consumer {
    /// Two read models of one name are refused.
    pub fn new(config: Config, dependencies: ConsumerDependencies) -> Result<Self, Error> {
        let mut projections = dependencies.projections.clone();
        projections.extend(dependencies.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>));
        let applier = Applier::new(ApplierSetup {
            mode: config.view.mode(&dependencies.source, dependencies.start, dependencies.filtered),
            config: config.view,
            database: dependencies.views.clone(),
            pipeline: dependencies.pipeline.clone(),
            by_collection: dependencies.source.kind == SourceKind::Documents,
            models: projections.clone(),
            history: SourceHistory::new(&dependencies.source_database, &dependencies.source),
        })?;
        let drain_within = config.session.drain_within;
        let acceptor = SessionAcceptor::new(
            config.session,
            session::SessionDependencies {
                bus: dependencies.bus.clone(),
                topic: dependencies.topic.clone(),
                subscription: dependencies.subscription.clone(),
                // Only reads: how long bodies are kept is the publisher's to say.
                oversize: ClaimCheckStore::new(&dependencies.coordination, Duration::ZERO),
                applier: applier.handle(),
            },
        );
        let phase = watch::Sender::default();
        let handle = Handle { phase: phase.subscribe(), sessions: acceptor.monitor(), applier: applier.handle() };
        Ok(Self { dependencies, projections, applier, acceptor, drain_within, phase, handle })
    }

    /// Who is told of every event that is applied.
    #[must_use]
    pub fn with_observer(mut self, witness: Arc<dyn ApplyObserver>) -> Self {
        self.applier = self.applier.with_observer(witness);
        self
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `stop`, and then until what is in hand is settled or the time for that is over. An error means that the read models,
    /// as they are declared, cannot be used.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        self.phase.send_replace(ConsumerState::Preparing);
        let prepared = tokio::select! {
            // cancel-safe: what is half made is made whole by the next start
            prepared = self.prepare() => prepared,
            () = stop.cancelled() => {
                self.phase.send_replace(ConsumerState::Idle);
                return Ok(());
            }
        };
        prepared.inspect_err(|error| drop(self.phase.send_replace(ConsumerState::Halted(error.to_string()))))?;
        let Self { dependencies, applier, acceptor, drain_within, phase, .. } = self;
        phase.send_replace(ConsumerState::Consuming);
        info!(pipeline = dependencies.pipeline, subscription = dependencies.subscription, "accepting sessions");
        let sessions_ended = CancellationToken::new();
        let mut applier_task = JoinSet::new();
        applier_task.spawn(applier.run(sessions_ended.clone()));
        let stop_deadline = async {
            stop.cancelled().await;
            phase.send_replace(ConsumerState::Stopping);
            sleep(drain_within + CLOSE_TIMEOUT).await;
        };
        tokio::select! {
            () = acceptor.run(stop.clone()) => {}
            // Sessions were cut when their time was over; what is left is a bus that is waited for.
            () = stop_deadline => warn!("the bus was left without a good-bye: it did not answer in time"),
        }
        // Nobody hands anything in any more; what was handed in is resolved.
        sessions_ended.cancel();
        if timeout(APPLIER_STOP_TIMEOUT, async { while applier_task.join_next().await.is_some() {} }).await.is_err() {
            warn!("a transaction is dropped that did not end in time; its events come again");
            applier_task.shutdown().await;
        }
        phase.send_replace(ConsumerState::Idle);
        Ok(())
    }

    /// Checks and makes ready, until it succeeds. Mistakes in what is declared are an error: only another declaration mends them.
    async fn prepare(&self) -> Result<(), Error> {
        loop {
            match self.try_prepare().await {
                Ok(()) => return Ok(()),
                Err(error @ (Error::InvalidModels(_) | Error::DuplicateModelName(_))) => return Err(error),
                Err(failed) => {
                    let state = match failed.verdict() {
                        ErrorClass::Transient => ConsumerState::Preparing,
                        ErrorClass::Permanent | ErrorClass::Fatal => ConsumerState::Halted(error_chain(&failed)),
                    };
                    if *self.phase.borrow() != state {
                        error!(
                            pipeline = self.dependencies.pipeline,
                            error = error_chain(&failed),
                            "read models cannot be made ready"
                        );
                        self.phase.send_replace(state);
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_prepare(&self) -> Result<(), Error> {
        let mut problems = vec![];
        for model in &self.dependencies.models {
            problems.extend(view::validate(&self.dependencies.views, model).await?);
        }
        if !problems.is_empty() {
            return Err(Error::InvalidModels(problems));
        }
        view::prepare(&self.dependencies.views, &self.projections).await
    }
}

impl Config {
    /// An event is parked untried at half of what the bus allows, so that the bus never dead-letters one by itself.
    #[must_use]
    pub fn with_max_delivery_count(mut self, max: u32) -> Self {
        self.view.park_at_delivery = NonZeroU32::new(max / 2).unwrap_or(NonZeroU32::MIN);
        self
    }
}
