//! What a MongoDB that is away, or says otherwise than it does, moves; and how much history it keeps.

use std::time::Duration;

use mongodb::ClusterTime;
use mongodb::bson::{Binary, Document, Timestamp, doc, spec::BinarySubtype};
use testkit::cluster::{LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::mongo::ReplicaSetConfig;
use testkit::nemesis::LinkTarget;
use testkit::proxy::NetworkFault;
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, becomes, rise};
use crate::fixture::{PodFixture, SOON, blueprint};

pub(super) const MOVED: MetricNames = &[
    "headwater_store_errors_total",
    "headwater_capture_reopened_total",
    "headwater_transactions_total{outcome=\"unknown\"}",
    "headwater_oplog_headroom_seconds",
];

#[tokio::test]
async fn a_store_that_is_away_for_a_moment_is_asked_again_and_the_stream_opened_again() {
    // A lease that outlasts it.
    let lease = LeaseTimings {
        ttl: Duration::from_secs(60),
        renew_deadline: Duration::from_secs(50),
        heartbeat: Duration::from_secs(1),
    };
    let mut fixture = PodFixture::start(TestClusterConfig { lease, ..blueprint(MongoTopology::Shared) }).await;
    let before = MetricsSnapshot::of(&fixture).await;
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    becomes(&fixture, "headwater_in_flight_events", 1.0).await;
    // Acknowledged now, and the checkpoint cannot be saved.
    let link = fixture.0.pod(0).link(LinkTarget::Mongo).expect("the link leads through the fixture");
    link.inject(NetworkFault::Cut).await;
    fixture.0.broker_mut().resume();
    rise(&fixture, &before, &["headwater_store_errors_total", "headwater_capture_reopened_total"]).await;
    let link = fixture.0.pod(0).link(LinkTarget::Mongo).expect("the link leads through the fixture");
    link.heal().await;
    fixture.applied("order-1").await;
    assert_eq!(fixture.metric("headwater_terms_total").await, Some(1.0), "in the same term");
    fixture.stop().await;
}

#[tokio::test]
async fn a_commit_whose_end_is_not_known_is_counted() {
    // The read models are on a server that can be told to fail.
    let set = ReplicaSetConfig::with_members(1)
        .argument("--setParameter")
        .argument("enableTestCommands=1")
        .start()
        .await
        .unwrap();
    let client = set.client().await.unwrap();
    let orders = "orders: { when: { Placed: { $set: { seen: true } } } }";
    let more = format!("read_models: {{ uri: \"{}\", database: views, {orders} }}\n", set.uri());
    let fixture = PodFixture::start(TestClusterConfig { extra_yaml: more, ..blueprint(MongoTopology::Shared) }).await;
    let commits = async |mode: &str, how: Document| {
        let mut data = how;
        data.insert("failCommands", vec!["commitTransaction"]);
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        client.database("admin").run_command(command).await.unwrap();
    };
    let unmet = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    commits("alwaysOn", unmet).await;
    let before = MetricsSnapshot::of(&fixture).await;
    fixture.insert("order-1", 1).await;
    rise(&fixture, &before, &["headwater_transactions_total{outcome=\"unknown\"}"]).await;
    commits("off", doc! {}).await;
    let views = client.database("views").collection::<Document>("orders");
    wait_for("the read model", SOON, async || match views.find_one(doc! { "_id": "order-1" }).await {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    fixture.stop().await;
}

#[tokio::test]
async fn headroom_is_unknown_while_the_oplog_is_young_and_then_as_long_as_it_reaches() {
    let fixture = PodFixture::start(blueprint(MongoTopology::SingleNode)).await;
    const SAMPLE: &str = "headwater_oplog_headroom_seconds";
    assert_eq!(fixture.metric(SAMPLE).await, None, "a young oplog says nothing about its rate");
    // A server believes whoever says that it is later: with its next write the oplog spans two hours.
    let client = fixture.0.mongo().client();
    let mut session = client.start_session().await.unwrap();
    client.database("admin").run_command(doc! { "ping": 1 }).session(&mut session).await.unwrap();
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() + 7_200;
    let time = Timestamp { time: u32::try_from(seconds).unwrap(), increment: 1 };
    let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
    let later = doc! { "clusterTime": time, "signature": { "hash": hash, "keyId": 0_i64 } };
    let later: ClusterTime = mongodb::bson::deserialize_from_document(later).unwrap();
    session.advance_cluster_time(&later);
    client.database("admin").run_command(doc! { "ping": 1 }).session(&mut session).await.unwrap();
    fixture.insert("order-1", 1).await;
    fixture.applied("order-1").await;
    let headroom = wait_for("a headroom", SOON, async || fixture.metric(SAMPLE).await.ok_or("unknown")).await;
    // It is all but empty: there is room for more than it holds.
    assert!(headroom >= 7_000.0, "{headroom} s");
    fixture.stop().await;
}
