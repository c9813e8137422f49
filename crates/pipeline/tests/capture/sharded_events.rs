//! A source through mongos, on two shards.

use mongodb::Client;
use mongodb::bson::{Bson, doc};
use pipeline::capture::{Capture, CaptureItem, StartPosition};
use pipeline::checkpoint::CheckpointPhase;
use pipeline::event::ChangeEvent;
use pipeline::source::SourceConfig;
use testkit::mongo::ShardedCluster;

use crate::fixture::{CaptureRun, aggregate, event, index, insert_all, majority, short_await};

const AGGREGATES: i32 = 20;
const EACH: i32 = 25;

#[tokio::test]
async fn events_on_two_shards_are_in_order_per_aggregate() {
    let cluster = ShardedCluster::start(2).await.unwrap();
    let client = cluster.client().await.unwrap();
    shard(&client).await;
    let events = majority(&client.database("shop"), "events");
    index(&events).await;
    let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
    let capture = || Capture::new(&client, source.clone(), short_await(Default::default()));
    capture().check(&StartPosition::Beginning).await.unwrap();

    // Live, from now on.
    let mut live = CaptureRun::start(capture(), StartPosition::Now).await;
    for version in 0..EACH {
        insert_all(&events, (0..AGGREGATES).map(|id| event(id, version))).await;
    }
    let read = live.events((AGGREGATES * EACH) as usize).await;
    assert_in_order(&read);
    live.stop().await;
    assert!(on_both_shards(&cluster).await);

    // Resumed in the middle.
    let token = read[100].token.clone();
    let mut resumed = CaptureRun::resume(capture(), CheckpointPhase::Stream { token });
    assert!(
        resumed.events(399).await.iter().map(|event| &event.token).eq(read[101..].iter().map(|event| &event.token))
    );
    resumed.stop().await;

    // A snapshot, resumed in the middle, and the stream after it.
    let start = capture().initial_phase(&StartPosition::Beginning).await.unwrap();
    let mut first = CaptureRun::resume(capture(), start.clone());
    let scanned = first.snapshot().await;
    first.stop().await;
    assert_eq!(scanned.len(), (AGGREGATES * EACH) as usize);
    assert_in_order(&scanned.iter().map(|(event, _)| event.clone()).collect::<Vec<_>>());
    let CheckpointPhase::Snapshot { start, .. } = start else { panic!("{start:?}") };
    let progress = scanned[249].1.clone();
    let mut rest = CaptureRun::resume(capture(), CheckpointPhase::Snapshot { start, progress });
    let keys: Vec<_> = rest.snapshot().await.into_iter().map(|(event, _)| event.key).collect();
    assert!(keys.iter().eq(scanned[250..].iter().map(|(event, _)| &event.key)));
    events.insert_one(event(0, EACH)).await.unwrap();
    let after = loop {
        match rest.next().await.unwrap() {
            CaptureItem::Change(event) => break event,
            CaptureItem::Watermark(..) => {}
            CaptureItem::Snapshot(..) => panic!("scanned after the snapshot's end"),
        }
    };
    assert_eq!(after.sequence, Some(i64::from(EACH)));
    rest.stop().await;
}

async fn shard(client: &Client) {
    let admin = client.database("admin");
    admin.run_command(doc! { "enableSharding": "shop", "primaryShard": "shard0" }).await.unwrap();
    admin.run_command(doc! { "shardCollection": "shop.events", "key": { "aggregateId": 1 } }).await.unwrap();
    let middle = doc! { "aggregateId": AGGREGATES / 2 };
    admin.run_command(doc! { "split": "shop.events", "middle": middle.clone() }).await.unwrap();
    admin.run_command(doc! { "moveChunk": "shop.events", "find": middle, "to": "shard1" }).await.unwrap();
}

async fn on_both_shards(cluster: &ShardedCluster) -> bool {
    for shard in 0..2 {
        let client = cluster.shard(shard).direct_client().unwrap();
        if client.database("shop").collection::<Bson>("events").count_documents(doc! {}).await.unwrap() == 0 {
            return false;
        }
    }
    true
}

fn assert_in_order(events: &[ChangeEvent]) {
    for id in 0..AGGREGATES {
        let of_one = events.iter().filter(|event| aggregate(event) == id.into()).map(|event| event.sequence.unwrap());
        assert!(of_one.eq(0..i64::from(EACH)), "aggregate {id}");
    }
}
