//! One pipeline of this pod as the HTTP server sees it, across restarts of its services.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use admin::status::{CollectionInfo, PipelineProblem, ProblemSeverity};
use admin::{
    LatencyBuckets, OperatorAccess, OperatorSlot, PipelineStatus, PodHealth, PodSample, PodServiceHealth, PodTelemetry,
    Readiness, ServedPipeline, StatusCache, WallTime,
};
use tokio::sync::watch;

use super::snapshot::PodMonitor;
use crate::config::Config;

pub(super) const FAILURES: &str = "headwater_pipeline_failures_total";
/// The code of the problem in `/api/status`.
const FAILED: &str = "pipeline_failed";

pub(crate) struct PipelineSlot {
    pipeline: String,
    pod_id: String,
    status_cache: Arc<StatusCache>,
    operator: Arc<OperatorSlot>,
    state: watch::Sender<SlotState>,
    failures: AtomicU64,
}

#[derive(Clone)]
enum SlotState {
    Starting,
    Running(Arc<PodMonitor>),
    /// Its services stop, and start again unless the pod stops, too.
    Draining(Arc<PodMonitor>),
    /// With the reason. The services start again after a backoff.
    Failed(String),
    Stopping,
}

impl PipelineSlot {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            pipeline: config.pipeline.clone(),
            pod_id: config.pod_id.clone(),
            status_cache: Arc::default(),
            operator: Arc::new(OperatorSlot::new(config.admin.token.is_some())),
            state: watch::Sender::new(SlotState::Starting),
            failures: AtomicU64::new(0),
        }
    }

    pub(crate) fn served(self: &Arc<Self>) -> ServedPipeline {
        ServedPipeline {
            name: self.pipeline.clone(),
            pod: Arc::clone(self) as Arc<dyn PodTelemetry>,
            status_cache: Arc::clone(&self.status_cache),
            operator: Arc::clone(&self.operator),
        }
    }

    pub(crate) fn status_cache(&self) -> Arc<StatusCache> {
        Arc::clone(&self.status_cache)
    }

    pub(crate) fn set_running(&self, monitor: Arc<PodMonitor>, operator: Option<OperatorAccess>) {
        self.operator.set(operator);
        self.state.send_replace(SlotState::Running(monitor));
    }

    /// Reported by this pod until the services run again.
    pub(crate) fn set_failed(&self, reason: &str, retry_in: Duration) {
        self.failures.fetch_add(1, Relaxed);
        self.operator.set(None);
        self.state.send_replace(SlotState::Failed(reason.to_owned()));
        let now = Instant::now();
        let collected = CollectionInfo { at: WallTime::now(), by: self.pod_id.clone(), ..CollectionInfo::default() };
        let unknown = || PipelineStatus::unknown(&self.pipeline, collected);
        let mut status = self.status_cache.latest(now).unwrap_or_else(unknown);
        status.problems.retain(|problem| problem.code != FAILED);
        let text = format!("the pipeline failed on {}; it starts again in {retry_in:.0?}: {reason}", self.pod_id);
        let problem =
            PipelineProblem { code: FAILED.to_owned(), severity: ProblemSeverity::Critical, text, page: None };
        status.problems.insert(0, problem);
        status.healthy = false;
        self.status_cache.store(status, now);
    }

    /// The first step of a stop: the pod is not ready from now on.
    pub(crate) fn set_stopping(&self) {
        let stopping = self.state.send_if_modified(|state| match state {
            SlotState::Running(monitor) | SlotState::Draining(monitor) => {
                monitor.set_stopping();
                false
            }
            SlotState::Starting | SlotState::Failed(_) | SlotState::Stopping => {
                *state = SlotState::Stopping;
                true
            }
        });
        tracing::debug!(pipeline = self.pipeline, was_idle = stopping, "pipeline stopping");
    }

    /// The pipeline is not ready from now on. The pod is, as long as another pipeline works.
    pub(crate) fn set_draining(&self) {
        self.state.send_if_modified(|state| {
            let SlotState::Running(monitor) = state else { return false };
            *state = SlotState::Draining(Arc::clone(monitor));
            true
        });
    }

    /// Waits until the services have started or failed.
    pub(crate) async fn wait_for_start(&self) {
        let _ = self.state.subscribe().wait_for(|state| !matches!(state, SlotState::Starting)).await;
    }

    fn monitor(&self) -> Option<Arc<PodMonitor>> {
        match &*self.state.borrow() {
            SlotState::Running(monitor) | SlotState::Draining(monitor) => Some(Arc::clone(monitor)),
            SlotState::Starting | SlotState::Failed(_) | SlotState::Stopping => None,
        }
    }
}

impl PodTelemetry for PipelineSlot {
    fn health(&self, now: Instant) -> PodHealth {
        let (role, reason, stopping) = match &*self.state.borrow() {
            SlotState::Running(monitor) => return monitor.health(now),
            SlotState::Draining(monitor) => {
                let mut health = monitor.health(now);
                health.services.push(not_ready("draining", "the services of the pipeline are stopping".to_owned()));
                return health;
            }
            SlotState::Starting => ("starting", "the services have not started yet".to_owned(), false),
            SlotState::Failed(reason) => ("failed", reason.clone(), false),
            SlotState::Stopping => ("stopping", "the pod is stopping".to_owned(), true),
        };
        PodHealth { services: vec![not_ready(role, reason)], stopping }
    }

    fn samples(&self) -> Vec<PodSample> {
        let mut samples = self.monitor().map(|monitor| monitor.samples()).unwrap_or_default();
        samples.push(PodSample {
            name: FAILURES,
            help: "Failures of the pipeline on this pod, after which its services start again.",
            labels: vec![],
            value: self.failures.load(Relaxed),
        });
        samples
    }

    fn latency(&self) -> LatencyBuckets {
        self.monitor().map(|monitor| monitor.latency()).unwrap_or_default()
    }
}

fn not_ready(role: &'static str, reason: String) -> PodServiceHealth {
    PodServiceHealth { name: "pipeline", role, readiness: Readiness::NotReady(reason), loops: vec![] }
}
