//! Real MongoDB clusters, faulty networks, real processes, and waiting for states.

pub mod process;
pub mod proxy;
pub mod wait;

pub mod mongo;
