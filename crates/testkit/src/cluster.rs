//! A house: MongoDB, the broker and pods as real processes, with a network between them that can be broken.
//!
//! ```text
//!   pod-0 ──proxy──┐                 ┌──proxy── pod-0
//!   pod-1 ──proxy──┼── MongoDB       ├──proxy── pod-1     broker
//!   pod-2 ──proxy──┘                 └──proxy── pod-2
//! ```
//!
//! Each pod has links of its own. A driver that is told of a replica set of three goes around any proxy, so only a set of one is linked
//! through proxies ([`StoreKind`]). The test itself talks to MongoDB and the broker directly: what it sees is not what it breaks.
//!
//! Everything ends with the house. What it keeps is in a folder that goes with it.

mod blueprint;
mod broker;
mod error;
mod http;
mod metrics;
mod pod;
mod store;
mod witness;

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::bson::{Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, IndexOptions, WriteConcern};
use mongodb::{Collection, Database, IndexModel};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::wait::try_wait_for;

pub use blueprint::{Blueprint, LeaseTimes, StoreKind, Topic};
pub use broker::Broker;
pub use error::Error;
pub use metrics::Metrics;
pub use pod::{Death, Pod, Standing};
pub use store::Store;
pub use witness::Witness;

/// Where the lease is kept, and whom it names.
const LEASES: &str = "leader_leases";
const CHECKPOINTS: &str = "checkpoints";
/// A store that is being killed does not answer; whoever asks must not wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// The running house.
#[derive(Debug)]
pub struct House {
    blueprint: Blueprint,
    store: Store,
    broker: Broker,
    pods: Vec<Pod>,
    last_leader: Option<usize>,
    deaths: Vec<Death>,
    _folder: TempDir,
}

