//! Making replica sets of running servers; and the smallest one, of a single mongod.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};

use crate::binaries::Binaries;
use crate::server::{self, Role, Server, ServerConfig};

/// Name of the set [`SingleNode`] makes.
const NAME: &str = "headwater";
const WRITABLE_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Server(#[from] server::Error),
    #[error("{doing} on {address}")]
    Command {
        doing: &'static str,
        address: String,
        #[source]
        source: mongodb::error::Error,
    },
    #[error("{address} did not become primary within {within:?}; it last said {last_hello}")]
    NoPrimary { address: String, within: Duration, last_hello: String },
    #[error("the replica set configuration on {address} is not one of ours")]
    ForeignConfiguration { address: String },
}

/// A replica set of one: enough for change streams and transactions, and quick to start.
#[derive(Debug)]
pub struct SingleNode {
    server: Server,
}

impl SingleNode {
    /// What to start in `folder`, for the caller to adjust.
    pub fn config(folder: impl Into<PathBuf>) -> ServerConfig {
        ServerConfig::new(Role::Member { replica_set: NAME.into() }, folder)
    }

    /// Starts mongod and returns when it takes writes. Data that is in the folder already is served again, on the port it
    /// had if that is still free.
    pub async fn start(binaries: &Binaries, config: ServerConfig) -> Result<Self, Error> {
        let port_file = config.folder.join("port");
        let server = match start_where_it_was(binaries, &config, &port_file).await? {
            Some(server) => server,
            None if has_data(&config) => start_elsewhere(binaries, config).await?,
            None => Server::start(binaries, config).await?,
        };
        // Only a convenience for whoever keeps the URI in a shell; without it the next start is a little slower.
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

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn server_mut(&mut self) -> &mut Server {
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

async fn start_where_it_was(
    binaries: &Binaries,
    config: &ServerConfig,
    port_file: &Path,
) -> Result<Option<Server>, Error> {
    let text = std::fs::read_to_string(port_file).unwrap_or_default();
    let Ok(port) = text.trim().parse() else { return Ok(None) };
    if config.port.is_some_and(|wanted| wanted != port) {
        return Ok(None);
    }
    match Server::start(binaries, ServerConfig { port: Some(port), ..config.clone() }).await {
        Err(error) if error.is_about_the_port() => Ok(None),
        started => Ok(Some(started?)),
    }
}

/// The data names the port of an earlier run as its only member, and a server that does not find itself there never
/// becomes primary. So the name is changed while the server is no member of anything.
async fn start_elsewhere(binaries: &Binaries, config: ServerConfig) -> Result<Server, Error> {
    let role = config.role.clone();
    let mut server = Server::start(binaries, ServerConfig { role: Role::Alone, ..config }).await?;
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
pub async fn initiate(server: &Server, configuration: Document) -> Result<(), Error> {
    let admin = server.direct_client()?.database("admin");
    let answer = admin.run_command(doc! { "replSetInitiate": configuration }).await;
    answer.map(drop).map_err(failed("initiate the replica set", &server.address()))
}

/// Waits until this server says that it is a primary that takes writes.
pub async fn wait_until_writable(server: &Server, within: Duration) -> Result<(), Error> {
    let admin = server.direct_client()?.database("admin");
    let deadline = Instant::now() + within;
    loop {
        let hello = admin.run_command(doc! { "hello": 1 }).await;
        if matches!(&hello, Ok(said) if said.get_bool("isWritablePrimary").unwrap_or(false)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let last_hello = hello.map_or_else(|error| error.to_string(), |said| said.to_string());
            return Err(Error::NoPrimary { address: server.address(), within, last_hello });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asked of the data itself: a server that is still starting denies having a configuration.
async fn stored_configuration(server: &Server) -> Result<Option<Document>, Error> {
    let found = configurations(server)?.find_one(doc! {}).await;
    found.map_err(failed("read the replica set configuration", &server.address()))
}

fn configurations(server: &Server) -> Result<Collection<Document>, Error> {
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
