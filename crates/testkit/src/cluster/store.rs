//! The house's MongoDB.

use std::time::Duration;

use mongodb::Client;
use mongodb::options::ClientOptions;

use super::{Error, StoreKind};
use crate::mongo::{self, ReplicaSet, ScratchDatabase, ShardedCluster, shared};
use crate::proxy::Proxy;

/// A new primary may not be elected within this; how long one that stepped down does not stand again.
const BARRED: Duration = Duration::from_secs(5);

/// MongoDB with a client that goes around the proxies.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    uri: String,
    client: Client,
    source: String,
    coordination: String,
    /// The members that are down or paused.
    hurt: Vec<(usize, Hurt)>,
}

#[derive(Debug)]
enum Kind {
    Shared { _databases: [ScratchDatabase; 2] },
    Own(ReplicaSet),
    Sharded { _cluster: Box<ShardedCluster> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Down,
    Paused,
}

impl Store {
    pub(super) async fn start(kind: StoreKind) -> Result<Self, Error> {
        let (kind, uri, source, coordination) = match kind {
            StoreKind::Shared => {
                let shared = shared().await?;
                let databases = [shared.database("shop"), shared.database("headwater")];
                let [source, coordination] = [&databases[0], &databases[1]].map(|database| database.name().to_owned());
                (Kind::Shared { _databases: databases }, shared.uri().to_owned(), source, coordination)
            }
            StoreKind::One | StoreKind::Three => {
                let members = if kind == StoreKind::One { 1 } else { 3 };
                let set = ReplicaSet::start(members).await?;
                let uri = set.uri();
                (Kind::Own(set), uri, "shop".to_owned(), "headwater".to_owned())
            }
            StoreKind::Sharded => {
                let cluster = ShardedCluster::start(2).await?;
                let uri = cluster.uri();
                (Kind::Sharded { _cluster: Box::new(cluster) }, uri, "shop".to_owned(), "headwater".to_owned())
            }
        };
        let connect = mongo::Error::driver("connect to the house's MongoDB");
        let options = ClientOptions::parse(&uri).await;
        let client = options.and_then(|mut options| {
            options.server_selection_timeout = Some(Duration::from_secs(5));
            options.connect_timeout = Some(Duration::from_secs(2));
            Client::with_options(options)
        });
        Ok(Self { kind, uri, client: client.map_err(connect)?, source, coordination, hurt: vec![] })
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the source's database.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The name of the database for lease and checkpoint.
    pub fn coordination(&self) -> &str {
        &self.coordination
    }

    /// A way for one pod: a proxy and its URI, or the set's own URI where a driver would go around it.
    pub(super) async fn link(&self) -> Result<(Option<Proxy>, String), Error> {
        let hosts = self.uri.strip_prefix("mongodb://").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        if hosts.contains(',') {
            return Ok((None, self.uri.clone()));
        }
        let proxy = Proxy::start(hosts).await.map_err(Error::io("lay a link to MongoDB"))?;
        let uri = format!("mongodb://{}/?directConnection=true", proxy.address());
        Ok((Some(proxy), uri))
    }

    /// Whether every member is well; a second one is not hurt before the first is mended, or there would be no majority.
    pub fn is_whole(&self) -> bool {
        self.hurt.is_empty()
    }

    /// SIGKILL.
    pub async fn kill_primary(&mut self) -> Result<(), Error> {
        let set = self.own("to kill the primary")?;
        let primary = set.primary().await?;
        set.kill(primary).await?;
        self.hurt.push((primary, Hurt::Down));
        Ok(())
    }

    /// SIGSTOP.
    pub async fn pause_primary(&mut self) -> Result<(), Error> {
        let set = self.own("to pause the primary")?;
        let primary = set.primary().await?;
        set.pause(primary).await?;
        self.hurt.push((primary, Hurt::Paused));
        Ok(())
    }

    /// Another member becomes primary; a set of one finds its way back by itself.
    pub async fn step_down(&mut self) -> Result<(), Error> {
        self.own("to step the primary down")?.step_down(BARRED).await?;
        Ok(())
    }

    /// Continues and starts what was hurt.
    pub async fn heal(&mut self) -> Result<(), Error> {
        for (member, hurt) in std::mem::take(&mut self.hurt) {
            let set = self.own("to heal a member")?;
            match hurt {
                Hurt::Down => set.restart(member).await?,
                Hurt::Paused => set.resume(member)?,
            }
        }
        Ok(())
    }

    fn own(&mut self, doing: &'static str) -> Result<&mut ReplicaSet, Error> {
        match &mut self.kind {
            Kind::Own(set) => Ok(set),
            Kind::Shared { .. } | Kind::Sharded { .. } => Err(Error::Shared { doing }),
        }
    }
}
