//! The house, the nemesis and the checker themselves, with the real broker and MongoDB: a harness that cannot see a fault proves nothing.

mod house;
mod publisher;
mod walk;

const BINARY: &str = env!("CARGO_BIN_EXE_headwater");