impl House {
    /// Starts MongoDB and the broker and lays the links; the pods wait for [`Self::start_pods`].
    pub async fn build(blueprint: Blueprint) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("make a folder for the house"))?;
        let store = Store::start(blueprint.store);
        let broker = Broker::start(&blueprint, folder.path());
        let (store, broker) = tokio::try_join!(store, broker)?;
        let pods =
            join_all((0..blueprint.pods).map(|number| Pod::lay(number, &blueprint, &store, &broker, folder.path())));
        let pods = pods.await.into_iter().collect::<Result<_, _>>()?;
        let house = Self { blueprint, store, broker, pods, last_leader: None, deaths: vec![], _folder: folder };
        house.make_the_events_collection().await?;
        Ok(house)
    }

    pub fn start_pods(&mut self) -> Result<(), Error> {
        self.pods.iter_mut().filter(|pod| pod.standing() == Standing::Down).try_for_each(Pod::start)
    }

    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    pub fn broker_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }

    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    pub fn pod(&self, number: usize) -> &Pod {
        &self.pods[number]
    }

    pub fn pod_mut(&mut self, number: usize) -> &mut Pod {
        &mut self.pods[number]
    }

    /// The source's database.
    pub fn source(&self) -> Database {
        self.store.client().database(self.store.source())
    }

    /// Lease, checkpoint and everything else the pods share.
    pub fn coordination(&self) -> Database {
        self.store.client().database(self.store.coordination())
    }

    /// The source, to be written with majority.
    pub fn events(&self) -> Collection<Document> {
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
        let options = CollectionOptions::builder().write_concern(majority).build();
        self.source().collection_with_options(blueprint::COLLECTION, options)
    }

    /// Whom the lease names; whom it named last, while nobody can be asked.
    pub async fn leader(&mut self) -> Option<usize> {
        let leases = self.coordination().collection::<Document>(LEASES);
        let asked = timeout(ANSWER_WITHIN, async { leases.find_one(doc! { "_id": blueprint::PIPELINE }).await }).await;
        if let Ok(Ok(lease)) = asked {
            let named = lease.as_ref().and_then(|lease| lease.get_str("leaderId").ok());
            self.last_leader = named.and_then(|name| self.pods.iter().position(|pod| pod.name() == name));
        }
        self.last_leader
    }

    /// Waits until the lease names a pod that runs.
    pub async fn wait_for_leader(&mut self, within: Duration) -> Result<usize, Error> {
        let house = tokio::sync::Mutex::new(self);
        let found = try_wait_for("a leader", within, async || {
            let mut house = house.lock().await;
            let leader = house.leader().await.ok_or("the lease names nobody")?;
            if house.pods[leader].standing() == Standing::Up {
                Ok(leader)
            } else {
                Err("the lease names one that is down")
            }
        });
        Ok(found.await?)
    }

    /// Waits until the pipeline follows the stream: whatever its snapshot had to read is behind it.
    pub async fn wait_for_the_stream(&self, within: Duration) -> Result<(), Error> {
        let checkpoints = self.coordination().collection::<Document>(CHECKPOINTS);
        let found = try_wait_for("the stream", within, async || {
            match checkpoints.find_one(doc! { "_id": blueprint::PIPELINE }).await {
                Ok(Some(checkpoint)) if checkpoint.get_str("phase").is_ok_and(|phase| phase == "stream") => Ok(()),
                Ok(Some(_)) => Err("another phase"),
                Ok(None) => Err("no checkpoint"),
                Err(_) => Err("no answer"),
            }
        });
        Ok(found.await?)
    }

    /// Starts a pod that is down; one that was terminated is waited for first.
    pub async fn restart_pod(&mut self, number: usize) -> Result<(), Error> {
        let pod = &mut self.pods[number];
        pod.stop(STOPPED_WITHIN).await;
        self.deaths.extend(pod.died());
        pod.start()
    }

    /// Takes the lease from its holder, who learns of it at its next heartbeat. Returns whether there was one.
    pub async fn depose(&self) -> Result<bool, Error> {
        let leases = self.coordination().collection::<Document>(LEASES);
        let held = doc! { "_id": blueprint::PIPELINE, "leaderId": { "$exists": true } };
        let taken = leases.update_one(held, doc! { "$unset": { "leaderId": "", "contender": "" } });
        let done = timeout(ANSWER_WITHIN, async { taken.await })
            .await
            .map_err(|_| Error::NoAnswer { doing: "depose the leader" })?;
        let done = done.map_err(crate::mongo::Error::driver("depose the leader"))?;
        Ok(done.modified_count == 1)
    }

    /// Starts again, as Kubernetes would, every pod that ended on its own, and remembers it.
    pub fn bury(&mut self) -> Result<(), Error> {
        for pod in &mut self.pods {
            if let Some(death) = pod.died() {
                self.deaths.push(death);
                pod.start()?;
            }
        }
        Ok(())
    }

    /// Pods that ended on their own.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Mends everything: all links free, all that is paused continued, all that is down started.
    pub async fn heal(&mut self) -> Result<(), Error> {
        self.store.heal().await?;
        self.broker.heal().await?;
        for number in 0..self.pods.len() {
            self.pods[number].release().await;
            if self.pods[number].standing() == Standing::Down {
                self.restart_pod(number).await?;
            }
        }
        self.bury()
    }

    /// SIGTERM to every pod that runs, all at once; returns when all have ended. Those that ended badly are among the [deaths](Self::deaths).
    pub async fn stop_pods(&mut self) {
        join_all(self.pods.iter_mut().map(|pod| pod.stop(STOPPED_WITHIN))).await;
        self.deaths.extend(self.pods.iter_mut().filter_map(Pod::died));
    }

    /// Pods, then the broker, then MongoDB; returns the pods that ended on their own or badly.
    pub async fn stop(mut self) -> Vec<Death> {
        self.stop_pods().await;
        self.broker.stop(STOPPED_WITHIN).await;
        self.deaths
    }

    async fn make_the_events_collection(&self) -> Result<(), Error> {
        let unique = IndexOptions::builder().unique(true).build();
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).options(unique).build();
        let made = self.events().create_index(index).await;
        made.map(drop).map_err(|source| crate::mongo::Error::driver("make the events collection")(source).into())
    }
}

/// Whole, in one go: a pod must never read half a file.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::io("write a configuration"))
}
