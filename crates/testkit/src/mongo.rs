//! Real MongoDB for tests, in three sizes.
//!
//! * [`shared()`]: one replica set of one for a whole test run; each test takes databases of its own from it.
//! * [`ReplicaSet`]: a set of a test's own, whose members can be killed, paused, stepped down and started again.
//! * [`ShardedCluster`]: shards, config server and mongos.
//!
//! `cargo xtask test` starts the shared set once with [`SharedRun`] and passes it on by environment; without that, a test
//! process starts what it needs. Everything ends with the process that started it, however that process ends.

mod error;
mod replica_set;
mod scratch;
mod sharded;
mod shared;

use std::path::Path;

use mongod::{Binaries, Environment, Progress, Source};

pub use error::Error;
pub use replica_set::{ReplicaSet, ReplicaSetConfig};
pub use sharded::{ShardedCluster, ShardedClusterConfig};
pub(crate) use shared::URI_VARIABLE;
pub use shared::{ScratchDatabase, Shared, SharedRun, shared};

/// Folder of mongod and mongos that the run's first process has verified, so that the others need not hash them again.
const BINARIES_VARIABLE: &str = "HEADWATER_TEST_MONGOD_DIR";

/// The programs of this test run.
pub async fn binaries() -> Result<Binaries, Error> {
    if let Some(folder) = std::env::var_os(BINARIES_VARIABLE) {
        return Ok(Binaries::in_folder(Path::new(&folder)));
    }
    tokio::task::spawn_blocking(provide).await.expect("finding a mongod does not panic")
}

fn provide() -> Result<Binaries, Error> {
    match mongod::provide(None, &Environment::of_this_process(), Progress::to_stderr())? {
        Source::Binaries(binaries) => Ok(binaries),
        Source::Uri(_) => unreachable!("no URI was given"),
    }
}
