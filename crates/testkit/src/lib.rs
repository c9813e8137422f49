//! Real MongoDB clusters, a faulty network, real processes and waiting for states. From these: whole test clusters, a nemesis that
//! injects faults into them, and a checker that records and compares what was written and observed.

pub mod bus;
pub mod checker;
pub mod cluster;
pub mod disk_fault;
pub mod failpoints;
pub mod issuer;
pub mod load;
pub mod mongo;
pub mod nemesis;
mod preload;
pub mod proxy;
pub mod wall_clock;

pub use local_cluster::{process, wait};
