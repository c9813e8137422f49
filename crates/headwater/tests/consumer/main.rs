//! Pods as processes, the whole walk: pods, primary and broker fall, messages are said twice, and the read models equal a fold of the source.

mod asleep;
mod hot;
mod promises;
mod shapes;
mod stops;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
