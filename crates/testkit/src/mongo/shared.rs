//! One single-node replica set for the whole test run, with separate databases for its tests.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use mongod::SingleNodeReplicaSet;
use mongodb::{Client, Database};
use tokio::sync::Mutex;

use super::scratch::ScratchFolder;
use super::{BINARIES_VARIABLE, Error, binaries};

/// The URI of the run's shared server, for the test processes.
pub(crate) const URI_VARIABLE: &str = "HEADWATER_TEST_MONGODB_URI";
/// Enough for all tests of a run in parallel; without a limit mongod may keep a twentieth of the disk.
const OPLOG_MEGABYTES: u32 = 1024;

/// The shared server as one test sees it. A client belongs to the test's runtime, so each call creates a new one.
#[derive(Debug)]
pub struct SharedMongo {
    uri: String,
    client: Client,
    owner: Option<Arc<OwnedNode>>,
}

/// The server of this process, when no run provides one. It ends with the last test that uses it.
#[derive(Debug)]
struct OwnedNode {
    node: SingleNodeReplicaSet,
    _scratch: ScratchFolder,
}

static PROCESS_NODE: Mutex<Weak<OwnedNode>> = Mutex::const_new(Weak::new());

/// The run's shared server, or one for this process when it is not part of a run.
pub async fn shared() -> Result<SharedMongo, Error> {
    let given = std::env::var(URI_VARIABLE).ok();
    let (uri, owner) = match given {
        Some(uri) => (uri, None),
        None => {
            let owner = process_node().await?;
            (owner.node.uri(), Some(owner))
        }
    };
    let client = Client::with_uri_str(&uri).await.map_err(Error::driver("connect to the shared server"))?;
    Ok(SharedMongo { uri, client, owner })
}

async fn process_node() -> Result<Arc<OwnedNode>, Error> {
    let mut present = PROCESS_NODE.lock().await;
    if let Some(owner) = present.upgrade() {
        return Ok(owner);
    }
    let owner = Arc::new(OwnedNode::start().await?);
    *present = Arc::downgrade(&owner);
    Ok(owner)
}

impl OwnedNode {
    async fn start() -> Result<Self, Error> {
        let scratch = ScratchFolder::new().map_err(Error::Scratch)?;
        let mut config = SingleNodeReplicaSet::config(scratch.path());
        config.oplog_megabytes = Some(OPLOG_MEGABYTES);
        let node = SingleNodeReplicaSet::start(&binaries().await?, config).await?;
        Ok(Self { node, _scratch: scratch })
    }
}

impl SharedMongo {
    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A new empty database with a unique name, dropped with the value. `purpose` makes its name readable.
    pub fn database(&self, purpose: &str) -> ScratchDatabase {
        let name = format!("{purpose:.40}_{:016x}", rand::random::<u64>());
        ScratchDatabase { uri: self.uri.clone(), database: self.client.database(&name), _owner: self.owner.clone() }
    }
}

/// The database of one test.
#[derive(Debug)]
pub struct ScratchDatabase {
    uri: String,
    database: Database,
    _owner: Option<Arc<OwnedNode>>,
}

impl Deref for ScratchDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for ScratchDatabase {
    /// In a separate thread: a drop cannot await, and the test's runtime may be shutting down.
    fn drop(&mut self) {
        let (uri, name) = (self.uri.clone(), self.database.name().to_owned());
        let dropped = std::thread::spawn(move || drop_database(&uri, &name)).join();
        if !matches!(dropped, Ok(Ok(()))) {
            eprintln!("failed to drop database {}", self.database.name());
        }
    }
}

fn drop_database(uri: &str, name: &str) -> Result<(), mongodb::error::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::with_uri_str(uri).await?;
        client.database(name).drop().await
    })
}

/// The shared server of a whole run, for the program that starts the test processes. It ends with this value.
#[derive(Debug)]
pub struct SharedMongoServer {
    /// `None` when the environment already names a server.
    _owner: Option<OwnedNode>,
}

impl SharedMongoServer {
    /// Starts the server; the variables must be set for every test process.
    pub async fn start() -> Result<(Self, Vec<(String, String)>), Error> {
        let folder = binaries().await?.folder().display().to_string();
        let (uri, owner) = match std::env::var(URI_VARIABLE) {
            Ok(given) => (given, None),
            Err(_) => {
                let owner = OwnedNode::start().await?;
                (owner.node.uri(), Some(owner))
            }
        };
        let variables = vec![(URI_VARIABLE.into(), uri), (BINARIES_VARIABLE.into(), folder)];
        Ok((Self { _owner: owner }, variables))
    }
}
