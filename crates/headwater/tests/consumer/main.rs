//! Pod processes and the whole pipeline: pods, primary and broker are killed, messages are duplicated, and the read models equal a fold of the source.

mod aggregate_shapes;
mod audit;
mod deploys;
mod graceful_stop;
mod guarantees;
mod hot_document;
mod paused_pod;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
