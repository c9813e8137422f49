//! Ordinary documents through mongos, on two shards: sharded by `_id`, or refused.

use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use pipeline::capture::{Capture, Config, Error, StartPosition};
use pipeline::checkpoint::CheckpointPhase;
use pipeline::event::{ChangeEvent, Operation};
use pipeline::publish::message::EventMessageId;
use pipeline::source::SourceConfig;
use testkit::mongo::ShardedCluster;

use crate::fixture::{CaptureRun, aggregate, event, index, insert_all, majority, short_await};

const DOCUMENTS: i32 = 40;
const NORTH: &str = "north";
const SOUTH: &str = "south";

struct ShardedFixture {
    cluster: ShardedCluster,
    client: Client,
}

impl ShardedFixture {
    async fn open() -> Self {
        let cluster = ShardedCluster::start(2).await.unwrap();
        let client = cluster.client().await.unwrap();
        let admin = client.database("admin");
        admin.run_command(doc! { "enableSharding": "shop", "primaryShard": "shard0" }).await.unwrap();
        Self { cluster, client }
    }

    /// Values from `middle` on are on the second shard.
    async fn shard(&self, collection: &str, field: &str, middle: impl Into<Bson>) {
        let (admin, namespace) = (self.client.database("admin"), format!("shop.{collection}"));
        let middle = doc! { field: middle.into() };
        for command in [
            doc! { "shardCollection": &namespace, "key": { field: 1 } },
            doc! { "split": &namespace, "middle": middle.clone() },
            doc! { "moveChunk": &namespace, "find": middle, "to": "shard1" },
        ] {
            admin.run_command(command).await.unwrap();
        }
    }

    fn collection(&self, name: &str) -> mongodb::Collection<Document> {
        majority(&self.client.database("shop"), name)
    }

    fn capture(&self, source: &SourceConfig) -> Capture {
        Capture::new(&self.client, source.clone(), short_await(Config::default()))
    }

    /// How many documents each shard has.
    async fn spread(&self, collection: &str) -> [u64; 2] {
        let mut counts = [0; 2];
        for (shard, count) in counts.iter_mut().enumerate() {
            let client = self.cluster.shard(shard).direct_client().unwrap();
            *count = client.database("shop").collection::<Bson>(collection).count_documents(doc! {}).await.unwrap();
        }
        counts
    }
}

/// Every kind of change to every document: inserted, changed twice, and every fourth deleted.
async fn write_all_operations(orders: &mongodb::Collection<Document>) -> usize {
    insert_all(orders, (0..DOCUMENTS).map(|id| doc! { "_id": id, "n": 0 })).await;
    for id in 0..DOCUMENTS {
        orders.update_one(doc! { "_id": id }, doc! { "$set": { "n": 1 } }).await.unwrap();
    }
    for id in (0..DOCUMENTS).rev() {
        orders.replace_one(doc! { "_id": id }, doc! { "n": 2 }).await.unwrap();
    }
    for id in (0..DOCUMENTS).step_by(4) {
        orders.delete_one(doc! { "_id": id }).await.unwrap();
    }
    (3 * DOCUMENTS + DOCUMENTS / 4) as usize
}

fn assert_operations_in_order(events: &[ChangeEvent]) {
    use Operation::{Delete, Insert, Replace, Update};
    for id in 0..DOCUMENTS {
        let of_one = events.iter().filter(|event| aggregate(event) == id.into()).map(|event| event.operation);
        let life = [Insert, Update, Replace, Delete];
        let expected = if id % 4 == 0 { &life[..] } else { &life[..3] };
        assert!(of_one.eq(expected.iter().copied()), "document {id}");
    }
}

