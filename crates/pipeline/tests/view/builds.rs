//! Builds from sources of other kinds, and what holds a build up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Client, IndexModel};
use pipeline::event::Namespace;
use pipeline::generation::{
    BuildOptions, BuildPause, BuildProgressReport, BuildTotals, Error, Generation, GenerationStage, ModelVersion,
    create_unique_indexes,
};
use pipeline::source::SourceConfig;
use pipeline::view::{DeliveredEvent, DiscardScope, EventBody, ParkedStore};
use serde_json::{Value, json};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig, ShardedCluster};
use testkit::wait::wait_for;

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{ViewFixture, all_delivered, contents, delivered, event, shop_models};
use crate::generations::{build, build_from, built_collection, events_source, pod, prepared_builder, version};

const SOON: Duration = Duration::from_secs(60);

/// A generation in which these read models are built, after one without any.
fn building(models: &Value) -> (Generation, Generation) {
    let first = Generation::first([].into());
    let to_build = |(name, declared): (&String, &Value)| {
        let declaration = serde_json::from_value(declared.clone()).unwrap();
        (name.clone(), ModelVersion::to_build(name, declaration, "1".to_owned(), 2))
    };
    let next = models.as_object().unwrap().iter().map(to_build).collect();
    (first.clone(), Generation { number: 2, stage: GenerationStage::Building, next, ..first })
}

async fn built(fixture: &ViewFixture, building: &Generation, name: &str) -> Vec<Document> {
    contents(&fixture.views, &building.next[name].collection).await
}

#[tokio::test]
async fn a_build_from_two_shards_equals_the_fold() {
    let cluster = ShardedCluster::start(2).await.unwrap();
    let client = cluster.client().await.unwrap();
    let fixture = ViewFixture::new("build_sharded", json!({})).await;
    let admin = client.database("admin");
    let namespace = "shop.events";
    let middle = doc! { "aggregateId": "order-0020" };
    for command in [
        doc! { "enableSharding": "shop", "primaryShard": "shard0" },
        doc! { "shardCollection": namespace, "key": { "aggregateId": 1 } },
        doc! { "split": namespace, "middle": middle.clone() },
        doc! { "moveChunk": namespace, "find": middle, "to": "shard1" },
    ] {
        admin.run_command(command).await.unwrap();
    }
    let events = day(40, 12);
    let source = client.database("shop").collection::<Document>("events");
    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    source.create_index(index).await.unwrap();
    source.insert_many(&events).await.unwrap();
    for shard in 0..2 {
        let direct = cluster.shard(shard).direct_client().unwrap().database("shop");
        assert!(direct.collection::<Document>("events").count_documents(doc! {}).await.unwrap() > 0, "shard {shard}");
    }
    let (first, building) = building(&shop_models());
    let pod = pod(&fixture, first.model_set().unwrap());
    for order in 0..40 {
        pod.apply(all_delivered(&events).into_iter().skip(order).step_by(40).collect()).await;
    }
    let source = SourceConfig { database: "shop".to_owned(), ..events_source() };
    let totals = build_from(&fixture, client, source, &building).await;
    assert_eq!((totals.events, totals.missing_count, totals.parked), (480, 0, 0));
    let (orders, customers) = fold(&events);
    assert_eq!(plain(built(&fixture, &building, "orders").await), plain(orders));
    assert_eq!(plain(built(&fixture, &building, "customers").await), plain(customers));
}

/// A change of a document in `products`.
fn change(id: i32, name: &str, token: u32) -> DeliveredEvent {
    let mut event = delivered(&doc! { "aggregateId": id, "_id": id, "type": "insert" }, token);
    let document = doc! { "_id": id, "name": name };
    event.namespace = Arc::new(Namespace::new("shop", "products"));
    event.body = EventBody::Document(RawDocumentBuf::try_from(&document).unwrap());
    event.sequence = None;
    event
}

#[tokio::test]
async fn a_discarded_change_does_not_leave_its_document_out() {
    let mut fixture = ViewFixture::new("build_discarded", json!({})).await.by_position();
    fixture.by_collection = true;
    let mirror = json!({ "mirror": true, "indexes": [{ "keys": { "name": 1 }, "unique": true }] });
    let copy = version("copy", &mirror);
    let first = Generation::first([("copy".to_owned(), copy.clone())].into());
    let models = first.model_set().unwrap();
    pipeline::view::prepare(
        &fixture.views,
        &[Box::new(copy.compile("copy").unwrap()) as Box<dyn pipeline::view::Projection>],
    )
    .await
    .unwrap();
    let live = pod(&fixture, models.clone());
    live.apply(vec![change(1, "pen", 1), change(2, "pen", 2)]).await;
    let parked = ParkedStore::new((*fixture.views).clone(), "shop", true, models, None);
    let list = parked.list(10).await.unwrap();
    assert_eq!(list.len(), 1, "two documents with one name");
    let products = Namespace::new("shop", "products");
    parked.discard(&list[0].aggregate, &products, "copy", DiscardScope::First).await.unwrap();

    // In the source the second one has another name now.
    let documents = [doc! { "_id": 1, "name": "pen" }, doc! { "_id": 2, "name": "ink" }];
    fixture.source.collection::<Document>("products").insert_many(&documents).await.unwrap();
    let again = ModelVersion::to_build("copy", copy.declaration, copy.fingerprint, 2);
    let next = [("copy".to_owned(), again)].into();
    let building = Generation { number: 2, stage: GenerationStage::Building, next, ..first };
    build(&fixture, SourceConfig::documents("shop", "products"), &building).await;
    assert_eq!(contents(&fixture.views, &built_collection(&building)).await, documents);
}

