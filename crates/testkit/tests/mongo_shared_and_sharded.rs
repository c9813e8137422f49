//! The shared server and sharded clusters, as the driver sees them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use testkit::mongo::{self, ShardedCluster, SharedMongoServer};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_shared_set_gives_each_caller_a_database_of_its_own() {
    let shared = mongo::shared().await.unwrap();
    let (one, other) = (shared.database("orders"), shared.database("orders"));
    one.collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    assert_eq!(one.collection::<Document>("c").count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(other.collection::<Document>("c").count_documents(doc! {}).await.unwrap(), 0);
}

#[tokio::test]
async fn a_scratch_database_is_dropped_with_its_value() {
    let shared = mongo::shared().await.unwrap();
    let database = shared.database("orders");
    let name = database.name().to_owned();
    database.collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    assert!(shared.client().list_database_names().await.unwrap().contains(&name));
    drop(database);
    assert!(!shared.client().list_database_names().await.unwrap().contains(&name));
}

#[tokio::test]
async fn the_shared_set_has_transactions_and_change_streams() {
    let shared = mongo::shared().await.unwrap();
    let database = shared.database("orders");
    let collection = database.collection::<Document>("c");
    let mut stream = collection.watch().await.unwrap();
    let mut session = shared.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    collection.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let event = timeout(SOON, stream.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(event.full_document, Some(doc! { "_id": 1 }));
}

#[tokio::test]
async fn a_run_passes_its_server_and_binaries_by_environment() {
    let (run, variables) = SharedMongoServer::start().await.unwrap();
    let names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["HEADWATER_TEST_MONGODB_URI", "HEADWATER_TEST_MONGOD_DIR"]);
    let client = Client::with_uri_str(&variables[0].1).await.unwrap();
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    assert!(hello.get_bool("isWritablePrimary").unwrap());
    assert!(std::path::Path::new(&variables[1].1).join("mongod").exists());
    drop(run);
}

#[tokio::test]
async fn a_change_stream_through_mongos_covers_all_shards() {
    // GIVEN a collection spread over two shards, and a stream opened through the mongos
    let cluster = ShardedCluster::start(2).await.unwrap();
    let client = cluster.client().await.unwrap();
    let spread = doc! { "shardCollection": "d.c", "key": { "_id": "hashed" } };
    client.database("admin").run_command(spread).await.unwrap();
    let collection = client.database("d").collection::<Document>("c");
    let mut stream = collection.watch().await.unwrap();
    // WHEN a hundred documents are written through the mongos
    collection.insert_many((0..100).map(|id| doc! { "_id": id })).await.unwrap();
    // THEN the stream has them all, and each shard holds a part of them
    let mut seen = BTreeSet::new();
    while seen.len() < 100 {
        let event = timeout(SOON, stream.next()).await.expect("an event").unwrap().unwrap();
        seen.insert(event.full_document.unwrap().get_i32("_id").unwrap());
    }
    assert_eq!(seen, (0..100).collect());
    for shard in 0..2 {
        let shard = cluster.shard(shard).direct_client().unwrap();
        let part = shard.database("d").collection::<Document>("c").count_documents(doc! {}).await.unwrap();
        assert!((1..100).contains(&part), "{part} documents on one shard");
    }
}