#[tokio::test]
async fn documents_on_two_shards_are_in_order_per_document() {
    let shop = ShardedFixture::open().await;
    shop.shard("orders", "_id", DOCUMENTS / 2).await;
    let (orders, source) = (shop.collection("orders"), SourceConfig::documents("shop", "orders"));
    shop.capture(&source).check(&StartPosition::Beginning).await.unwrap();

    // Live, from now on.
    let mut live = CaptureRun::start(shop.capture(&source), StartPosition::Now).await;
    let count = write_all_operations(&orders).await;
    let read = live.events(count).await;
    assert_operations_in_order(&read);
    live.stop().await;
    assert!(shop.spread("orders").await.iter().all(|held| *held > 0));

    // Resumed at several positions.
    for at in [0, count / 3, count / 2, count - 2] {
        let phase = CheckpointPhase::Stream { token: read[at].token.clone() };
        let mut resumed = CaptureRun::resume(shop.capture(&source), phase);
        let rest = resumed.events(count - at - 1).await;
        assert!(rest.iter().map(|event| &event.token).eq(read[at + 1..].iter().map(|event| &event.token)), "{at}");
        resumed.stop().await;
    }

    // A snapshot during inserts, updates and deletes; resumed in the middle, and the stream after it.
    let held = (DOCUMENTS - DOCUMENTS / 4) as usize;
    let begun = shop.capture(&source).initial_phase(&StartPosition::Beginning).await.unwrap();
    let CheckpointPhase::Snapshot { start, .. } = begun.clone() else { panic!("{begun:?}") };
    let mut first = CaptureRun::resume(shop.capture(&source), begun);
    let scanned = first.snapshot().await;
    first.stop().await;
    let keys = |scanned: &[(ChangeEvent, _)]| scanned.iter().map(|(event, _)| event.key.clone()).collect::<Vec<_>>();
    let expected: Vec<Bson> = (0..DOCUMENTS).filter(|id| id % 4 != 0).map(Bson::from).collect();
    assert_eq!(keys(&scanned), expected);
    orders.insert_one(doc! { "_id": DOCUMENTS, "n": 0 }).await.unwrap();
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 3 } }).await.unwrap();
    orders.delete_one(doc! { "_id": DOCUMENTS - 1 }).await.unwrap();
    let phase = CheckpointPhase::Snapshot { start, progress: scanned[held / 2].1.clone() };
    let mut rest = CaptureRun::resume(shop.capture(&source), phase);
    let mut expected: Vec<Bson> = keys(&scanned[held / 2 + 1..]);
    // Deleted on one shard, inserted on the other.
    expected.pop();
    expected.push(DOCUMENTS.into());
    let rest_of_it = rest.snapshot().await;
    assert_eq!(keys(&rest_of_it), expected);
    let after: Vec<_> = rest.events(3).await.into_iter().map(|event| (event.operation, event.key)).collect();
    let (came, changed, went) = (Operation::Insert, Operation::Update, Operation::Delete);
    assert_eq!(after, [(came, DOCUMENTS.into()), (changed, 1.into()), (went, (DOCUMENTS - 1).into())]);
    rest.stop().await;
}

#[tokio::test]
async fn documents_not_sharded_by_id_are_refused() {
    let shop = ShardedFixture::open().await;
    // Two documents share an `_id`.
    shop.shard("customers", "region", "o").await;
    let customers = shop.collection("customers");
    insert_all(&customers, [NORTH, SOUTH].map(|region| doc! { "_id": 7, "region": region })).await;
    assert_eq!(shop.spread("customers").await, [1, 1]);
    let source = SourceConfig::documents("shop", "customers");
    let error = shop.capture(&source).check(&StartPosition::Now).await.unwrap_err();
    assert!(matches!(&error, Error::ShardedBy { field, .. } if field == "region"), "{error:?}");
    assert!(!error.is_transient());

    // Sharding the collection during capture ends the stream with an error.
    let source = SourceConfig::documents("shop", "orders");
    let orders = shop.collection("orders");
    let region = |id: i32, region: &str| doc! { "_id": id, "region": region };
    orders.insert_one(region(1, NORTH)).await.unwrap();
    shop.capture(&source).check(&StartPosition::Now).await.unwrap();
    let mut reading = CaptureRun::start(shop.capture(&source), StartPosition::Now).await;
    orders.insert_one(region(2, NORTH)).await.unwrap();
    assert_eq!(reading.event().await.key, 2.into());
    let by_region = mongodb::IndexModel::builder().keys(doc! { "region": 1 }).build();
    orders.create_index(by_region).await.unwrap();
    shop.shard("orders", "region", "o").await;
    orders.insert_one(region(2, SOUTH)).await.unwrap();
    let error = reading.wait_for_error().await;
    assert!(matches!(&error, Error::ShardedBy { field, .. } if field == "region"), "{error:?}");
}

/// Events may be sharded by their aggregate; two events may then share an `_id`.
#[tokio::test]
async fn events_with_the_same_id_on_two_shards_are_two_events() {
    let shop = ShardedFixture::open().await;
    shop.shard("events", "aggregateId", "o").await;
    let events = shop.collection("events");
    index(&events).await;
    let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
    shop.capture(&source).check(&StartPosition::Beginning).await.unwrap();
    let mut live = CaptureRun::start(shop.capture(&source), StartPosition::Now).await;
    let named = |aggregate: &str| {
        let mut event = event(aggregate, 1);
        event.insert("_id", 1);
        event
    };
    insert_all(&events, [NORTH, SOUTH].map(named)).await;
    assert_eq!(shop.spread("events").await, [1, 1]);
    let streamed = live.events(2).await;
    live.stop().await;
    let mut reading = CaptureRun::start(shop.capture(&source), StartPosition::Beginning).await;
    let scanned = reading.snapshot().await;
    reading.stop().await;
    let of_both: Vec<_> = scanned.iter().map(|(event, _)| aggregate(event)).collect();
    assert_eq!(of_both, [Bson::from(NORTH), SOUTH.into()]);
    let ids = |events: [EventMessageId; 2]| assert_ne!(events[0], events[1]);
    ids([0, 1].map(|at| EventMessageId::for_event(&streamed[at], None)));
    ids([0, 1].map(|at| EventMessageId::for_event(&scanned[at].0, Some(&scanned[at].1.run))));
}
