//! Document snapshots under inserts, updates and deletes, on one server and on two shards.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig, TopicConfig};
use testkit::wait::wait_for;

use super::document_churn::DocumentChurn;
use super::topic_reader::TopicReader;
use super::{
    BINARY, TIMEOUT, WINDOW, WINDOW_EVENTS, assert_not_restarted, kill_leader_during_snapshot, phase,
    start_pods_with_frozen_links, takeovers, wait_for_checkpoint, wait_for_write_rate, wait_until_scanned,
};

/// Documents before the snapshot; about a third is published before the links freeze.
const HELD: i64 = 4_000;
const FREEZE_AFTER: u64 = 1_500_000;
/// Far more than may be republished, so a restarted snapshot is visible.
const BEFORE: i64 = 8 * WINDOW_EVENTS as i64;
/// Writes of each kind in that second.
const LEAST: u64 = 100;

async fn start_cluster(store: MongoTopology) -> TestCluster {
    let environment = vec![("HEADWATER__SOURCE__KIND".to_owned(), "documents".to_owned())];
    // Without duplicate detection, so that republished messages are visible.
    let topic = TopicConfig { duplicate_window: None, ..TopicConfig::default() };
    let config = TestClusterConfig {
        pods: 2,
        mongo: store,
        topic,
        producer: WINDOW.into(),
        environment,
        ..TestClusterConfig::new(BINARY)
    };
    let cluster = TestCluster::start(config).await.unwrap();
    // The cluster's index is for events; documents have no version.
    cluster.events().drop_indexes().await.unwrap();
    cluster
}

async fn fill(cluster: &TestCluster) {
    cluster.events().insert_many((0..HELD).map(|id| doc! { "_id": id, "n": 0 })).await.unwrap();
}

async fn source(cluster: &TestCluster) -> HashMap<String, Document> {
    let found: Vec<Document> = cluster.events().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    found.into_iter().map(|document| (document.get("_id").unwrap().to_string(), document)).collect()
}

/// While the snapshot is frozen: at least a thousand writes per second, of every kind.
async fn assert_writes_during_snapshot(cluster: &TestCluster, churn: &DocumentChurn) {
    let before = churn.counts();
    wait_for_write_rate(|| churn.total()).await;
    for (now, before) in churn.counts().into_iter().zip(before) {
        assert!(now - before >= LEAST, "{:?}", churn.counts());
    }
    let stored = wait_for_checkpoint(cluster, "the checkpoint", |_| true).await;
    assert_eq!(phase(&stored), "snapshot");
}

async fn assert_snapshot_matches_source(mut cluster: TestCluster) {
    fill(&cluster).await;
    let churn = DocumentChurn::start(&cluster.events(), HELD);
    start_pods_with_frozen_links(&mut cluster, FREEZE_AFTER).await;
    wait_until_scanned(&cluster, BEFORE).await;
    assert_writes_during_snapshot(&cluster, &churn).await;
    kill_leader_during_snapshot(&mut cluster).await;
    wait_for_checkpoint(&cluster, "the stream", |stored| phase(stored) == "stream").await;
    churn.stop().await;

    let source = source(&cluster).await;
    let reader = TopicReader::start(&cluster, &cluster.broker().subscription());
    wait_for("the fold to be the source", TIMEOUT, async || {
        let (is_it, documents) = reader.inspect(|contents| (contents.documents == source, contents.documents.len()));
        if is_it { Ok(()) } else { Err((documents, source.len())) }
    })
    .await;
    let most = WINDOW_EVENTS * takeovers(&cluster).await;
    cluster.stop_pods().await;
    let contents = reader.finish().await;
    assert!(contents.documents == source, "a message arrived after the end");
    assert!(contents.out_of_order.is_empty(), "{:?}", contents.out_of_order);
    assert_not_restarted(&contents, most, BEFORE);
    cluster.stop().await;
}

#[tokio::test]
async fn a_document_snapshot_under_load_matches_the_source() {
    assert_snapshot_matches_source(start_cluster(MongoTopology::Shared).await).await;
}

#[tokio::test]
async fn a_document_snapshot_on_two_shards_matches_the_source() {
    let cluster = start_cluster(MongoTopology::Sharded).await;
    let admin = cluster.mongo().client().database("admin");
    let namespace = cluster.events().namespace().to_string();
    admin.run_command(doc! { "shardCollection": namespace, "key": { "_id": "hashed" } }).await.unwrap();
    fill(&cluster).await;
    let shards = cluster.events().aggregate([doc! { "$collStats": { "count": {} } }]).await.unwrap();
    let shards: Vec<Document> = shards.try_collect().await.unwrap();
    assert!(shards.len() == 2 && shards.iter().all(|shard| shard.get_i32("count").is_ok_and(|held| held > 0)));
    cluster.events().delete_many(doc! {}).await.unwrap();
    assert_snapshot_matches_source(cluster).await;
}
