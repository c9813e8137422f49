//! The names of the shop's databases. In the user's MongoDB they are new, and a marker document identifies them in later runs.
//!
//! A name belongs to one MongoDB. It is never used in another, where it may belong to somebody else.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use mongo_error::DriverError;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::error::{ErrorKind, WriteFailure};

use super::data_folder::DataFolder;
use super::mongo::DevMongo;

/// In a MongoDB that `headwater dev` started.
const OWN: &str = "shop";
/// The marker's collection in the coordination database.
const MARKS: &str = "dev_folder";
const MARK: &str = "folder";
/// File in the data folder with the id that the marker holds.
const ID_FILE: &str = "id";
/// File in the data folder with the name chosen for each of the user's MongoDBs.
const NAMES_FILE: &str = "names.json";
/// A collision has a chance of one in four thousand million.
const TRIES: u32 = 8;
const DUPLICATE_KEY: i32 = 11_000;

/// The databases in one MongoDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DevDatabases {
    pub(super) database: String,
    pub(super) views: String,
    pub(super) coordination: String,
    /// The broker's folder below the data folder: messages for one MongoDB must not reach another.
    pub(super) broker: String,
}

impl DevDatabases {
    pub(super) async fn of(store: &DevMongo, folder: &DataFolder) -> anyhow::Result<Self> {
        match store {
            DevMongo::Owned { .. } => Ok(Self::beginning_with(OWN.to_owned(), "broker".to_owned())),
            DevMongo::Given { uri, hosts } => {
                let client = Client::with_uri_str(uri).await.map_err(DriverError::from);
                find_or_create(&client.context("failed to connect to MongoDB")?, hosts, folder).await
            }
        }
    }

    fn beginning_with(database: String, broker: String) -> Self {
        let (views, coordination) = (format!("{database}_views"), format!("{database}_headwater"));
        Self { database, views, coordination, broker }
    }

    fn given(database: String) -> Self {
        let broker = format!("broker-{database}");
        Self::beginning_with(database, broker)
    }

    fn databases(&self) -> [&str; 3] {
        [&self.database, &self.views, &self.coordination]
    }
}

/// The databases of the last run with this folder and these hosts, if their marker is still there; else new ones.
async fn find_or_create(client: &Client, hosts: &str, folder: &DataFolder) -> anyhow::Result<DevDatabases> {
    let id = folder.read_or_create(ID_FILE, || format!("{:032x}", rand::random::<u128>()))?;
    let mut known: BTreeMap<String, String> =
        serde_json::from_str(&folder.read_or_create(NAMES_FILE, || "{}".to_owned())?).unwrap_or_default();
    if let Some(name) = known.get(hosts) {
        let names = DevDatabases::given(name.clone());
        if is_marked(client, &names, &id).await.context("failed to find the databases of the last run")? {
            return Ok(names);
        }
    }
    for _ in 0..TRIES {
        let name = format!("shop_{:08x}", rand::random::<u32>());
        let names = DevDatabases::given(name.clone());
        if claim(client, &names, &id).await.context("failed to create databases")? {
            known.insert(hosts.to_owned(), name);
            folder.write(NAMES_FILE, &serde_json::to_string_pretty(&known)?)?;
            return Ok(names);
        }
    }
    bail!("no free database name found at {hosts}; run `headwater dev` again")
}

async fn is_marked(client: &Client, names: &DevDatabases, id: &str) -> Result<bool, DriverError> {
    let marks = client.database(&names.coordination).collection::<Document>(MARKS);
    Ok(marks.find_one(doc! { "_id": MARK, "id": id }).await?.is_some())
}

/// Writes the marker, if none of the databases exists.
async fn claim(client: &Client, names: &DevDatabases, id: &str) -> Result<bool, DriverError> {
    let wanted: Vec<_> = names.databases().into_iter().collect();
    let there = client.list_database_names().filter(doc! { "name": { "$in": wanted } }).await?;
    if !there.is_empty() {
        return Ok(false);
    }
    let marks = client.database(&names.coordination).collection(MARKS);
    match marks.insert_one(doc! { "_id": MARK, "id": id, "by": "headwater dev" }).await {
        Ok(_) => Ok(true),
        // Another process was faster.
        Err(error) if is_taken(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_taken(error: &mongodb::error::Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE_KEY)
}

#[cfg(test)]
mod tests {
    use testkit::mongo::shared;

    use super::*;

    /// Other tests use the same server.
    async fn drop_all(client: &Client, names: &DevDatabases) {
        for name in names.databases() {
            client.database(name).drop().await.unwrap();
        }
    }

    #[tokio::test]
    async fn only_the_same_folder_finds_its_databases_again() {
        let mongo = shared().await.unwrap();
        let client = mongo.client();
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, other) = (DataFolder::open(one.path()).unwrap(), DataFolder::open(other.path()).unwrap());
        let first = find_or_create(client, "a:1", &one).await.unwrap();
        assert!(first.database.starts_with("shop_"), "{first:?}");
        assert_eq!(find_or_create(client, "a:1", &one).await.unwrap(), first);
        // A folder that knows the name but not the marker's id does not get it.
        other.write(NAMES_FILE, &format!("{{ \"a:1\": \"{}\" }}", first.database)).unwrap();
        let second = find_or_create(client, "a:1", &other).await.unwrap();
        assert_ne!(second.database, first.database);
        assert_ne!(second.broker, first.broker);
        drop_all(client, &first).await;
        // Another server behind the same address: messages for the old one are not for this one.
        let third = find_or_create(client, "a:1", &one).await.unwrap();
        assert_ne!(third, first);
        drop_all(client, &second).await;
        drop_all(client, &third).await;
    }

    #[tokio::test]
    async fn an_existing_database_name_is_not_used() {
        let mongo = shared().await.unwrap();
        let client = mongo.client();
        let names = DevDatabases::given(format!("shop_{:08x}", rand::random::<u32>()));
        for theirs in names.databases() {
            client.database(theirs).collection("theirs").insert_one(doc! { "_id": 1 }).await.unwrap();
            assert!(!claim(client, &names, "me").await.unwrap(), "{theirs} is somebody's");
            client.database(theirs).drop().await.unwrap();
        }
        assert!(claim(client, &names, "me").await.unwrap());
        assert!(!claim(client, &names, "me").await.unwrap(), "once is enough");
        drop_all(client, &names).await;
    }
}
