//! What a pod shows of itself over HTTP: whether its loops move, its metrics, the state of the whole pipeline, and a page for people.
//!
//! | path | |
//! | --- | --- |
//! | `/healthz` | 200 while every loop moves or rests on purpose, else 503; says which one is wedged |
//! | `/readyz` | 200 while every service does what its role asks of it, else 503; says which one does not, and why |
//! | `/metrics` | Prometheus' text format |
//! | `/api/status`, `/api/history` | the pipeline as JSON: now, and the last minutes |
//! | `/` | the dashboard, which shows the two above |
//! | `/api/step-down`, `/api/parked`, … | an operator's acts, for whoever shows the token that is configured; without one, for nobody |
//!
//! Knows nothing of MongoDB, of the bus, or of what the loops do: it takes readings through plain types ([`Pod`], [`Board`]) and never
//! waits for anybody when it is asked to tell. Changes nothing by itself: what an operator may do is done by [`Hands`] it is given.
//!
//! Reading order: [`progress`] and [`health`] (decisions), [`status`] and [`problems`] (the document and what is wrong in it), [`counters`],
//! [`latency`] and [`metrics`] (numbers), [`board`] (what was last gathered), [`operator`] (who may act), [`server`].

mod acts;
pub mod board;
pub mod counters;
mod dashboard;
mod exposition;
pub mod health;
pub mod history;
pub mod latency;
pub mod metrics;
pub mod operator;
pub mod problems;
pub mod progress;
mod reply;
pub mod server;
pub mod status;
mod time;

pub use board::Board;
pub use counters::Counters;
pub use health::{Health, Readiness, Service};
pub use history::Point;
pub use latency::{Buckets, Latency};
pub use operator::{Hands, Operator, Token};
pub use progress::{Heartbeat, Loop, Movement, Pulse};
pub use server::{Error, Pod, Running, Server};
pub use status::Status;
pub use time::Time;
