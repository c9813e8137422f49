//! Fuzzing without nightly: mutations of good inputs, for every place where Headwater reads bytes from outside.
//!
//! A [`FuzzTarget`] takes any bytes and must return: no panic, no hang, bounded memory. [`FuzzRun`] mutates the seeds and the corpus of a
//! target by a seed and reports what went wrong as a [`Finding`]. A finding becomes a file in `corpus/` and so a test for ever.
//!
//! Run it with `cargo xtask fuzz`. The gate runs each target for a minute of CPU time beside the suites; the tests of this crate replay seeds and corpus.

mod corpus;
mod fuzz_run;
mod mutation;
mod targets;

pub use corpus::{corpus_folder, load_corpus, save_finding};
pub use fuzz_run::{Finding, FuzzRun, FuzzSummary, RunLimit};
pub use targets::{FuzzTarget, TARGETS, find_target};
