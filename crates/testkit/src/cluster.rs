//! A test cluster: MongoDB, the broker and pods as real processes, with a network between them that can be broken.
//!
//! ```text
//!   pod-0 ──proxy──┐                 ┌──proxy── pod-0
//!   pod-1 ──proxy──┼── MongoDB       ├──proxy── pod-1     broker
//!   pod-2 ──proxy──┘                 └──proxy── pod-2
//! ```
//!
//! Each pod has its own links. A driver that knows all members of a replica set connects past any proxy, so only a single node and a
//! mongos are reached through proxies ([`MongoTopology`]). The test itself connects to MongoDB and the broker directly, so the faults
//! it injects do not affect what it observes.
//!
//! Every process ends with the cluster, and its data folder is removed.

mod broker;
mod config;
mod error;
mod metrics;
mod mongo;
mod observer;
mod operator;
mod oplog;
mod pod;
mod rollout;

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::bson::{Document, Timestamp, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, IndexOptions, WriteConcern};
use mongodb::{Collection, Database, IndexModel};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::wait::try_wait_for;

pub use broker::ClusterBroker;
pub use config::{MongoTopology, TestClusterConfig, TopicConfig};
pub use error::Error;
pub use local_cluster::{LeaseTimings, ProcessState, UnexpectedExit};
pub use metrics::PodMetrics;
pub use mongo::ClusterMongo;
pub use observer::CoordinationObserver;
pub use operator::CommandResult;
pub use pod::ClusterPod;

/// The lease of the pipeline, with the name of its holder.
const LEASES: &str = "leader_leases";
const CHECKPOINTS: &str = "checkpoints";
/// A MongoDB without a primary does not respond; a test must not wait for it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running cluster.
#[derive(Debug)]
pub struct TestCluster {
    config: TestClusterConfig,
    mongo: ClusterMongo,
    broker: ClusterBroker,
    pods: Vec<ClusterPod>,
    last_leader: Option<usize>,
    unexpected_exits: Vec<UnexpectedExit>,
    operator: operator::OperatorCommands,
    /// How many rollouts there were.
    rollouts: usize,
    last_oplog_fill: Option<Timestamp>,
    _folder: TempDir,
}

