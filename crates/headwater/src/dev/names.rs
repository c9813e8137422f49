//! What the shop's databases are called. In a MongoDB of the user's: as nobody's are, and known again by a mark that is in them.
//!
//! A name belongs to one store. That of one is never taken to another, where it may be somebody's.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use mongo_error::DriverError;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::error::{ErrorKind, WriteFailure};

use super::folder::Folder;
use super::store::Store;

/// In a MongoDB that is ours alone.
const OWN: &str = "shop";
/// In the coordination database: whose it is.
const MARKS: &str = "dev_folder";
const MARK: &str = "folder";
/// Of the data folder: it stands in the mark.
const ID_FILE: &str = "id";
/// Of the data folder: hosts of the user's, and the name that was chosen there.
const NAMES_FILE: &str = "names.json";
/// One in four thousand million is taken by chance.
const TRIES: u32 = 8;
const DUPLICATE_KEY: i32 = 11_000;

/// Of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) database: String,
    pub(super) views: String,
    pub(super) coordination: String,
    /// Below the data folder: what waits for one store must not reach another.
    pub(super) broker: String,
}

impl Names {
    pub(super) async fn of(store: &Store, folder: &Folder) -> anyhow::Result<Self> {
        match store {
            Store::Own { .. } => Ok(Self::beginning_with(OWN.to_owned(), "broker".to_owned())),
            Store::Given { uri, hosts } => {
                let client = Client::with_uri_str(uri).await.map_err(DriverError::from);
                given(&client.context("connect to MongoDB")?, hosts, folder).await
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

/// Those of the last run with this folder and these hosts, if they are still marked as ours; else new ones.
async fn given(client: &Client, hosts: &str, folder: &Folder) -> anyhow::Result<Names> {
    let id = folder.remember(ID_FILE, || format!("{:032x}", rand::random::<u128>()))?;
    let mut known: BTreeMap<String, String> =
        serde_json::from_str(&folder.remember(NAMES_FILE, || "{}".to_owned())?).unwrap_or_default();
    if let Some(name) = known.get(hosts) {
        let names = Names::given(name.clone());
        if is_ours(client, &names, &id).await.context("look for the databases of the last run")? {
            return Ok(names);
        }
    }
    for _ in 0..TRIES {
        let name = format!("shop_{:08x}", rand::random::<u32>());
        let names = Names::given(name.clone());
        if take(client, &names, &id).await.context("make databases of its own")? {
            known.insert(hosts.to_owned(), name);
            folder.write(NAMES_FILE, &serde_json::to_string_pretty(&known)?)?;
            return Ok(names);
        }
    }
    bail!("every name that was tried for a database is taken at {hosts}")
}

async fn is_ours(client: &Client, names: &Names, id: &str) -> Result<bool, DriverError> {
    let marks = client.database(&names.coordination).collection::<Document>(MARKS);
    Ok(marks.find_one(doc! { "_id": MARK, "id": id }).await?.is_some())
}

/// Marks them as ours, if nobody has them.
async fn take(client: &Client, names: &Names, id: &str) -> Result<bool, DriverError> {
    let wanted: Vec<_> = names.databases().into_iter().collect();
    let there = client.list_database_names().filter(doc! { "name": { "$in": wanted } }).await?;
    if !there.is_empty() {
        return Ok(false);
    }
    let marks = client.database(&names.coordination).collection(MARKS);
    match marks.insert_one(doc! { "_id": MARK, "id": id, "by": "headwater dev" }).await {
        Ok(_) => Ok(true),
        // Another was quicker.
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

    /// Leaves nothing behind on a server that others use.
    async fn drop_all(client: &Client, names: &Names) {
        for name in names.databases() {
            client.database(name).drop().await.unwrap();
        }
    }

    #[tokio::test]
    async fn names_in_a_given_mongodb_are_found_again_by_the_same_folder_only() {
        let mongo = shared().await.unwrap();
        let client = mongo.client();
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, other) = (Folder::open(one.path()).unwrap(), Folder::open(other.path()).unwrap());
        let first = given(client, "a:1", &one).await.unwrap();
        assert!(first.database.starts_with("shop_"), "{first:?}");
        assert_eq!(given(client, "a:1", &one).await.unwrap(), first);
        // Whoever knows the name and has not made the mark, does not get it.
        other.write(NAMES_FILE, &format!("{{ \"a:1\": \"{}\" }}", first.database)).unwrap();
        let second = given(client, "a:1", &other).await.unwrap();
        assert_ne!(second.database, first.database);
        assert_ne!(second.broker, first.broker);
        drop_all(client, &first).await;
        // Another server behind the same address: what waits for the old one is not for this.
        let third = given(client, "a:1", &one).await.unwrap();
        assert_ne!(third, first);
        drop_all(client, &second).await;
        drop_all(client, &third).await;
    }

    #[tokio::test]
    async fn a_name_that_somebody_has_is_not_taken() {
        let mongo = shared().await.unwrap();
        let client = mongo.client();
        let names = Names::given(format!("shop_{:08x}", rand::random::<u32>()));
        for theirs in names.databases() {
            client.database(theirs).collection("theirs").insert_one(doc! { "_id": 1 }).await.unwrap();
            assert!(!take(client, &names, "me").await.unwrap(), "{theirs} is somebody's");
            client.database(theirs).drop().await.unwrap();
        }
        assert!(take(client, &names, "me").await.unwrap());
        assert!(!take(client, &names, "me").await.unwrap(), "once is enough");
        drop_all(client, &names).await;
    }
}
