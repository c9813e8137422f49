//! A pod as a real process: HTTP requests, stop signals, real servers, and faulty links.

mod entra;
mod event_traces;
mod fatal_events;
mod fixture;
mod latency;
mod leader_shutdown;
mod least_privilege;
mod metrics;
mod mongodb_credentials;
mod operator_api;
mod pipelines;
mod read_model_age;
mod secured_bus;
mod stalled_loops;
mod stop_signals;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
