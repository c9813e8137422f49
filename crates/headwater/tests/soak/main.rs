//! Tests of the test cluster, the nemesis and the checker, with the real broker and MongoDB: a harness that cannot find a fault proves nothing.

mod chaos;
mod checker_finds_defects;
mod cluster_faults;
mod simple_publisher;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
