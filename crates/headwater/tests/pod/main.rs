//! A pod as the machine around it meets it: a real process, asked over HTTP and ended by signals, with real servers and links that break.

mod event_traces;
mod fixture;
mod latency;
mod leader_shutdown;
mod metrics;
mod operator_api;
mod read_model_age;
mod stalled_loops;
mod stop_signals;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
