//! The consumer of a pod: accepts sessions and applies their events, in parallel with the other pods.
//!
//! Depends on [`crate::session`] and [`crate::view`], and adds the order of start and stop: read models are validated and prepared before
//! the first accept; sessions end before the applier they use. Needs no lease: Service Bus decides who holds a session, and the cursor
//! what is applied.

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
use crate::error_policy::ErrorClass;
use crate::pause::PauseSwitch;
use crate::session::{self, KnownPlaces, PodRun, SessionAcceptor, SessionProblem};
use crate::signing::MessageKeys;
use crate::source::{SourceConfig, SourceKind};
use crate::stored::ClaimCheckStore;
use crate::view::{
    self, Applier, ApplierSetup, ApplyObserver, Error, ModelSet, PipelineStart, Projection, ReadModel,
    SourceEventReader,
};

/// Consumer settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub session: session::Config,
    pub view: view::Config,
}

/// What the consumer reads from and writes to.
#[derive(Clone)]
pub struct ConsumerDependencies {
    pub pipeline: String,
    pub source: SourceConfig,
    /// The source database, from which missing events are read.
    pub source_database: Database,
    /// Where the pipeline started: whether the first event of an aggregate must be the first one in the source.
    pub start: PipelineStart,
    /// Capture filters event types.
    pub filtered: bool,
    /// The read-model database.
    pub views: Database,
    pub coordination: Database,
    pub bus: servicebus::Client,
    pub topic: String,
    pub subscription: String,
    /// This run of the pod, by which an event that ends pods is found.
    pub pod_run: PodRun,
    /// Only messages signed with one of them are accepted; `None`: signatures are not verified.
    pub message_keys: Option<Arc<MessageKeys>>,
    /// Declared read models; validated against the server before use.
    pub models: Vec<Arc<ReadModel>>,
    /// Read models written in Rust.
    pub projections: Vec<Arc<dyn Projection>>,
}

/// State of the consumer of this pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConsumerState {
    /// Set before and after the run.
    #[default]
    Idle,
    /// Set while read models are validated and prepared.
    Preparing,
    /// Set while sessions are accepted without a problem.
    Consuming,
    /// Set while an operator has paused the consumer: no session is held.
    Paused,
    /// Set while a problem prevents progress; the consumer continues by itself once it is gone.
    Blocked(SessionProblem),
    /// Set when an operator must act: missing rights, a conflicting index.
    Halted(String),
    /// Set while applied messages are settled.
    Stopping,
}

/// How often a halted consumer checks whether the operator has acted.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for closing the connection once the sessions have ended: a hanging bus does not reply.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for the applier once the sessions have ended. It has no work left, unless the sessions were dropped.
const APPLIER_STOP_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Consumer {
    dependencies: ConsumerDependencies,
    applier: Applier,
    acceptor: SessionAcceptor,
    drain_within: Duration,
    phase: watch::Sender<ConsumerState>,
    handle: Handle,
}

/// What the rest of the pod may know about the consumer.
#[derive(Clone)]
pub struct Handle {
    phase: watch::Receiver<ConsumerState>,
    pause: PauseSwitch,
    sessions: session::SessionMonitor,
    applier: view::Handle,
}

/// A snapshot of all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    pub sessions: session::SessionCounts,
    pub events: view::ApplyCounts,
    /// Bytes charged to sessions.
    pub bytes_in_flight: usize,
}

impl Handle {
    pub fn state(&self) -> ConsumerState {
        let phase = self.phase.borrow().clone();
        match (phase, self.sessions.problem()) {
            (ConsumerState::Consuming, _) if self.pause.is_paused() => ConsumerState::Paused,
            (ConsumerState::Consuming, Some(problem)) => ConsumerState::Blocked(problem),
            (phase, _) => phase,
        }
    }

    /// Pauses and resumes the sessions.
    pub fn pause_switch(&self) -> &PauseSwitch {
        &self.pause
    }

    pub fn counts(&self) -> ConsumerCounts {
        ConsumerCounts {
            sessions: self.sessions.counts(),
            events: self.applier.counts(),
            bytes_in_flight: self.sessions.bytes_in_flight(),
        }
    }

    /// Events applied by read model, and when last.
    pub fn models(&self) -> Vec<view::ReadModelCounts> {
        self.applier.models()
    }

    /// The max delivery count of the subscription is another one now.
    pub fn set_max_delivery_count(&self, max: u32) {
        self.applier.set_park_at_delivery(park_at(max).get());
    }

    /// The applier, for the audit to heal with.
    pub fn applier(&self) -> view::Handle {
        self.applier.clone()
    }

    /// When a batch was last applied; `None` before the first.
    pub fn last_progress(&self) -> Option<Instant> {
        self.sessions.last_progress()
    }
}

