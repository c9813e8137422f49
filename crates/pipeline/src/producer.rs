//! The work of a leader during one term: claims the checkpoint, then captures and publishes until the term ends.
//!
//! Combines [`crate::capture`], [`crate::publish`] and [`crate::checkpoint`]: their start and stop order, and the response to their errors. Never
//! steps down for a problem that another pod would have too: on lost history, or a source that cannot be captured, the leader halts, reports
//! it, and polls until an operator has acted.

mod checkpoint_watch;
mod error;
mod identity;
mod retry_loop;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lease::{Leadership, TermOutcome};
use mongodb::{Client, Database};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::capture::{self, Capture, StartPosition};
use crate::checkpoint::{
    self, Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, MongoCheckpointStore, PipelineIdentity,
    ReplayCounter,
};
use crate::error_chain::error_chain;
use crate::event::{Epoch, Term};
use crate::pause::PauseSwitch;
use crate::publish::{
    self, PublishClaim, PublishEnd, PublishTracer, Publisher, PublisherStores, RejectedStore, ServiceBusTopic,
};
use crate::signing::MessageKeys;
use crate::source::{SourceConfig, read_cluster_id};
use crate::stored::ClaimCheckStore;

use error::Error;
use identity::check_identity;
use retry_loop::{retry_transient, retry_until_ok};

/// Settings of the producer.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub start: StartPosition,
    pub on_history_lost: OnHistoryLost,
    pub capture: capture::Config,
    pub publish: publish::Config,
}

/// The response to lost history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHistoryLost {
    /// Halts: an operator decides whether to read everything again.
    #[default]
    Halt,
    /// Reads the whole source again, in a new epoch.
    Snapshot,
}

/// The servers and names that the producer uses.
#[derive(Clone)]
pub struct ProducerDependencies {
    pub pipeline: String,
    pub pod_id: String,
    pub source: SourceConfig,
    /// The server that holds the source.
    pub server: Client,
    pub coordination: Database,
    pub bus: servicebus::Client,
    pub topic: String,
    pub subscription: String,
    /// Messages are signed with them; `None`: they are not signed.
    pub message_keys: Option<Arc<MessageKeys>>,
}

/// The state of this pod's producer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProducerState {
    /// Set while this pod does not lead.
    #[default]
    Standby,
    /// Set when a term starts, until the start position is known.
    Starting { term: Term },
    /// Set while events are captured and published.
    Running { term: Term, epoch: Epoch },
    /// Set while the term ends and captured events are published.
    Stopping { term: Term },
    /// Set while an operator has paused the producer. The pod keeps the lease: another pod would pause too.
    Paused { term: Term },
    /// Set when an operator must act. The pod keeps the lease: another pod would halt too.
    Halted { term: Term, why: HaltReason },
}

/// Why the producer halts. Each reason has an error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HaltReason {
    /// The oplog no longer holds the events after the checkpoint: `docs/errors/E0001.md`.
    HistoryLost,
    /// The source cannot be captured, or not from the configured start: `docs/errors/E0002.md`.
    Source(String),
    /// The checkpoint cannot be used: `docs/errors/E0003.md`.
    Checkpoint(String),
}

impl HaltReason {
    pub fn page(&self) -> &'static str {
        match self {
            Self::HistoryLost => "E0001",
            Self::Source(_) => "E0002",
            Self::Checkpoint(_) => "E0003",
        }
    }
}

/// How often a halted leader checks whether an operator has acted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a pod checks that the checkpoint belongs to the cluster of its source.
const CLUSTER_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between attempts on a source that cannot be captured; each attempt opens a change stream.
const SOURCE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

pub struct Producer {
    config: Config,
    dependencies: ProducerDependencies,
    views: Option<Database>,
    tracer: Option<Arc<dyn PublishTracer>>,
    checkpoints: Arc<MongoCheckpointStore>,
    pause: PauseSwitch,
    state: watch::Sender<ProducerState>,
    publishing: publish::Handle,
    capturing: watch::Sender<Option<capture::Handle>>,
}

