//! A durable broker that implements the part of Service Bus that Headwater uses.
//!
//! [`Broker`] is the entry point. Reading order, along the path of a message: `listener` (one port, three protocols) → `connection` (frames to
//! requests) → `engine` (one thread; replies only after the data is durable) → [`core`] (decisions, without I/O or clock) → [`journal`]
//! (storage interface) → [`store`] (the log on disk). [`http`], [`atom`] and `http_engine_backend` are the administration API; [`page`] is the web page.

pub mod access;
pub mod atom;
mod connection;
pub mod core;
pub mod emulator_config;
mod engine;
pub mod failpoints;
pub mod http;
mod http_engine_backend;
pub mod journal;
mod listener;
pub mod page;
pub mod profile;
pub mod rules;
mod server;
pub mod store;
mod tier;
mod tls;

pub use connection::Timeouts;
pub use engine::{StorageError, StorageLocation};
pub use profile::{ProfileName, ServiceProfile};
pub use server::{Broker, Config, DEFAULT_MAX_CONNECTIONS, Error};
pub use tier::ServiceTier;
pub use tls::{Error as TlsError, TlsFiles};
