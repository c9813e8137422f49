//! Replica sets of running servers, and the smallest one: a single mongod.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};

use crate::program_paths::ProgramPaths;
use crate::server::{self, MongoServer, ServerConfig, ServerRole};

/// Name of the set that [`SingleNodeReplicaSet`] creates.
const NAME: &str = "headwater";
const WRITABLE_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    MongoServer(#[from] server::Error),
    #[error("failed to {doing} on {address}")]
    Command {
        doing: &'static str,
        address: String,
        #[source]
        source: mongodb::error::Error,
    },
    #[error("{address} did not become primary within {within:?}; last hello: {last_hello}")]
    NoPrimary { address: String, within: Duration, last_hello: String },
    #[error("the replica set configuration on {address} was not created by this program")]
    ForeignConfiguration { address: String },
}

/// A replica set of one: supports change streams and transactions, and starts fast.
#[derive(Debug)]
pub struct SingleNodeReplicaSet {
    server: MongoServer,
}

impl SingleNodeReplicaSet {
    /// The default configuration for `folder`; the caller may adjust it.
    pub fn config(folder: impl Into<PathBuf>) -> ServerConfig {
        ServerConfig::new(ServerRole::Member { replica_set: NAME.into() }, folder)
    }

    /// Starts mongod and returns when it accepts writes. Serves existing data of the folder, on its old port if that is free.
    pub async fn start(binaries: &ProgramPaths, config: ServerConfig) -> Result<Self, Error> {
        let port_file = config.folder.join("port");
        let server = match start_on_stored_port(binaries, &config, &port_file).await? {
            Some(server) => server,
            None if has_data(&config) => start_on_new_port(binaries, config).await?,
            None => MongoServer::start(binaries, config).await?,
        };
        // Keeps the URI stable across restarts. If the write fails, only the next start is slower.
        let _ = std::fs::write(&port_file, server.port().to_string());
        if stored_configuration(&server).await?.is_none() {
            initiate(&server, doc! { "_id": NAME, "members": [{ "_id": 0, "host": server.address() }] }).await?;
        }
        wait_until_writable(&server, WRITABLE_WITHIN).await?;
        Ok(Self { server })
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet={NAME}", self.server.address())
    }

    pub fn server(&self) -> &MongoServer {
        &self.server
    }

    pub fn server_mut(&mut self) -> &mut MongoServer {
        &mut self.server
    }

    pub async fn client(&self) -> Result<Client, Error> {
        let connected = Client::with_uri_str(self.uri()).await;
        connected.map_err(failed("connect", &self.server.address()))
    }

    pub async fn stop(&mut self, within: Duration) -> Result<(), Error> {
        Ok(self.server.stop(within).await?)
    }
}

async fn start_on_stored_port(
    binaries: &ProgramPaths,
    config: &ServerConfig,
    port_file: &Path,
) -> Result<Option<MongoServer>, Error> {
    let text = std::fs::read_to_string(port_file).unwrap_or_default();
    let Ok(port) = text.trim().parse() else { return Ok(None) };
    if config.port.is_some_and(|wanted| wanted != port) {
        return Ok(None);
    }
    match MongoServer::start(binaries, ServerConfig { port: Some(port), ..config.clone() }).await {
        Err(error) if error.is_port_conflict() => Ok(None),
        started => Ok(Some(started?)),
    }
}

/// The data names the old port as its only member, and a server that does not find itself there never becomes primary. So the
/// member is changed while the server runs standalone.
async fn start_on_new_port(binaries: &ProgramPaths, config: ServerConfig) -> Result<MongoServer, Error> {
    let role = config.role.clone();
    let mut server = MongoServer::start(binaries, ServerConfig { role: ServerRole::Standalone, ..config }).await?;
    if let Some(stored) = stored_configuration(&server).await? {
        let moved = with_only_member(stored, &server.address())?;
        let replaced = configurations(&server)?.replace_one(doc! { "_id": NAME }, moved).await;
        replaced.map_err(failed("move the replica set to its new port", &server.address()))?;
    }
    server.stop(WRITABLE_WITHIN).await?;
    server.config_mut().role = role;
    server.restart().await?;
    Ok(server)
}

fn has_data(config: &ServerConfig) -> bool {
    config.database_folder().join("WiredTiger").exists()
}

/// Sends `replSetInitiate` to one server of a new set.
pub async fn initiate(server: &MongoServer, configuration: Document) -> Result<(), Error> {
    let admin = server.direct_client()?.database("admin");
    let reply = admin.run_command(doc! { "replSetInitiate": configuration }).await;
    reply.map(drop).map_err(failed("initiate the replica set", &server.address()))
}

/// Waits until this server is a writable primary.
pub async fn wait_until_writable(server: &MongoServer, within: Duration) -> Result<(), Error> {
    let admin = server.direct_client()?.database("admin");
    let deadline = Instant::now() + within;
    loop {
        let hello = admin.run_command(doc! { "hello": 1 }).await;
        if matches!(&hello, Ok(reply) if reply.get_bool("isWritablePrimary").unwrap_or(false)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let last_hello = hello.map_or_else(|error| error.to_string(), |reply| reply.to_string());
            return Err(Error::NoPrimary { address: server.address(), within, last_hello });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads the stored document: a server that still starts reports no configuration.
async fn stored_configuration(server: &MongoServer) -> Result<Option<Document>, Error> {
    let found = configurations(server)?.find_one(doc! {}).await;
    found.map_err(failed("read the replica set configuration", &server.address()))
}

fn configurations(server: &MongoServer) -> Result<Collection<Document>, Error> {
    Ok(server.direct_client()?.database("local").collection("system.replset"))
}

fn with_only_member(mut stored: Document, address: &str) -> Result<Document, Error> {
    let foreign = || Error::ForeignConfiguration { address: address.into() };
    let members = stored.get_array_mut("members").map_err(|_| foreign())?;
    let [Bson::Document(member)] = members.as_mut_slice() else { return Err(foreign()) };
    member.insert("host", address);
    Ok(stored)
}

fn failed(doing: &'static str, address: &str) -> impl FnOnce(mongodb::error::Error) -> Error {
    let address = address.to_owned();
    move |source| Error::Command { doing, address, source }
}
