//! Station 4 of 5: one session is one ordered stream of messages.
//!
//! A pod accepts any free session that has messages. A task holds the session, passes its events in order to [`crate::view`], and settles
//! a message only after the transaction that handled it has committed. The session lock serves fairness and avoids double work; the
//! cursor, not the lock, guarantees that nothing is applied twice or out of order.
//!
//! Never abandons a single message: after a failure the whole session is closed unsettled and accepted again. Never starts a session's
//! next transaction before the previous one is resolved.
//!
//! Reading order: [`message`] (bytes to event), `known_places` (which events are ours), `acceptor` (which sessions are held), `held_session` (one session from accept to close),
//! `batch` and `settle` (how each message is settled). Then `accept_permits` (accepts in flight), `slots` (sessions held), `budget` (bytes
//! in flight), `renewal` (the lock), `backoff` (failing sessions), `attempt_marks` and `pod_runs` (events that end the pod) and `dead_letters`
//! (the dead-letter queue).

mod accept_permits;
mod acceptor;
mod attempt_marks;
mod backoff;
mod batch;
mod budget;
mod config;
mod dead_letters;
mod held_session;
mod known_places;
pub mod message;
mod monitor;
mod operator_dead_letter;
mod pod_runs;
mod renewal;
mod settle;
mod slots;

pub use acceptor::{SessionAcceptor, SessionDependencies};
pub use config::{Config, InvalidSessionConfig};
pub use known_places::KnownPlaces;
pub use monitor::{SessionCounts, SessionMonitor, SessionProblem};
pub use operator_dead_letter::{UnusableDeadLetter, read_dead_letter};
pub use pod_runs::{COLLECTION as POD_RUNS, PodRun};
pub use settle::dead_letter_reason;