/// Read access to the producer for the rest of the pod.
#[derive(Clone)]
pub struct Handle {
    state: watch::Receiver<ProducerState>,
    pause: PauseSwitch,
    publishing: publish::Handle,
    capturing: watch::Receiver<Option<capture::Handle>>,
}

impl Handle {
    pub fn state(&self) -> ProducerState {
        self.state.borrow().clone()
    }

    pub fn states(&self) -> watch::Receiver<ProducerState> {
        self.state.clone()
    }

    /// Pauses and resumes publishing.
    pub fn pause_switch(&self) -> &PauseSwitch {
        &self.pause
    }

    pub fn publish_handle(&self) -> &publish::Handle {
        &self.publishing
    }

    /// Of the current or last term; `None` if this pod never led.
    pub fn capture_handle(&self) -> Option<capture::Handle> {
        self.capturing.borrow().clone()
    }
}

impl Producer {
    pub fn new(config: Config, dependencies: ProducerDependencies) -> Self {
        let ProducerDependencies { pipeline, source, coordination, .. } = &dependencies;
        let checkpoints = Arc::new(MongoCheckpointStore::new(coordination, pipeline, source.fingerprint()));
        let (state, capturing) = (watch::Sender::default(), watch::Sender::default());
        let (publishing, pause) = (publish::Handle::default(), PauseSwitch::default());
        Self { config, checkpoints, pause, state, publishing, capturing, dependencies, views: None, tracer: None }
    }

    /// Sets the tracer, which receives a trace of each sampled event.
    #[must_use]
    pub fn with_tracer(self, tracer: Option<Arc<dyn PublishTracer>>) -> Self {
        Self { tracer, ..self }
    }

    /// Sets the database of the read models. A snapshot of `documents` then ends with a delete for every key that the read models hold and
    /// the source no longer has.
    #[must_use]
    pub fn with_read_models(self, views: Database) -> Self {
        Self { views: Some(views), ..self }
    }

    pub fn handle(&self) -> Handle {
        let (state, capturing) = (self.state.subscribe(), self.capturing.subscribe());
        Handle { state, pause: self.pause.clone(), publishing: self.publishing.clone(), capturing }
    }

    /// Runs one term. The lease may be released when it returns.
    pub async fn lead(&self, leadership: Leadership) -> TermOutcome {
        let outcome = match self.run_term(&leadership).await {
            Ok(()) => TermOutcome::Done,
            Err(error) => error.outcome(),
        };
        self.state.send_replace(ProducerState::Standby);
        outcome
    }

    /// Returns when the checkpoint belongs to a source of the same name on another cluster. The pods of that source may lead for years, and a pod
    /// that never leads would not notice.
    pub async fn wait_for_other_cluster(&self) -> checkpoint::Error {
        let ProducerDependencies { pipeline, server, .. } = &self.dependencies;
        let ours = retry_until_ok("read the cluster of the source", || read_cluster_id(server)).await;
        let ours = PipelineIdentity { cluster: ours, sessions: None };
        loop {
            if let Ok(Some(Checkpoint { phase, identity, .. })) = self.checkpoints.load().await
                && let Err(error) = check_identity(pipeline, &phase, &identity, &ours, true)
            {
                return error;
            }
            tokio::time::sleep(CLUSTER_POLL_INTERVAL).await;
        }
    }

    async fn run_term(&self, leadership: &Leadership) -> Result<(), Error> {
        let claim = CheckpointClaim::from_leadership(leadership, &self.dependencies.pod_id);
        loop {
            if self.pause.is_paused()
                && run_unless_stopped(leadership, self.wait_until_resumed(claim.term)).await.is_none()
            {
                return Ok(());
            }
            self.state.send_replace(ProducerState::Starting { term: claim.term });
            // Nothing is captured yet, so there is nothing to drain: any stop request drops the work.
            let Some(started) = run_unless_stopped(leadership, self.start_term(&claim)).await else { return Ok(()) };
            match self.run_until_paused(leadership, &claim, started?).await? {
                TermRunEnd::Stopped => return Ok(()),
                TermRunEnd::Paused => {}
            }
        }
    }

