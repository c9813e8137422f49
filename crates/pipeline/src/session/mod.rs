//! Station 4 of 5: one session = one ordered stream of messages.
//!
//! A pod accepts whichever session is free and has messages; a task holds it, hands its events in order to
//! [`crate::view`], and settles a message when, and only when, the transaction that dealt with it is committed. Leans on the
//! session's lock for fairness and thrift alone: that nothing is applied twice or out of order is the cursor's doing.
//!
//! Never abandons a single message: after anything but success the whole session is let go, unsettled, and accepted again. Never
//! begins a session's next transaction before the last one is resolved.
//!
//! Reading order: [`message`] (bytes become an event) → `acceptor` (which sessions are held) → `consumer` (the life of one held session) → `settle`
//! with `batch` (what becomes of a message). Beside them `accept_permits` (how many are asked for), `slots` (how many are held), `budget` (bytes in flight), `renewal` (the lock) and `dead_letters` (what the bus put aside).

mod accept_permits;
mod acceptor;
mod backoff;
mod batch;
mod budget;
mod config;
mod dead_letters;
mod held_session;
pub mod message;
mod monitor;
mod renewal;
mod settle;
mod slots;

pub use acceptor::{SessionAcceptor, SessionDependencies};
pub use config::{Config, InvalidSessionConfig};
pub use monitor::{SessionCounts, SessionMonitor, SessionProblem};
pub use settle::dead_letter_reason;
