//! The pipelines that one server shows: which one a request is for, and the health of the process from that of its pipelines.
//!
//! A request names its pipeline in the query (`?pipeline=orders`); a server with one pipeline needs no name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hyper::StatusCode;
use serde::Serialize;

use crate::applied_query;
use crate::health::HealthReport;
use crate::metrics::PipelineMetrics;
use crate::operator::OperatorAccess;
use crate::response::{self, AdminResponse};
use crate::server::PodTelemetry;
use crate::status_cache::StatusCache;

/// One pipeline of the process.
#[derive(Clone)]
pub struct ServedPipeline {
    pub name: String,
    pub pod: Arc<dyn PodTelemetry>,
    pub status_cache: Arc<StatusCache>,
    pub operator: Arc<OperatorSlot>,
}

/// All pipelines of the process, at least one.
#[derive(Clone)]
pub struct ServedPipelines {
    pub list: Vec<ServedPipeline>,
    /// Whether the configuration declares a list. Metrics then have the label `pipeline`.
    pub is_list: bool,
}

/// The operator actions of one pipeline, which exist only while the pipeline runs.
pub struct OperatorSlot {
    has_token: bool,
    access: Mutex<Option<OperatorAccess>>,
}

/// What a request can do with the operator actions.
pub(crate) enum OperatorState {
    /// No token is configured.
    Off,
    NotRunning,
    Ready(OperatorAccess),
}

impl OperatorSlot {
    pub fn new(has_token: bool) -> Self {
        Self { has_token, access: Mutex::new(None) }
    }

    pub fn set(&self, access: Option<OperatorAccess>) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
    }

    pub(crate) fn state(&self) -> OperatorState {
        match self.access.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            _ if !self.has_token => OperatorState::Off,
            Some(access) => OperatorState::Ready(access),
            None => OperatorState::NotRunning,
        }
    }
}

/// The body of `/healthz` and `/readyz` of a list of pipelines.
#[derive(Debug, Serialize)]
pub(crate) struct PodReport {
    pub(crate) live: bool,
    pub(crate) ready: bool,
    stopping: bool,
    pipelines: Vec<PipelineReport>,
}

#[derive(Debug, Serialize)]
struct PipelineReport {
    pipeline: String,
    #[serde(flatten)]
    health: HealthReport,
}

/// One entry of `/api/pipelines`.
#[derive(Debug, Serialize)]
pub(crate) struct PipelineSummary {
    pipeline: String,
    /// `null` before the first status.
    healthy: Option<bool>,
    leader: Option<String>,
    lag_seconds: Option<f64>,
    problems: usize,
    /// Whether it works on this pod.
    ready: bool,
}

impl ServedPipelines {
    pub(crate) fn has_token(&self) -> bool {
        self.list.iter().any(|pipeline| pipeline.operator.has_token)
    }

    /// The pipeline that the query names, or the only one.
    pub(crate) fn select(&self, query: Option<&str>) -> Result<&ServedPipeline, Box<AdminResponse>> {
        let names = || self.list.iter().map(|pipeline| pipeline.name.as_str()).collect::<Vec<_>>().join("`, `");
        match (requested_name(query), &self.list[..]) {
            (Some(name), list) => list.iter().find(|pipeline| pipeline.name == name).ok_or_else(|| {
                let text = format!("no such pipeline; this pod has `{}`\n", names());
                Box::new(response::text(StatusCode::NOT_FOUND, text))
            }),
            (None, [only]) => Ok(only),
            (None, _) => {
                let text = format!("this pod has several pipelines; add `?pipeline=` with one of `{}`\n", names());
                Err(Box::new(response::text(StatusCode::BAD_REQUEST, text)))
            }
        }
    }

    /// A restart helps against a stalled loop of any pipeline. But the pod is ready while one pipeline works: a pipeline that does not must not hold
    /// up a rollout, or take the others out of service.
    pub(crate) fn health(&self, now: Instant) -> PodReport {
        let report = |pipeline: &ServedPipeline| PipelineReport {
            pipeline: pipeline.name.clone(),
            health: pipeline.pod.health(now).evaluate(now),
        };
        let pipelines: Vec<_> = self.list.iter().map(report).collect();
        let stopping = pipelines.iter().any(|one| one.health.stopping);
        PodReport {
            live: pipelines.iter().all(|one| one.health.live),
            ready: !stopping && pipelines.iter().any(|one| one.health.ready),
            stopping,
            pipelines,
        }
    }

    pub(crate) fn summaries(&self, now: Instant) -> Vec<PipelineSummary> {
        let summary = |pipeline: &ServedPipeline| {
            pipeline.status_cache.request_refresh(now);
            let status = pipeline.status_cache.latest(now);
            PipelineSummary {
                pipeline: pipeline.name.clone(),
                healthy: status.as_ref().map(|status| status.healthy),
                leader: status.as_ref().and_then(|status| Some(status.leader.as_ref()?.pod.clone())),
                lag_seconds: status.as_ref().and_then(|status| status.lag.seconds),
                problems: status.as_ref().map_or(0, |status| status.problems.len()),
                ready: pipeline.pod.health(now).evaluate(now).ready,
            }
        };
        self.list.iter().map(summary).collect()
    }

    pub(crate) fn metrics(&self, now: Instant) -> Vec<PipelineMetrics> {
        let metrics = |pipeline: &ServedPipeline| PipelineMetrics {
            pipeline: self.is_list.then(|| pipeline.name.clone()),
            status: pipeline.status_cache.latest(now),
            samples: pipeline.pod.samples(),
            latency: pipeline.pod.latency(),
            health: pipeline.pod.health(now).evaluate(now),
        };
        self.list.iter().map(metrics).collect()
    }
}

/// The pipeline in the query.
pub(crate) fn requested_name(query: Option<&str>) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == "pipeline").and_then(|(_, value)| applied_query::decode(value))
}