    async fn wait_until_resumed(&self, term: Term) {
        self.state.send_replace(ProducerState::Paused { term });
        info!(pod_id = self.dependencies.pod_id, pipeline = self.dependencies.pipeline, %term, "producer paused by an operator; nothing is published");
        self.pause.wait_until_resumed().await;
        info!(pod_id = self.dependencies.pod_id, pipeline = self.dependencies.pipeline, %term, "producer resumed");
    }

    /// Captures and publishes until a stop request or a pause. The checkpoint is saved then, and the next start claims it again.
    async fn run_until_paused(
        &self,
        leadership: &Leadership,
        claim: &CheckpointClaim,
        started: CaptureStart,
    ) -> Result<TermRunEnd, Error> {
        let term = claim.term;
        let CaptureStart { mut epoch, mut phase, replay } = started;
        loop {
            self.state.send_replace(ProducerState::Running { term, epoch });
            info!(pod_id = self.dependencies.pod_id, pipeline = self.dependencies.pipeline, %term, %epoch, from = phase.name(), "producer started");
            match self.capture_and_publish(leadership, claim, CaptureStart { epoch, phase, replay }).await? {
                CaptureRunEnd::Stopped => return Ok(TermRunEnd::Stopped),
                CaptureRunEnd::Paused => return Ok(TermRunEnd::Paused),
                CaptureRunEnd::Failed(error) => {
                    let Some(again) = run_unless_stopped(leadership, self.recover(claim, epoch, error)).await else {
                        return Ok(TermRunEnd::Stopped);
                    };
                    (epoch, phase) = again?;
                }
            }
        }
    }

    /// Claims the checkpoint. A new pipeline saves its start position before anything is read.
    async fn start_term(&self, claim: &CheckpointClaim) -> Result<CaptureStart, Error> {
        let Checkpoint { epoch, phase, replay, .. } = self.claim_checkpoint(claim).await?;
        // The conditions of a first start must not stop a pipeline that already runs.
        let start = if phase == CheckpointPhase::Unstarted { self.config.start } else { StartPosition::Now };
        self.wait_until_capturable(claim, start).await;
        if phase != CheckpointPhase::Unstarted {
            return Ok(CaptureStart { epoch, phase, replay });
        }
        let first = self.initial_phase(claim, self.config.start).await;
        retry_transient("save the start position", checkpoint::Error::is_transient, || {
            self.checkpoints.save(claim, epoch, &first, None)
        })
        .await?;
        Ok(CaptureStart { epoch, phase: first, replay })
    }

    async fn claim_checkpoint(&self, claim: &CheckpointClaim) -> Result<Checkpoint, Error> {
        loop {
            let claimed = async {
                let checkpoint = retry_transient("claim the checkpoint", checkpoint::Error::is_transient, || {
                    self.checkpoints.claim(claim)
                })
                .await?;
                self.adopt_identity(claim, &checkpoint).await?;
                Ok(checkpoint)
            };
            match claimed.await {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(error @ (checkpoint::Error::TermBehind { .. } | checkpoint::Error::Deposed { .. })) => {
                    return Err(error.into());
                }
                Err(error) => self.halt(claim.term, HaltReason::Checkpoint(error_chain(&error))).await,
            }
        }
    }

    /// Refuses a checkpoint of another cluster or another session mapping, and records ours.
    async fn adopt_identity(&self, claim: &CheckpointClaim, checkpoint: &Checkpoint) -> Result<(), checkpoint::Error> {
        let ProducerDependencies { pipeline, source, server, .. } = &self.dependencies;
        let ours = PipelineIdentity {
            cluster: retry_until_ok("read the cluster of the source", || read_cluster_id(server)).await,
            sessions: Some(self.config.publish.sessions.to_string()),
        };
        let Checkpoint { epoch, phase, identity, .. } = checkpoint;
        let identity_to_record = check_identity(pipeline, phase, identity, &ours, source.is_sequenced())?;
        if identity_to_record == *identity {
            return Ok(());
        }
        retry_transient("record the identity of the pipeline", checkpoint::Error::is_transient, || {
            self.checkpoints.record_identity(claim, *epoch, &identity_to_record)
        })
        .await
    }

