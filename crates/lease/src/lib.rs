//! Leader election by a lease in MongoDB: who may lead, and in which term.
//!
//! A lease does not stop two pods acting at once: a paused process can wake up between asking the gate and writing its
//! socket. What the leader writes must therefore carry its [`Term`], and the store that takes it must refuse an older one
//! (the checkpoint does). What cannot refuse (a topic) must bear a late duplicate.
//!
//! This crate knows nothing of what is led. Reading order: [`record`] and [`timing`] (the nouns), [`decide`] (the protocol),
//! `elector` (the loop that obeys it), `watch` (what wakes it), [`mongo`] (the statements), [`candidate`] (the thread it runs on).

mod backoff;
pub mod candidate;
pub mod clock;
pub mod config;
pub mod decide;
mod document;
mod elector;
mod error;
mod handle;
mod leadership;
#[cfg(test)]
mod memory;
pub mod mongo;
pub mod planted;
pub mod record;
mod store;
pub mod timing;
mod watch;

pub use candidate::{Candidate, Running};
pub use clock::Moment;
pub use config::{Config, pod_id};
pub use document::LeaseDocument;
pub use error::Error;
pub use handle::{Handle, Status};
pub use leadership::{Gate, Leadership, Loss, Outcome, Shut, Stop};
pub use record::{Contender, Term};
pub use store::LeaseStore;
pub use timing::Timing;
