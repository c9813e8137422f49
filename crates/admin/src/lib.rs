//! What a pod shows of itself over HTTP: whether its loops move, its metrics, the state of the whole pipeline, and a page for people.
//!
//! | path | |
//! | --- | --- |
//! | `/healthz` | 200 while every loop moves or rests on purpose, else 503; says which one is wedged |
//! | `/readyz` | 200 while every service does what its role asks of it, else 503; says which one does not, and why |
//! | `/metrics` | Prometheus' text format |
//! | `/api/status`, `/api/history` | the pipeline as JSON: now, and the last minutes |
//! | `/` | the dashboard, which shows the two above |
//! | `/api/step-down`, `/api/parked`, … | an operator's operator_routes, for whoever shows the token that is configured; without one, for nobody |
//!
//! Knows nothing of MongoDB, of the bus, or of what the loops do: it takes readings through plain types ([`PodStatus`], [`StatusCache`]) and never
//! waits for anybody when it is asked to tell. Changes nothing by itself: what an operator may do is done by [`OperatorActions`] it is given.
//!
//! Reading order: [`progress`] and [`health`] (decisions), [`status`] and [`problems`] (the document and what is wrong in it), [`counters`],
//! [`latency`] and [`metrics`] (numbers), [`status_cache`] (what was last collected), [`operator`] (who may act), [`server`].

pub mod counters;
mod dashboard;
mod exposition;
pub mod health;
pub mod history;
pub mod latency;
pub mod liveness;
pub mod metrics;
pub mod operator;
mod operator_routes;
pub mod problems;
mod response;
pub mod server;
pub mod status;
pub mod status_cache;
mod time;

pub use counters::PodCounters;
pub use health::{PodHealth, Readiness, ServiceHealth};
pub use history::HistoryPoint;
pub use latency::{LatencyBuckets, LatencyHistogram};
pub use liveness::{Activity, Heartbeat, LoopLiveness, ProgressTracker};
pub use operator::{OperatorAccess, OperatorActions, OperatorToken};
pub use server::{AdminServer, Error, PodTelemetry, RunningServer};
pub use status::PipelineStatus;
pub use status_cache::StatusCache;
pub use time::WallTime;
