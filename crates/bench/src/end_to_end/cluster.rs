//! One mongod, one durable broker and a folder, for all systems of a run.

use local_cluster::{BrokerProcess, TopicEntity};
use tempfile::TempDir;
use testkit::mongo::SharedMongo;

use crate::processes::{server_pid, start_broker_with_topics};

pub struct BenchCluster {
    pub folder: TempDir,
    pub mongo: SharedMongo,
    pub broker: BrokerProcess,
    /// The pid of mongod.
    pub server: u32,
}

impl BenchCluster {
    /// # Panics
    /// When a process does not start.
    pub async fn start(topics: &[TopicEntity]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = start_broker_with_topics(folder.path(), topics).await;
        let mongo = testkit::mongo::shared().await.expect("a mongod");
        let server = server_pid(mongo.client()).await;
        Self { folder, mongo, broker, server }
    }
}
