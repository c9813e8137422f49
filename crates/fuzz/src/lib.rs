//! Fuzzing without nightly: mutations of good inputs, for every place where Headwater reads bytes from outside.
//!
//! A [`FuzzTarget`] takes any bytes and must return: no panic, no hang, bounded memory. [`FuzzRun`] mutates the seeds and the corpus of a
//! target by a seed and reports what went wrong as a [`Finding`]. A finding becomes a file in `corpus/` and so a test for ever.
//!
//! Run it with `cargo xtask fuzz`; the tests of this crate do a short run with a fixed seed.

mod corpus;
mod fuzz_run;
mod mutation;
mod targets;

pub use corpus::{load_corpus, save_finding};
pub use fuzz_run::{Finding, FuzzRun, FuzzSummary, RunLimit};
pub use targets::{FuzzTarget, TARGETS, find_target};