    /// Checks the source until it can be captured.
    async fn wait_until_capturable(&self, claim: &CheckpointClaim, start: StartPosition) {
        let capture = self.capture();
        while let Err(error) =
            retry_transient("check the source", capture::Error::is_transient, || capture.check(&start)).await
        {
            self.halt(claim.term, HaltReason::Source(error_chain(&error))).await;
        }
        self.state.send_replace(ProducerState::Starting { term: claim.term });
    }

    async fn initial_phase(&self, claim: &CheckpointClaim, start: StartPosition) -> CheckpointPhase {
        let capture = self.capture();
        loop {
            match retry_transient("find the start position", capture::Error::is_transient, || {
                capture.initial_phase(&start)
            })
            .await
            {
                Ok(phase) => return phase,
                Err(error) => self.halt(claim.term, HaltReason::Source(error_chain(&error))).await,
            }
        }
    }

    /// Logs the reason once, and waits for one poll interval.
    async fn halt(&self, term: Term, why: HaltReason) {
        let state = ProducerState::Halted { term, why: why.clone() };
        if *self.state.borrow() != state {
            let reason = match &why {
                HaltReason::HistoryLost => "the oplog no longer holds the events after the checkpoint",
                HaltReason::Source(reason) | HaltReason::Checkpoint(reason) => reason,
            };
            error!(pod_id = self.dependencies.pod_id, pipeline = self.dependencies.pipeline, %term, page = why.page(), reason, "producer halted: operator action required");
            self.state.send_replace(state);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }

    /// Captures and publishes until a stop request, or until one of them fails.
    async fn capture_and_publish(
        &self,
        leadership: &Leadership,
        claim: &CheckpointClaim,
        start: CaptureStart,
    ) -> Result<CaptureRunEnd, Error> {
        let CaptureStart { epoch, phase, replay } = start;
        let capture = match &self.views {
            Some(views) => self.capture().with_read_models(views, &self.dependencies.pipeline, epoch),
            None => self.capture(),
        };
        let capture = match &*self.capturing.borrow() {
            Some(before) => capture.continue_counters(before),
            None => capture,
        };
        self.capturing.send_replace(Some(capture.handle()));
        let stop_reading = CancellationToken::new();
        let (intake, reading) = capture.read(phase, stop_reading.clone());
        // Its own task: reading and publishing each need a core. Aborted when this future is dropped.
        let mut reader = JoinSet::new();
        reader.spawn(reading);
        // Stops the reader. The publisher handles a lost term itself.
        let mut paused = false;
        let stopping = async {
            tokio::select! {
                biased;
                _ = leadership.wait_for_stop() => {}
                () = self.pause.wait_until_paused() => paused = true,
            }
            self.state.send_replace(ProducerState::Stopping { term: claim.term });
            stop_reading.cancel();
        };
        // Both end the term without a drain. If the checkpoint was moved, the next term starts from the new position.
        let mut moved = None;
        let over = async {
            tokio::select! {
                () = leadership.wait_for_loss() => {}
                error = checkpoint_watch::wait_until_moved(&*self.checkpoints, claim) => moved = Some(error),
            }
        };
        let ended = self.publisher(leadership, claim, epoch, replay).run(intake, stopping, over).await?;
        if let Some(error) = moved {
            return Err(error);
        }
        if let PublishEnd::Unfinished { events: events @ 1.. } = ended {
            warn!(term = %claim.term, events, "stopped with unacknowledged events; the next leader publishes them");
        }
        let stop_requested = stop_reading.is_cancelled() || ended == PublishEnd::TermLost;
        // Without this, the reader of a quiet source would notice the closed queue only at the next event, and delay the next term.
        stop_reading.cancel();
        match reader.join_next().await.and_then(Result::ok) {
            Some(Err(error)) if ended != PublishEnd::TermLost => Ok(CaptureRunEnd::Failed(error)),
            _ if paused && ended != PublishEnd::TermLost => Ok(CaptureRunEnd::Paused),
            _ if stop_requested => Ok(CaptureRunEnd::Stopped),
            _ => Err(Error::Ended),
        }
    }

    /// Handles a permanent capture error: starts a new epoch if configured, else halts until an operator has acted.
    async fn recover(
        &self,
        claim: &CheckpointClaim,
        epoch: Epoch,
        error: capture::Error,
    ) -> Result<(Epoch, CheckpointPhase), Error> {
        let why = match &error {
            capture::Error::HistoryLost(_) if self.config.on_history_lost == OnHistoryLost::Snapshot => {
                warn!(term = %claim.term, page = HaltReason::HistoryLost.page(), "history lost; starting a new snapshot of the source");
                self.wait_until_capturable(claim, StartPosition::Beginning).await;
                let phase = self.initial_phase(claim, StartPosition::Beginning).await;
                let started = retry_transient("start a new epoch", checkpoint::Error::is_transient, || {
                    self.checkpoints.begin_epoch(claim, epoch, &phase)
                });
                return Ok((started.await?, phase));
            }
            capture::Error::HistoryLost(_) => HaltReason::HistoryLost,
            error => HaltReason::Source(error_chain(error)),
        };
        let began = Instant::now();
        loop {
            self.halt(claim.term, why.clone()).await;
            let stored =
                retry_transient("read the checkpoint", checkpoint::Error::is_transient, || self.checkpoints.load())
                    .await?;
            match stored {
                // An operator command claimed a higher term and moved the checkpoint: the lease must rise above it.
                Some(stored) if stored.term > claim.term => return Err(Error::Moved { by: stored.term }),
                // The source may be fixed by now: try again.
                Some(Checkpoint { epoch, phase, .. })
                    if matches!(why, HaltReason::Source(_)) && began.elapsed() >= SOURCE_RETRY_INTERVAL =>
                {
                    return Ok((epoch, phase));
                }
                Some(_) | None => {}
            }
        }
    }

    fn capture(&self) -> Capture {
        let ProducerDependencies { server, source, .. } = &self.dependencies;
        Capture::new(server, source.clone(), self.config.capture.clone())
    }

    fn publisher(
        &self,
        leadership: &Leadership,
        claim: &CheckpointClaim,
        epoch: Epoch,
        replay: ReplayCounter,
    ) -> Publisher<ServiceBusTopic, MongoCheckpointStore> {
        let ProducerDependencies { pipeline, coordination, bus, topic, subscription, .. } = &self.dependencies;
        let gate = leadership.gate().clone();
        let topic = ServiceBusTopic::new(bus.clone(), topic, subscription, Arc::new(move || gate.is_open()));
        let stores = PublisherStores {
            checkpoints: Arc::clone(&self.checkpoints),
            claim_checks: ClaimCheckStore::new(coordination, self.config.publish.keep_oversize),
            rejected: RejectedStore::new(coordination, pipeline),
        };
        let term = PublishClaim { claim: claim.clone(), epoch, replay };
        Publisher::new(self.config.publish.clone(), term, topic, stores, self.publishing.clone())
            .requiring_sequence(self.dependencies.source.is_sequenced())
            .with_tracer(self.tracer.clone())
            .with_signing(self.dependencies.message_keys.clone())
    }
}

/// Where capture starts, and how its messages are named.
struct CaptureStart {
    epoch: Epoch,
    phase: CheckpointPhase,
    replay: ReplayCounter,
}

/// How capture and publish ended.
enum CaptureRunEnd {
    Stopped,
    /// By an operator. The term goes on.
    Paused,
    /// Capture failed. The publisher has drained what was captured before, as far as possible.
    Failed(capture::Error),
}

/// Why publishing ended without an error.
enum TermRunEnd {
    Stopped,
    Paused,
}

/// `None` if the term stops before the work is done.
async fn run_unless_stopped<T>(leadership: &Leadership, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        // cancel-safe: the next leader repeats unfinished work
        done = work => Some(done),
        _ = leadership.wait_for_stop() => None,
    }
}

impl publish::CaptureInput for capture::CaptureReceiver {
    fn next(&mut self) -> impl Future<Output = Option<Vec<capture::CaptureItem>>> + Send {
        self.next()
    }
}
