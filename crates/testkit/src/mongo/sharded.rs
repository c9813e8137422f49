//! A sharded cluster for one test: one config server, shards of one member each, one mongos.

use std::ffi::OsString;

use futures_util::future::try_join_all;
use mongod::{MongoServer, ProgramPaths, ServerConfig, ServerRole};
use mongodb::Client;
use mongodb::bson::doc;

use super::scratch::ScratchFolder;
use super::{Error, binaries};

const WRITABLE_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
const CONFIG_SET: &str = "config";

/// Options of a sharded cluster; [`ShardedCluster::start`] uses the defaults.
#[derive(Debug, Clone)]
pub struct ShardedClusterConfig {
    shards: usize,
    router_variables: Vec<(OsString, OsString)>,
}

impl ShardedClusterConfig {
    pub fn with_shards(shards: usize) -> Self {
        Self { shards, router_variables: vec![] }
    }

    /// An environment variable of the mongos, for example another clock.
    pub fn router_variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.router_variables.push((name.into(), value.into()));
        self
    }

    pub async fn start(self) -> Result<ShardedCluster, Error> {
        let scratch = ScratchFolder::new().map_err(Error::Scratch)?;
        let binaries = binaries().await?;
        let config_role = ServerRole::ConfigServer { replica_set: CONFIG_SET.into() };
        let config_server = start_set(&binaries, config_role, CONFIG_SET.into(), &scratch);
        let shards = try_join_all((0..self.shards).map(|shard| {
            let name = shard_set(shard);
            start_set(&binaries, ServerRole::Shard { replica_set: name.clone() }, name, &scratch)
        }));
        let (config_server, shards) = tokio::try_join!(config_server, shards)?;
        let config_servers = format!("{CONFIG_SET}/{}", config_server.address());
        let mut router = ServerConfig::new(ServerRole::Router { config_servers }, scratch.path().join("mongos"));
        router.variables = self.router_variables;
        let router = MongoServer::start(&binaries, router).await?;
        let cluster = ShardedCluster { router, shards, config_server, _scratch: scratch };
        cluster.add_shards().await?;
        Ok(cluster)
    }
}

#[derive(Debug)]
pub struct ShardedCluster {
    router: MongoServer,
    shards: Vec<MongoServer>,
    config_server: MongoServer,
    _scratch: ScratchFolder,
}

impl ShardedCluster {
    /// Returns when mongos knows every shard.
    pub async fn start(shards: usize) -> Result<Self, Error> {
        ShardedClusterConfig::with_shards(shards).start().await
    }

    /// The URI of the mongos.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.router.address())
    }

    /// A client through the mongos.
    pub async fn client(&self) -> Result<Client, Error> {
        Client::with_uri_str(self.uri()).await.map_err(Error::driver("connect to the mongos"))
    }

    pub fn router(&self) -> &MongoServer {
        &self.router
    }

    pub fn shard(&self, shard: usize) -> &MongoServer {
        &self.shards[shard]
    }

    pub fn config_server(&self) -> &MongoServer {
        &self.config_server
    }

    /// To kill, pause or restart the mongos.
    pub fn router_mut(&mut self) -> &mut MongoServer {
        &mut self.router
    }

    /// To kill, pause or restart a shard.
    pub fn shard_mut(&mut self, shard: usize) -> &mut MongoServer {
        &mut self.shards[shard]
    }

    async fn add_shards(&self) -> Result<(), Error> {
        let admin = self.client().await?.database("admin");
        for (shard, server) in self.shards.iter().enumerate() {
            let name = shard_set(shard);
            let command = doc! { "addShard": format!("{name}/{}", server.address()), "name": &name };
            admin.run_command(command).await.map_err(Error::driver(format!("add {name}")))?;
        }
        Ok(())
    }
}

fn shard_set(shard: usize) -> String {
    format!("shard{shard}")
}

async fn start_set(
    binaries: &ProgramPaths,
    role: ServerRole,
    name: String,
    scratch: &ScratchFolder,
) -> Result<MongoServer, Error> {
    // A change stream through mongos returns an event once every shard's clock has passed it. An idle shard advances its clock
    // only by these no-ops, by default every ten seconds.
    let config = ServerConfig::new(role, scratch.path().join(&name))
        .parameter("writePeriodicNoops", true)
        .parameter("periodicNoopIntervalSecs", 1);
    let server = MongoServer::start(binaries, config).await?;
    let members = vec![doc! { "_id": 0, "host": server.address() }];
    mongod::initiate(&server, doc! { "_id": name, "members": members }).await?;
    mongod::wait_until_writable(&server, WRITABLE_WITHIN).await?;
    Ok(server)
}
