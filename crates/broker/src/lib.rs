//! A durable broker that speaks the part of Service Bus that Headwater walks on.
//!
//! [`Broker`] is the whole of it. Reading order, as a message walks: `listener` (one port, three protocols) → `connection` (frames to requests)
//! → `engine` (one thread, rounds, nothing said before it is durable) → [`core`] (the decisions, without I/O or clock) → [`journal`]
//! (the seam) → [`store`] (the log on disk). [`http`], [`atom`] and `http_namespace` are the administration beside it.

pub mod atom;
mod connection;
pub mod core;
pub mod emulator_config;
mod engine;
pub mod http;
mod http_namespace;
pub mod journal;
mod listener;
mod server;
pub mod store;
mod tls;

pub use connection::Timeouts;
pub use engine::{Persistence, StorageError};
pub use server::{Broker, Config, Error};
pub use tls::{Error as TlsError, TlsFiles};
