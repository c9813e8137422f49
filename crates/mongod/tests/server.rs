//! Real servers: started, stopped, killed, served again, and never left behind.

use std::time::{Duration, Instant};

use mongod::{Binaries, Environment, Progress, SingleNode, Source};
use mongodb::bson::{Document, doc};

fn binaries() -> Binaries {
    match mongod::provide(None, &Environment::of_this_process(), Progress::Lines).unwrap() {
        Source::Binaries(binaries) => binaries,
        Source::Uri(_) => unreachable!("no URI was given"),
    }
}

#[tokio::test]
async fn a_set_of_one_takes_majority_writes_within_two_seconds_and_stops_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = binaries();
    let started = Instant::now();
    let mut node = SingleNode::start(&binaries, SingleNode::config(folder.path())).await.unwrap();
    let client = node.client().await.unwrap();
    client.database("d").collection::<Document>("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    println!("started in {:?}", started.elapsed());
    let stopping = Instant::now();
    node.stop(Duration::from_secs(20)).await.unwrap();
    println!("stopped in {:?}", stopping.elapsed());
}