/// In the order in which live events came, no two orders have one desk at a time.
fn desks() -> Vec<Document> {
    let moved = |order: &str, version, desk: &str| event(order, version, "Moved", doc! { "desk": desk });
    vec![moved("order-2", 1, "a"), moved("order-2", 2, "b"), moved("order-1", 1, "a")]
}

#[tokio::test]
async fn unique_indexes_need_no_order_across_aggregates() {
    // A pipeline is not folded: the build writes every state.
    let model = json!({ "seats": {
        "when": { "Moved": [{ "$set": { "desk": "$$event.payload.desk" } }] },
        "indexes": [{ "keys": { "desk": 1 }, "unique": true }],
    } });
    let fixture = ViewFixture::new("build_unique", json!({})).await;
    let events = desks();
    fixture.write_source(&events).await;
    let (first, mut building) = building(&model);
    let live = pod(&fixture, first.model_set().unwrap());
    live.apply(all_delivered(&events)[..2].to_vec()).await;
    live.apply(all_delivered(&events)[2..].to_vec()).await;
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.parked, totals.missing_count), (0, 0));
    create_unique_indexes(&fixture.views, "shop", &building).await.unwrap();
    let expected = [doc! { "_id": "order-1", "desk": "a" }, doc! { "_id": "order-2", "desk": "b" }];
    assert_eq!(built(&fixture, &building, "seats").await, expected);

    // A violation names the fields, and nothing of a document.
    let same = json!({ "desk": { "when": { "Moved": { "$set": { "kind": "secret" } } }, "indexes": [{ "keys": { "kind": 1 }, "unique": true }] } });
    let declaration = serde_json::from_value(same["desk"].clone()).unwrap();
    building.number = 3;
    building.next = [("desk".to_owned(), ModelVersion::to_build("desk", declaration, "1".to_owned(), 3))].into();
    build(&fixture, events_source(), &building).await;
    let refused = create_unique_indexes(&fixture.views, "shop", &building).await.unwrap_err();
    assert!(
        matches!(&refused, Error::NotUnique { model, fields } if model == "desk" && fields == "`kind`"),
        "{refused}"
    );
    assert!(!refused.to_string().contains("secret"), "{refused}");
}

/// What a build reported last.
#[derive(Clone, Default)]
struct LastReport(Arc<Mutex<BuildTotals>>);

impl BuildProgressReport for LastReport {
    async fn report(&self, totals: &BuildTotals) -> Result<(), Error> {
        *self.0.lock().unwrap() = totals.clone();
        Ok(())
    }
}

async fn set_replication(set: &ReplicaSet, members: &[usize], mode: &str) {
    for member in members {
        let admin = set.member(*member).direct_client().unwrap().database("admin");
        admin.run_command(doc! { "configureFailPoint": "stopReplProducer", "mode": mode }).await.unwrap();
    }
}

/// Writes to the primary until the majority of the members is this many seconds behind.
async fn wait_for_lag(client: &Client, seconds: i64) {
    let own = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    let options = CollectionOptions::builder().write_concern(own).build();
    let notes = client.database("shop").collection_with_options::<Document>("notes", options);
    wait_for("the secondaries to be behind", SOON, async || {
        notes.insert_one(doc! {}).await.unwrap();
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
        let last = hello.get_document("lastWrite").unwrap();
        let at = |field: &str| last.get_datetime(field).unwrap().timestamp_millis() / 1_000;
        let lag = at("lastWriteDate") - at("majorityWriteDate");
        if lag >= seconds { Ok(()) } else { Err(lag) }
    })
    .await;
}

#[tokio::test]
async fn a_build_waits_for_the_secondaries_of_the_source() {
    let set = ReplicaSetConfig::with_members(3).argument("--setParameter").argument("enableTestCommands=1");
    let set = set.start().await.unwrap();
    let client = set.client().await.unwrap();
    let fixture = ViewFixture::new("build_lag", json!({})).await;
    let events = day(5, 4);
    let source = client.database("shop").collection::<Document>("events");
    source.insert_many(&events).write_concern(WriteConcern::majority()).await.unwrap();
    let (first, building) = building(&shop_models());
    let live = pod(&fixture, first.model_set().unwrap());
    for order in 0..5 {
        live.apply(all_delivered(&events).into_iter().skip(order).step_by(5).collect()).await;
    }
    let primary = set.primary().await.unwrap();
    let secondaries: Vec<usize> = (0..3).filter(|member| *member != primary).collect();
    set_replication(&set, &secondaries, "alwaysOn").await;
    wait_for_lag(&client, 3).await;

    let source = SourceConfig { database: "shop".to_owned(), ..events_source() };
    let builder = prepared_builder(&fixture, client.clone(), source, &building).await;
    let report = LastReport::default();
    let options = BuildOptions { max_replication_lag: Duration::from_secs(2), ..BuildOptions::default() };
    let run = builder.run(options, &report);
    let watch = async {
        wait_for("the build to say that it waits", SOON, async || {
            let pause = report.0.lock().unwrap().pause;
            let lags = |pause| matches!(pause, BuildPause::ReplicationLag(lag) if lag > Duration::from_secs(2));
            if pause.is_some_and(lags) { Ok(()) } else { Err(pause) }
        })
        .await;
        assert_eq!(built(&fixture, &building, "orders").await, Vec::<Document>::new(), "it builds nothing meanwhile");
        set_replication(&set, &secondaries, "off").await;
    };
    let (totals, ()) = tokio::join!(run, watch);
    assert_eq!(totals.unwrap().events, 20);
    assert_eq!(report.0.lock().unwrap().pause, None, "it goes on");
    let (orders, _) = fold(&events);
    assert_eq!(plain(built(&fixture, &building, "orders").await), plain(orders));
}
