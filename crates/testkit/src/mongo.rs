//! Real MongoDB for tests, in three sizes.
//!
//! * [`shared()`]: one single-node replica set for a whole test run; each test has its own databases in it.
//! * [`ReplicaSet`]: a replica set for one test. Members can be killed, paused, stepped down and restarted.
//! * [`ShardedCluster`]: shards, config server and mongos.
//!
//! `cargo xtask test` starts the shared server once with [`SharedMongoServer`] and passes its URI by environment. Otherwise a test
//! process starts its own. Every server ends with the process that started it, even after a kill.

mod error;
mod replica_set;
mod scratch;
mod sharded;
mod shared;

use std::path::Path;

use mongod::{Environment, MongoSource, ProgramPaths, ProgressStyle};
use mongodb::Client;
use mongodb::options::ClientOptions;

pub use error::Error;
pub use replica_set::{ReplicaSet, ReplicaSetConfig};
pub use sharded::{ShardedCluster, ShardedClusterConfig};
pub(crate) use shared::URI_VARIABLE;
pub use shared::{ScratchDatabase, SharedMongo, SharedMongoServer, shared};

/// Folder of the mongod and mongos that the first process of a run verified, so that the others need not hash them again.
const BINARIES_VARIABLE: &str = "HEADWATER_TEST_MONGOD_DIR";

/// A client that the server knows by this `appName`, as it knows a pod.
pub async fn connect_as(uri: &str, application_name: impl Into<String>) -> Result<Client, mongodb::error::Error> {
    let mut options = ClientOptions::parse(uri).await?;
    options.app_name = Some(application_name.into());
    Client::with_options(options)
}

/// The mongod and mongos binaries of this test run.
pub async fn binaries() -> Result<ProgramPaths, Error> {
    if let Some(folder) = std::env::var_os(BINARIES_VARIABLE) {
        return Ok(ProgramPaths::in_folder(Path::new(&folder)));
    }
    tokio::task::spawn_blocking(find_binaries).await.expect("the search for a mongod does not panic")
}

fn find_binaries() -> Result<ProgramPaths, Error> {
    match mongod::provide(None, &Environment::from_process(), ProgressStyle::to_stderr())? {
        MongoSource::ProgramPaths(binaries) => Ok(binaries),
        MongoSource::Uri(_) => unreachable!("no URI was given"),
    }
}
