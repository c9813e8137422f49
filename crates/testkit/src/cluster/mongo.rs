//! MongoDB of a test cluster.

use std::time::Duration;

use mongodb::Client;
use mongodb::options::ClientOptions;

use super::{Error, MongoTopology};
use crate::mongo::{self, ReplicaSet, ReplicaSetConfig, ScratchDatabase, ShardedCluster, shared};
use crate::proxy::Proxy;

/// How long a primary that stepped down cannot be elected again.
const STEP_DOWN_PERIOD: Duration = Duration::from_secs(5);

/// MongoDB, with a client that connects directly.
#[derive(Debug)]
pub struct ClusterMongo {
    kind: MongoDeployment,
    uri: String,
    client: Client,
    source: String,
    coordination: String,
    /// Members that are down or paused.
    faulted: Vec<(usize, MemberFault)>,
}

#[derive(Debug)]
enum MongoDeployment {
    Shared { _databases: [ScratchDatabase; 2] },
    Owned(ReplicaSet),
    Sharded { _cluster: Box<ShardedCluster> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberFault {
    Down,
    Paused,
}

impl ClusterMongo {
    pub(super) async fn start(kind: MongoTopology, oplog_megabytes: Option<u32>) -> Result<Self, Error> {
        let (kind, uri, source, coordination) = match kind {
            MongoTopology::Shared => {
                let shared = shared().await?;
                let databases = [shared.database("shop"), shared.database("headwater")];
                let [source, coordination] = [&databases[0], &databases[1]].map(|database| database.name().to_owned());
                (MongoDeployment::Shared { _databases: databases }, shared.uri().to_owned(), source, coordination)
            }
            MongoTopology::SingleNode | MongoTopology::ThreeNodes => {
                let members = if kind == MongoTopology::SingleNode { 1 } else { 3 };
                let config = ReplicaSetConfig::with_members(members);
                let config = oplog_megabytes.into_iter().fold(config, ReplicaSetConfig::oplog_megabytes);
                let set = config.start().await?;
                let uri = set.uri();
                (MongoDeployment::Owned(set), uri, "shop".to_owned(), "headwater".to_owned())
            }
            MongoTopology::Sharded => {
                let cluster = ShardedCluster::start(2).await?;
                let uri = cluster.uri();
                (
                    MongoDeployment::Sharded { _cluster: Box::new(cluster) },
                    uri,
                    "shop".to_owned(),
                    "headwater".to_owned(),
                )
            }
        };
        let connect = mongo::Error::driver("connect to the cluster's MongoDB");
        let options = ClientOptions::parse(&uri).await;
        let client = options.and_then(|mut options| {
            options.server_selection_timeout = Some(Duration::from_secs(5));
            options.connect_timeout = Some(Duration::from_secs(2));
            Client::with_options(options)
        });
        Ok(Self { kind, uri, client: client.map_err(connect)?, source, coordination, faulted: vec![] })
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the source database.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The name of the coordination database.
    pub fn coordination(&self) -> &str {
        &self.coordination
    }

    /// A link for one pod: a proxy and its URI, or the replica set's own URI where drivers would bypass a proxy.
    pub(super) async fn start_link(&self) -> Result<(Option<Proxy>, String), Error> {
        let hosts = self.uri.strip_prefix("mongodb://").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        if hosts.contains(',') {
            return Ok((None, self.uri.clone()));
        }
        let proxy = Proxy::start(hosts).await.map_err(Error::io("start a link to MongoDB"))?;
        let uri = format!("mongodb://{}/?directConnection=true", proxy.address());
        Ok((Some(proxy), uri))
    }

    /// Whether every member runs. With two members of three down there would be no majority.
    pub fn is_whole(&self) -> bool {
        self.faulted.is_empty()
    }

    /// SIGKILL.
    pub async fn kill_primary(&mut self) -> Result<(), Error> {
        let set = self.owned_set("kill the primary")?;
        let primary = set.primary().await?;
        set.kill(primary).await?;
        self.faulted.push((primary, MemberFault::Down));
        Ok(())
    }

    /// SIGSTOP.
    pub async fn pause_primary(&mut self) -> Result<(), Error> {
        let set = self.owned_set("pause the primary")?;
        let primary = set.primary().await?;
        set.pause(primary).await?;
        self.faulted.push((primary, MemberFault::Paused));
        Ok(())
    }

    /// Steps the primary down; a set of one elects itself again.
    pub async fn step_down(&mut self) -> Result<(), Error> {
        self.owned_set("step the primary down")?.step_down(STEP_DOWN_PERIOD).await?;
        Ok(())
    }

    /// Resumes paused members and starts the ones that are down.
    pub async fn heal(&mut self) -> Result<(), Error> {
        for (member, faulted) in std::mem::take(&mut self.faulted) {
            let set = self.owned_set("heal a member")?;
            match faulted {
                MemberFault::Down => set.restart(member).await?,
                MemberFault::Paused => set.resume(member)?,
            }
        }
        Ok(())
    }

    fn owned_set(&mut self, doing: &'static str) -> Result<&mut ReplicaSet, Error> {
        match &mut self.kind {
            MongoDeployment::Owned(set) => Ok(set),
            MongoDeployment::Shared { .. } | MongoDeployment::Sharded { .. } => Err(Error::SharedMongo { doing }),
        }
    }
}
