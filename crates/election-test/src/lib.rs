//! An election test: real processes compete for one lease, and an evaluation checks what they reported.
//!
//! Any program can be a candidate: it calls [`run_if_candidate`] first, and [`ElectionTest::start_candidate`] starts the same
//! program again with its configuration in the environment. So there is no second binary that could be missing or stale. All
//! times are readings of the boot clock, which the processes of one machine share.

mod candidate;
mod candidate_process;
mod client_clock_election;
pub mod cold_start;
mod evaluation;
mod report;

pub use candidate::{CandidateConfig, ElectionProtocol, run_if_candidate};
pub use candidate_process::{CandidateProcess, ElectionTest};
pub use evaluation::{ElectionEvaluation, LeadershipInterval, evaluate};
pub use report::{CandidateReport, LateSave, Millis};
pub use testkit::wall_clock::WallClock;
