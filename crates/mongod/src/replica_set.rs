//! Making replica sets of running servers; and the smallest one, of a single mongod.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;
use mongodb::{Client, Database};

use crate::binaries::Binaries;
use crate::server::{self, Role, Server, ServerConfig};

/// Name of the set [`SingleNode`] makes.
const NAME: &str = "headwater";
const WRITABLE_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What `replSetGetConfig` answers on a server that has never been in a set.
const NOT_YET_INITIALIZED: i32 = 94;

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
        let server = start_where_it_was(binaries, config, &port_file).await?;
        // Only a convenience for whoever keeps the URI in a shell; the next start finds another port without it.
        let _ = std::fs::write(&port_file, server.port().to_string());
        let admin = server.direct_client()?.database("admin");
        match stored_configuration(&admin, &server.address()).await? {
            None => {
                initiate(&server, doc! { "_id": NAME, "members": [{ "_id": 0, "host": server.address() }] }).await?
            }
            Some(stored) => move_to_address(&admin, stored, &server.address()).await?,
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

async fn start_where_it_was(binaries: &Binaries, config: ServerConfig, port_file: &Path) -> Result<Server, Error> {
    let earlier = std::fs::read_to_string(port_file).ok().and_then(|text| text.trim().parse().ok());
    if config.port.is_none() && earlier.is_some() {
        match Server::start(binaries, ServerConfig { port: earlier, ..config.clone() }).await {
            Err(error) if error.is_about_the_port() => {}
            started => return Ok(started?),
        }
    }
    Ok(Server::start(binaries, config).await?)
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

async fn stored_configuration(admin: &Database, address: &str) -> Result<Option<Document>, Error> {
    match admin.run_command(doc! { "replSetGetConfig": 1 }).await {
        Ok(answer) => {
            let stored = answer.get_document("config").cloned();
            stored.map(Some).map_err(|_| Error::ForeignConfiguration { address: address.into() })
        }
        Err(error) if code_of(&error) == Some(NOT_YET_INITIALIZED) => Ok(None),
        Err(error) => Err(failed("read the replica set configuration", address)(error)),
    }
}

/// Data of an earlier run names the port of that run; a set of one may be moved by force, nobody else votes.
async fn move_to_address(admin: &Database, mut stored: Document, address: &str) -> Result<(), Error> {
    let foreign = || Error::ForeignConfiguration { address: address.into() };
    let version = stored.get_i32("version").map_err(|_| foreign())?;
    let members = stored.get_array_mut("members").map_err(|_| foreign())?;
    let [Bson::Document(member)] = members.as_mut_slice() else { return Err(foreign()) };
    if member.get_str("host").is_ok_and(|host| host == address) {
        return Ok(());
    }
    member.insert("host", address);
    stored.insert("version", version + 1);
    let answer = admin.run_command(doc! { "replSetReconfig": stored, "force": true }).await;
    answer.map(drop).map_err(failed("move the replica set to its new port", address))
}

fn code_of(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

fn failed(doing: &'static str, address: &str) -> impl FnOnce(mongodb::error::Error) -> Error {
    let address = address.to_owned();
    move |source| Error::Command { doing, address, source }
}
