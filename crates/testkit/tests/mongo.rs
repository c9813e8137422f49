//! The shared set, sets of a test's own and sharded clusters, as the driver sees them.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use testkit::mongo::{self, ReplicaSet, ShardedCluster};

#[tokio::test]
async fn the_shared_set_gives_each_caller_a_database_of_its_own() {
    let started = Instant::now();
    let shared = mongo::shared().await.unwrap();
    let (one, other) = (shared.database("orders"), shared.database("orders"));
    one.collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    assert_eq!(other.collection::<Document>("c").count_documents(doc! {}).await.unwrap(), 0);
    println!("{:?}", started.elapsed());
}

#[tokio::test]
async fn three() {
    let started = Instant::now();
    let mut set = ReplicaSet::start(3).await.unwrap();
    println!("three nodes: {:?}", started.elapsed());
    let client = set.client().await.unwrap();
    client.database("d").collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    let primary = set.primary().await.unwrap();
    let at = Instant::now();
    set.kill(primary).await.unwrap();
    let next = set.primary().await.unwrap();
    println!("failover: {:?}", at.elapsed());
    assert_ne!(next, primary);
    set.restart(primary).await.unwrap();
    set.wait_until_secondary(primary).await.unwrap();
    let at = Instant::now();
    let old = set.step_down(Duration::from_secs(10)).await.unwrap();
    assert_ne!(set.primary().await.unwrap(), old);
    println!("step down: {:?}", at.elapsed());
}

#[tokio::test]
async fn sharded() {
    let started = Instant::now();
    let cluster = ShardedCluster::start(2).await.unwrap();
    println!("sharded: {:?}", started.elapsed());
    let client = cluster.client().await.unwrap();
    client.database("d").collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
}
