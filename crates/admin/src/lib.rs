//! The HTTP server of a pod: liveness and readiness probes, metrics, the status of the whole pipeline, and the dashboard.
//!
//! | path | response |
//! | --- | --- |
//! | `/healthz` | 200 while every loop of the pod runs or is idle, else 503; names the stalled loop |
//! | `/readyz` | 200 while every service does its work, of several pipelines those of one, else 503; names the service and the reason |
//! | `/metrics` | Prometheus text format |
//! | `/api/status`, `/api/history` | the pipeline as JSON: now, and the last five minutes; of several, that of `?pipeline=` |
//! | `/api/pipelines` | the pipelines of this pod, in short |
//! | `/` | the dashboard, which shows the two above |
//! | `/api/step-down`, `/api/parked`, … | operator actions; they need the configured token, and are refused without one |
//!
//! Depends on plain types only ([`PodTelemetry`], [`StatusCache`]). It never talks to MongoDB or Service Bus, and a GET never waits for another
//! component, except that `/api/status` waits up to half a second for a status that is not out of date. It changes nothing itself: operator actions are done by the [`OperatorActions`] that it is given.
//!
//! Reading order: [`liveness`] and [`health`] (probes), [`status`] and [`problems`] (the status document and its evaluation), [`latency`]
//! and [`metrics`] (numbers), [`status_cache`], [`operator`] (token and actions), [`server`] with `open_connections`, `allowed_hosts` and `tls`.

mod allowed_hosts;
mod applied_query;
mod dashboard;
mod exposition;
pub mod health;
pub mod history;
pub mod latency;
pub mod liveness;
pub mod metrics;
mod open_connections;
pub mod operator;
mod operator_routes;
mod pipelines;
pub mod problems;
mod response;
pub mod server;
pub mod status;
pub mod status_cache;
mod time;
mod tls;

pub use health::{PodHealth, PodServiceHealth, Readiness};
pub use history::HistoryPoint;
pub use latency::{LatencyBuckets, LatencyHistogram};
pub use liveness::{Heartbeat, LoopActivity, LoopLiveness, ProgressTracker};
pub use metrics::PodSample;
pub use operator::{OperatorAccess, OperatorActions, OperatorToken};
pub use pipelines::{OperatorSlot, ServedPipeline, ServedPipelines};
pub use server::{AdminServer, Error, PodTelemetry, RunningServer};
pub use status::PipelineStatus;
pub use status_cache::StatusCache;
pub use time::WallTime;
pub use tls::{AdminTlsError, AdminTlsFiles};