impl TestCluster {
    /// Starts MongoDB, the broker and the proxies. The pods start with [`Self::start_pods`].
    pub async fn start(config: TestClusterConfig) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("create the cluster's folder"))?;
        let mongo = ClusterMongo::start(config.mongo, config.oplog_megabytes);
        let broker = ClusterBroker::start(&config, folder.path());
        let (mongo, broker) = tokio::try_join!(mongo, broker)?;
        let pods = join_all(
            (0..config.pods).map(|number| ClusterPod::prepare(number, &config, &mongo, &broker, folder.path())),
        );
        let pods = pods.await.into_iter().collect::<Result<_, _>>()?;
        let operator = operator::OperatorCommands::new(&config, &mongo, &broker, folder.path())?;
        let cluster = Self {
            config,
            mongo,
            broker,
            pods,
            last_leader: None,
            unexpected_exits: vec![],
            operator,
            rollouts: 0,
            last_oplog_fill: None,
            _folder: folder,
        };
        cluster.create_events_collection().await?;
        Ok(cluster)
    }

    pub fn start_pods(&mut self) -> Result<(), Error> {
        self.pods
            .iter_mut()
            .filter(|pod| pod.state() == ProcessState::Stopped)
            .try_for_each(|pod| pod.start().map(drop))?;
        Ok(())
    }

    pub fn config(&self) -> &TestClusterConfig {
        &self.config
    }

    pub fn mongo(&self) -> &ClusterMongo {
        &self.mongo
    }

    pub fn mongo_mut(&mut self) -> &mut ClusterMongo {
        &mut self.mongo
    }

    pub fn broker(&self) -> &ClusterBroker {
        &self.broker
    }

    pub fn broker_mut(&mut self) -> &mut ClusterBroker {
        &mut self.broker
    }

    pub fn pods(&self) -> &[ClusterPod] {
        &self.pods
    }

    pub fn pod(&self, number: usize) -> &ClusterPod {
        &self.pods[number]
    }

    pub fn pod_mut(&mut self, number: usize) -> &mut ClusterPod {
        &mut self.pods[number]
    }

    /// The source database.
    pub fn source(&self) -> Database {
        self.mongo.client().database(self.mongo.source())
    }

    /// The coordination database: lease, checkpoint and other state that pods share.
    pub fn coordination(&self) -> Database {
        self.mongo.client().database(self.mongo.coordination())
    }

    /// The source collection, with majority write concern.
    pub fn events(&self) -> Collection<Document> {
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
        let options = CollectionOptions::builder().write_concern(majority).build();
        self.source().collection_with_options(config::COLLECTION, options)
    }

    /// The source collection of a further pipeline.
    pub fn events_of(&self, pipeline: &str) -> Collection<Document> {
        self.source().collection(pipeline)
    }

    /// The read models of a further pipeline.
    pub fn views_of(&self, pipeline: &str) -> Database {
        self.mongo.client().database(&config::further_views(self.mongo.source(), pipeline))
    }

    /// How many leases each pod holds.
    pub async fn leases_held(&self) -> Result<Vec<usize>, Error> {
        let doing = "read the leases";
        let leases = self.coordination().collection::<Document>(LEASES);
        let count = |pod: &ClusterPod| {
            let held = leases.count_documents(doc! { "leaderId": pod.name() });
            async move { timeout(RESPONSE_TIMEOUT, async { held.await }).await }
        };
        let counts = join_all(self.pods.iter().map(count)).await;
        let to_count = |count: Result<Result<u64, _>, _>| match count {
            Ok(count) => Ok(count.map_err(crate::mongo::Error::driver(doing))? as usize),
            Err(_) => Err(Error::NoResponse { doing }),
        };
        counts.into_iter().map(to_count).collect()
    }

    /// PodSelector the lease names; selector it named last, while nobody can be asked.
    pub async fn leader(&mut self) -> Option<usize> {
        let leases = self.coordination().collection::<Document>(LEASES);
        let response =
            timeout(RESPONSE_TIMEOUT, async { leases.find_one(doc! { "_id": config::PIPELINE }).await }).await;
        if let Ok(Ok(lease)) = response {
            let holder = lease.as_ref().and_then(|lease| lease.get_str("leaderId").ok());
            self.last_leader = holder.and_then(|name| self.pods.iter().position(|pod| pod.name() == name));
        }
        self.last_leader
    }

    /// Waits until a running pod holds the lease.
    pub async fn wait_for_leader(&mut self, within: Duration) -> Result<usize, Error> {
        let cluster = tokio::sync::Mutex::new(self);
        let found = try_wait_for("a leader", within, async || {
            let mut cluster = cluster.lock().await;
            let leader = cluster.leader().await.ok_or("nobody holds the lease")?;
            if cluster.pods[leader].state() == ProcessState::Running {
                Ok(leader)
            } else {
                Err("the lease holder is not running")
            }
        });
        Ok(found.await?)
    }

    /// Waits until the pipeline follows the change stream, that is, until its snapshot is complete.
    pub async fn wait_for_stream_phase(&self, within: Duration) -> Result<(), Error> {
        let checkpoints = self.coordination().collection::<Document>(CHECKPOINTS);
        let found = try_wait_for("the checkpoint to reach the stream phase", within, async || {
            match checkpoints.find_one(doc! { "_id": config::PIPELINE }).await {
                Ok(Some(checkpoint)) if checkpoint.get_str("phase").is_ok_and(|phase| phase == "stream") => Ok(()),
                Ok(Some(_)) => Err("another phase"),
                Ok(None) => Err("no checkpoint"),
                Err(_) => Err("no response"),
            }
        });
        Ok(found.await?)
    }

    /// The time of the newest operation of the source.
    pub async fn operation_time(&self) -> Result<Timestamp, Error> {
        let doing = "read the operation time";
        let reply = timeout(RESPONSE_TIMEOUT, async { self.source().run_command(doc! { "ping": 1 }).await }).await;
        let reply = reply.map_err(|_| Error::NoResponse { doing })?.map_err(crate::mongo::Error::driver(doing))?;
        reply.get_timestamp("operationTime").map_err(|_| Error::NoResponse { doing })
    }

    /// Whether nothing is left in the pipeline of what the source held at this time: the checkpoint has passed it, and the subscription is
    /// empty.
    pub async fn has_drained(&self, newest: Timestamp, subscription: &str) -> Result<bool, Error> {
        let checkpoints = self.coordination().collection::<Document>(CHECKPOINTS);
        let passed = doc! { "_id": config::PIPELINE, "clusterTime": { "$gte": newest } };
        let found = timeout(RESPONSE_TIMEOUT, async { checkpoints.find_one(passed).await }).await;
        // Without a response, nothing is known: not drained.
        let has_passed = matches!(found, Ok(Ok(Some(_))));
        Ok(has_passed && self.broker.active_messages_of(subscription).await? == 0)
    }

    /// Starts a stopped pod. A terminated pod must end first; this waits for it.
    pub async fn restart_pod(&mut self, number: usize) -> Result<(), Error> {
        let pod = &mut self.pods[number];
        pod.stop(STOP_TIMEOUT).await;
        self.unexpected_exits.extend(pod.take_unexpected_exit());
        pod.start()?;
        Ok(())
    }

    /// Clears the lease holder, who learns of it at its next heartbeat. Returns whether there was a holder.
    pub async fn revoke_lease(&self) -> Result<bool, Error> {
        let leases = self.coordination().collection::<Document>(LEASES);
        let held = doc! { "_id": config::PIPELINE, "leaderId": { "$exists": true } };
        let revoked = leases.update_one(held, doc! { "$unset": { "leaderId": "", "contender": "" } });
        let done = timeout(RESPONSE_TIMEOUT, async { revoked.await })
            .await
            .map_err(|_| Error::NoResponse { doing: "revoke_lease the leader" })?;
        let done = done.map_err(crate::mongo::Error::driver("revoke_lease the leader"))?;
        Ok(done.modified_count == 1)
    }

    /// Restarts every pod that exited on its own, as Kubernetes would, and records the exit.
    pub fn restart_exited_pods(&mut self) -> Result<(), Error> {
        for pod in &mut self.pods {
            if let Some(exit) = pod.take_unexpected_exit() {
                self.unexpected_exits.push(exit);
                pod.start()?;
            }
        }
        Ok(())
    }

    /// Pods that exited on their own, or with a failure.
    pub fn unexpected_exits(&self) -> &[UnexpectedExit] {
        &self.unexpected_exits
    }

    /// Repairs everything: heals all links, resumes paused processes, starts stopped ones.
    pub async fn heal(&mut self) -> Result<(), Error> {
        self.mongo.heal().await?;
        self.broker.heal().await?;
        for number in 0..self.pods.len() {
            self.pods[number].heal().await;
            if self.pods[number].state() == ProcessState::Stopped {
                self.restart_pod(number).await?;
            }
        }
        self.restart_exited_pods()
    }

    /// Sends SIGTERM to every running pod at once and waits until all have ended. Failures are recorded as
    /// [unexpected exits](Self::unexpected_exits).
    pub async fn stop_pods(&mut self) {
        join_all(self.pods.iter_mut().map(|pod| pod.stop(STOP_TIMEOUT))).await;
        self.unexpected_exits.extend(self.pods.iter_mut().filter_map(|pod| pod.take_unexpected_exit()));
    }

    /// Stops the pods, then the broker, then MongoDB; returns the unexpected exits.
    pub async fn stop(mut self) -> Vec<UnexpectedExit> {
        self.stop_pods().await;
        self.broker.stop(STOP_TIMEOUT).await;
        self.unexpected_exits
    }

    async fn create_events_collection(&self) -> Result<(), Error> {
        let unique = IndexOptions::builder().unique(true).build();
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).options(unique).build();
        let further = self.config.pipelines.iter().map(|(name, _)| self.events_of(name));
        for events in [self.events()].into_iter().chain(further) {
            let created = events.create_index(index.clone()).await;
            created.map_err(crate::mongo::Error::driver("create the events collection"))?;
        }
        Ok(())
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::io("write a configuration file"))
}
