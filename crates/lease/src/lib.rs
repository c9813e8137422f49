//! Leader election by a lease in MongoDB: who may lead, and in which term.
//!
//! A lease does not stop two pods acting at once: a paused process can wake up between asking the gate and writing its
//! socket. What the leader writes must therefore carry its [`Term`], and the store that takes it must refuse an older one
//! (the checkpoint does). What cannot refuse (a topic) must bear a late duplicate.
//!
//! This crate knows nothing of what is led. Reading order: [`record`] and [`timing`] (the nouns), [`decide`] (the protocol).

pub mod clock;
pub mod decide;
pub mod record;
pub mod timing;

pub use clock::Moment;
pub use record::{Contender, Term};
pub use timing::Timing;
