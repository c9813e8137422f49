//! A pod as the machine around it meets it: a real process, asked over HTTP and ended by signals, with real servers and links that break.

mod house;
mod latency;
mod metrics;
mod operator;
mod read_models;
mod signals;
mod stops;
mod traces;
mod wedged;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
