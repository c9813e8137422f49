//! Documents that are inserted, updated and deleted while they are read, on one server and on two shards.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig, TopicConfig};
use testkit::wait::wait_for;

use super::churn::Churn;
use super::told::Listening;
use super::{
    BINARY, SOON, WINDOW, WINDOW_EVENTS, a_second_of_a_thousand, checkpoint, has_scanned, phase,
    start_and_freeze_after, takeover_in_the_middle, takeovers,
};

/// Documents before the snapshot begins; about a third of them get through before the links freeze.
const HELD: i64 = 4_000;
const FREEZE_AFTER: u64 = 1_500_000;
/// Far more than may be told twice: reading from the beginning again would show.
const BEFORE: i64 = 8 * WINDOW_EVENTS as i64;
/// Of each kind, in that second.
const LEAST: u64 = 100;

async fn a_house(store: MongoTopology) -> TestCluster {
    let environment = vec![("HEADWATER__SOURCE__KIND".to_owned(), "documents".to_owned())];
    // Without duplicate detection, so that what is read again is seen again.
    let topic = TopicConfig { duplicate_window: None, ..TopicConfig::default() };
    let blueprint = TestClusterConfig {
        pods: 2,
        mongo: store,
        topic,
        producer: WINDOW.into(),
        environment,
        ..TestClusterConfig::new(BINARY)
    };
    let house = TestCluster::start(blueprint).await.unwrap();
    // The house's index is for events; documents have no version.
    house.events().drop_indexes().await.unwrap();
    house
}

async fn fill(house: &TestCluster) {
    house.events().insert_many((0..HELD).map(|id| doc! { "_id": id, "n": 0 })).await.unwrap();
}

async fn source(house: &TestCluster) -> HashMap<String, Document> {
    let found: Vec<Document> = house.events().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    found.into_iter().map(|document| (document.get("_id").unwrap().to_string(), document)).collect()
}

/// While the snapshot stands in its middle: a thousand writes a second and more, of every kind.
async fn under_way(house: &TestCluster, churn: &Churn) {
    let before = churn.counts();
    a_second_of_a_thousand(|| churn.total()).await;
    for (now, before) in churn.counts().into_iter().zip(before) {
        assert!(now - before >= LEAST, "{:?}", churn.counts());
    }
    let stored = checkpoint(house, "the checkpoint", |_| true).await;
    assert_eq!(phase(&stored), "snapshot");
}

async fn ends_as_the_source_is(mut house: TestCluster) {
    fill(&house).await;
    let churn = Churn::start(&house.events(), HELD);
    start_and_freeze_after(&mut house, FREEZE_AFTER).await;
    has_scanned(&house, BEFORE).await;
    under_way(&house, &churn).await;
    takeover_in_the_middle(&mut house).await;
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    churn.stop().await;

    let source = source(&house).await;
    let listening = Listening::start(&house, &house.broker().subscription());
    wait_for("the fold to be the source", SOON, async || {
        let (is_it, documents) = listening.look(|told| (told.documents == source, told.documents.len()));
        if is_it { Ok(()) } else { Err((documents, source.len())) }
    })
    .await;
    let most = WINDOW_EVENTS * takeovers(&house).await;
    house.stop_pods().await;
    let told = listening.finish().await;
    assert!(told.documents == source, "something came after its end");
    assert!(told.out_of_order.is_empty(), "{:?}", told.out_of_order);
    println!("{} documents told twice by the snapshot, at most {most} were under way", told.scanned_again());
    assert!(most < BEFORE as u64, "so many takeovers show nothing");
    assert!(told.scanned_again() <= most, "{} told twice: the snapshot was read again", told.scanned_again());
    house.stop().await;
}

#[tokio::test]
async fn a_snapshot_of_documents_under_every_kind_of_write_ends_as_the_source_is() {
    ends_as_the_source_is(a_house(MongoTopology::Shared).await).await;
}

#[tokio::test]
async fn a_snapshot_of_documents_on_two_shards_ends_as_the_source_is() {
    let house = a_house(MongoTopology::Sharded).await;
    let admin = house.mongo().client().database("admin");
    let namespace = house.events().namespace().to_string();
    admin.run_command(doc! { "shardCollection": namespace, "key": { "_id": "hashed" } }).await.unwrap();
    fill(&house).await;
    let shards = house.events().aggregate([doc! { "$collStats": { "count": {} } }]).await.unwrap();
    let shards: Vec<Document> = shards.try_collect().await.unwrap();
    assert!(shards.len() == 2 && shards.iter().all(|shard| shard.get_i32("count").is_ok_and(|held| held > 0)));
    house.events().delete_many(doc! {}).await.unwrap();
    ends_as_the_source_is(house).await;
}
