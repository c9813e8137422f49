//! One replica set of one for the whole test run, and databases of their own for its tests.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use mongod::SingleNode;
use mongodb::{Client, Database};
use tokio::sync::Mutex;

use super::scratch::Scratch;
use super::{BINARIES_VARIABLE, Error, binaries};

/// The URI of the run's shared set, for the test processes.
pub(crate) const URI_VARIABLE: &str = "HEADWATER_TEST_MONGODB_URI";
/// Enough for every test of a run side by side; without a limit mongod may keep a twentieth of the disk.
const OPLOG_MEGABYTES: u32 = 1024;

/// The shared set as one test sees it. Clients belong to the runtime of the test, so each call makes a new one.
#[derive(Debug)]
pub struct Shared {
    uri: String,
    client: Client,
    owner: Option<Arc<Owner>>,
}

/// The set of this process, when no run started one for it. Gone with the last test that uses it.
#[derive(Debug)]
struct Owner {
    node: SingleNode,
    _scratch: Scratch,
}

static OF_THIS_PROCESS: Mutex<Weak<Owner>> = Mutex::const_new(Weak::new());

/// The run's shared replica set; one for this process when it is not part of a run.
pub async fn shared() -> Result<Shared, Error> {
    let given = std::env::var(URI_VARIABLE).ok();
    let (uri, owner) = match given {
        Some(uri) => (uri, None),
        None => {
            let owner = of_this_process().await?;
            (owner.node.uri(), Some(owner))
        }
    };
    let client = Client::with_uri_str(&uri).await.map_err(Error::driver("connect to the shared set"))?;
    Ok(Shared { uri, client, owner })
}

async fn of_this_process() -> Result<Arc<Owner>, Error> {
    let mut present = OF_THIS_PROCESS.lock().await;
    if let Some(owner) = present.upgrade() {
        return Ok(owner);
    }
    let owner = Arc::new(Owner::start().await?);
    *present = Arc::downgrade(&owner);
    Ok(owner)
}

impl Owner {
    async fn start() -> Result<Self, Error> {
        let scratch = Scratch::new().map_err(Error::Scratch)?;
        let mut config = SingleNode::config(scratch.path());
        config.oplog_megabytes = Some(OPLOG_MEGABYTES);
        let node = SingleNode::start(&binaries().await?, config).await?;
        Ok(Self { node, _scratch: scratch })
    }
}

impl Shared {
    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// An empty database that no other test sees, dropped with the value. `purpose` makes its name readable.
    pub fn database(&self, purpose: &str) -> ScratchDatabase {
        let name = format!("{purpose:.40}_{:016x}", rand::random::<u64>());
        ScratchDatabase { uri: self.uri.clone(), database: self.client.database(&name), _owner: self.owner.clone() }
    }
}

/// A test's own database.
#[derive(Debug)]
pub struct ScratchDatabase {
    uri: String,
    database: Database,
    _owner: Option<Arc<Owner>>,
}

impl Deref for ScratchDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for ScratchDatabase {
    /// In a thread of its own: a drop cannot await, and the test's runtime may be on its way out.
    fn drop(&mut self) {
        let (uri, name) = (self.uri.clone(), self.database.name().to_owned());
        let dropped = std::thread::spawn(move || drop_database(&uri, &name)).join();
        if !matches!(dropped, Ok(Ok(()))) {
            eprintln!("the database {} could not be dropped", self.database.name());
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

/// The shared set of a whole run, for the program that starts the test processes. Lives as long as this value.
#[derive(Debug)]
pub struct SharedRun {
    /// `None` when whoever started the run has given a set of their own.
    _owner: Option<Owner>,
}

impl SharedRun {
    /// Starts the set; the variables are to be set for every test process.
    pub async fn start() -> Result<(Self, Vec<(String, String)>), Error> {
        let folder = binaries().await?.folder().display().to_string();
        let (uri, owner) = match std::env::var(URI_VARIABLE) {
            Ok(given) => (given, None),
            Err(_) => {
                let owner = Owner::start().await?;
                (owner.node.uri(), Some(owner))
            }
        };
        let variables = vec![(URI_VARIABLE.into(), uri), (BINARIES_VARIABLE.into(), folder)];
        Ok((Self { _owner: owner }, variables))
    }
}
