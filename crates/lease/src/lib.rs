//! Leader election by a lease in MongoDB: who may lead, and in which term.
//!
//! A lease does not stop two pods from acting at once: a paused process can wake up between its gate check and its socket
//! write. Everything the leader writes must therefore carry its [`Term`], and the store must refuse an older term (the
//! checkpoint does). A store that cannot refuse (a topic) must tolerate a late duplicate.
//!
//! This crate knows nothing about the work of the leader. Reading order: [`record`] and [`timing`] (the data), [`decide`] (the
//! protocol), `elector` (the loop that executes it), `watch` (the change stream that wakes the loop), [`mongo`] (the
//! statements), [`election_host`] (the thread that runs all candidates of a process), `spread` (which process is first).

mod backoff;
pub mod candidate;
pub mod clock;
pub mod config;
pub mod decide;
mod document;
pub mod election_host;
mod elector;
mod error;
pub mod failpoints;
mod handle;
mod leadership;
#[cfg(test)]
mod memory;
pub mod mongo;
pub mod record;
mod shared_watch;
mod spread;
mod store;
pub mod timing;
mod watch;

pub use candidate::{Candidate, RunningElector};
pub use clock::BootInstant;
pub use config::{Config, pod_id};
pub use document::LeaseDocument;
pub use election_host::ElectionHost;
pub use error::Error;
pub use handle::{Handle, LeaseStatus};
pub use leadership::{GateClosed, Leadership, LeadershipGate, LossReason, StopSignal, TermOutcome};
pub use record::{CandidateId, Term};
pub use spread::LeaseSpread;
pub use store::LeaseStore;
pub use timing::Timing;
