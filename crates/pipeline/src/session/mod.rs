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
//! with `batch` (what becomes of a message). Beside them `accepts` (how many are asked for), `seats` (how many are held), `budget` (bytes in flight), `renewal` (the lock) and `dead_letters` (what the bus put aside).

mod acceptor;
mod accepts;
mod batch;
mod budget;
mod config;
mod consumer;
mod dead_letters;
mod handle;
pub mod message;
mod renewal;
mod seats;
mod settle;
mod troubles;

pub use acceptor::{Acceptor, Places};
pub use config::{Config, Invalid};
pub use handle::{Counts, Handle, Trouble};
pub use settle::reason;