impl Consumer {
    /// Fails if two read models have one name.
    pub fn new(config: Config, dependencies: ConsumerDependencies) -> Result<Self, Error> {
        let mut projections = dependencies.projections.clone();
        projections.extend(dependencies.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>));
        let mode = config.view.mode(&dependencies.source, dependencies.start, dependencies.filtered);
        let applier = Applier::new(ApplierSetup {
            mode,
            config: config.view,
            database: dependencies.views.clone(),
            pipeline: dependencies.pipeline.clone(),
            by_collection: dependencies.source.kind == SourceKind::Documents,
            models: ModelSet::fixed(projections),
            history: SourceEventReader::new(&dependencies.source_database, &dependencies.source),
        })?;
        let drain_within = config.session.drain_within;
        let acceptor = SessionAcceptor::new(
            config.session,
            session::SessionDependencies {
                bus: dependencies.bus.clone(),
                topic: dependencies.topic.clone(),
                subscription: dependencies.subscription.clone(),
                // Read only: the publisher decides how long bodies are kept.
                oversize: ClaimCheckStore::new(&dependencies.coordination, Duration::ZERO),
                applier: applier.handle(),
                coordination: dependencies.coordination.clone(),
                pipeline: dependencies.pipeline.clone(),
                pod_run: dependencies.pod_run.clone(),
                message_keys: dependencies.message_keys.clone(),
                places: KnownPlaces::new(
                    &dependencies.source,
                    mode,
                    &dependencies.coordination,
                    &dependencies.pipeline,
                ),
            },
        );
        let phase = watch::Sender::default();
        let (sessions, pause) = (acceptor.monitor(), acceptor.pause_switch());
        let handle = Handle { phase: phase.subscribe(), pause, sessions, applier: applier.handle() };
        Ok(Self { dependencies, applier, acceptor, drain_within, phase, handle })
    }

    /// Reports every applied event to `observer`.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn ApplyObserver>) -> Self {
        self.applier = self.applier.with_observer(observer);
        self
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The database of the read models.
    pub fn views(&self) -> &Database {
        &self.dependencies.views
    }

    /// Runs until `stop`, then until applied messages are settled or the time limit is reached. An error means that the declared read models
    /// are invalid.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        self.phase.send_replace(ConsumerState::Preparing);
        let prepared = tokio::select! {
            // cancel-safe: the next start completes a half-finished preparation
            prepared = self.prepare() => prepared,
            () = stop.cancelled() => {
                self.phase.send_replace(ConsumerState::Idle);
                return Ok(());
            }
        };
        prepared.inspect_err(|error| drop(self.phase.send_replace(ConsumerState::Halted(error.to_string()))))?;
        let Self { dependencies, applier, acceptor, drain_within, phase, .. } = self;
        phase.send_replace(ConsumerState::Consuming);
        info!(
            pipeline = dependencies.pipeline,
            subscription = dependencies.subscription,
            "consumer started; accepting sessions"
        );
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
            // The acceptor has already dropped its sessions by now; only closing the connection hangs.
            () = stop_deadline => warn!("service bus connection dropped: close timed out"),
        }
        // No session submits any more; the applier resolves what it has.
        sessions_ended.cancel();
        if timeout(APPLIER_STOP_TIMEOUT, async { while applier_task.join_next().await.is_some() {} }).await.is_err() {
            warn!("transaction dropped: it did not end in time; its events will be redelivered");
            applier_task.shutdown().await;
        }
        phase.send_replace(ConsumerState::Idle);
        Ok(())
    }

    /// Retries until it succeeds. An invalid declaration is an error: only another declaration fixes it.
    async fn prepare(&self) -> Result<(), Error> {
        loop {
            match self.try_prepare().await {
                Ok(()) => return Ok(()),
                Err(error @ (Error::InvalidModels(_) | Error::DuplicateModelName(_))) => return Err(error),
                Err(failed) => {
                    let state = match failed.class() {
                        ErrorClass::Transient => ConsumerState::Preparing,
                        ErrorClass::Permanent | ErrorClass::Fatal => ConsumerState::Halted(error_chain(&failed)),
                    };
                    // Logged once per state, not on every retry.
                    if *self.phase.borrow() != state {
                        error!(
                            pipeline = self.dependencies.pipeline,
                            error = error_chain(&failed),
                            "failed to prepare read models; retrying"
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
        let models = self.handle.applier.models_now();
        let views = &self.dependencies.views;
        view::without_orphans(views.client(), &self.dependencies.pipeline, view::prepare(views, &models)).await
    }
}

impl Config {
    /// Parks an event untried at half of the bus's limit, so that the bus never dead-letters one by itself.
    #[must_use]
    pub fn with_max_delivery_count(mut self, max: u32) -> Self {
        self.view.park_at_delivery = park_at(max);
        self
    }
}

fn park_at(max_delivery_count: u32) -> NonZeroU32 {
    NonZeroU32::new(max_delivery_count / 2).unwrap_or(NonZeroU32::MIN)
}
