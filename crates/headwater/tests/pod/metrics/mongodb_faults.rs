//! Metrics moved by MongoDB outages and failed commits, and the oplog headroom.

use std::time::Duration;

use mongodb::ClusterTime;
use mongodb::bson::{Binary, Document, Timestamp, doc, spec::BinarySubtype};
use testkit::cluster::{LeaseTimings, MongoTopology, TestClusterConfig};
use testkit::mongo::ReplicaSetConfig;
use testkit::nemesis::LinkTarget;
use testkit::proxy::NetworkFault;
use testkit::wait::wait_for;

use super::{MetricNames, MetricsSnapshot, wait_for_rise, wait_for_value};
use crate::fixture::{PodFixture, SOON, cluster_config};

pub(super) const MOVED: MetricNames = &[
    "headwater_store_errors_total",
    "headwater_capture_reopened_total",
    "headwater_transactions_total{outcome=\"unknown\"}",
    "headwater_oplog_headroom_seconds",
];

#[tokio::test]
async fn a_mongodb_outage_counts_store_errors_and_reopenings() {
    // A lease that outlasts the outage.
    let lease = LeaseTimings {
        ttl: Duration::from_secs(60),
        renew_deadline: Duration::from_secs(50),
        heartbeat: Duration::from_secs(1),
    };
    let mut fixture = PodFixture::start(TestClusterConfig { lease, ..cluster_config(MongoTopology::Shared) }).await;
    let before = MetricsSnapshot::read(&fixture).await;
    fixture.0.broker_mut().pause().await;
    fixture.insert("order-1", 1).await;
    wait_for_value(&fixture, "headwater_in_flight_events", 1.0).await;
    // The event is acknowledged, but the checkpoint cannot be saved.
    let link = fixture.0.pod(0).link(LinkTarget::Mongo).expect("the pod has a proxied link");
    link.inject(NetworkFault::Cut).await;
    fixture.0.broker_mut().resume();
    wait_for_rise(&fixture, &before, &["headwater_store_errors_total", "headwater_capture_reopened_total"]).await;
    let link = fixture.0.pod(0).link(LinkTarget::Mongo).expect("the pod has a proxied link");
    link.heal().await;
    fixture.wait_for_applied("order-1").await;
    assert_eq!(fixture.metric("headwater_terms_total").await, Some(1.0), "in the same term");
    fixture.stop().await;
}

#[tokio::test]
async fn an_unknown_commit_result_is_counted() {
    // The read models are on a server with test commands, which can fail commits.
    let set = ReplicaSetConfig::with_members(1)
        .argument("--setParameter")
        .argument("enableTestCommands=1")
        .start()
        .await
        .unwrap();
    let client = set.client().await.unwrap();
    let orders = "orders: { when: { Placed: { $set: { seen: true } } } }";
    let more = format!("read_models: {{ uri: \"{}\", database: views, {orders} }}\n", set.uri());
    let fixture =
        PodFixture::start(TestClusterConfig { extra_yaml: more, ..cluster_config(MongoTopology::Shared) }).await;
    let commits = async |mode: &str, how: Document| {
        let mut data = how;
        data.insert("failCommands", vec!["commitTransaction"]);
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        client.database("admin").run_command(command).await.unwrap();
    };
    let unmet = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    commits("alwaysOn", unmet).await;
    let before = MetricsSnapshot::read(&fixture).await;
    fixture.insert("order-1", 1).await;
    wait_for_rise(&fixture, &before, &["headwater_transactions_total{outcome=\"unknown\"}"]).await;
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
async fn headroom_is_unknown_until_the_oplog_has_history() {
    let fixture = PodFixture::start(cluster_config(MongoTopology::SingleNode)).await;
    const SAMPLE: &str = "headwater_oplog_headroom_seconds";
    assert_eq!(fixture.metric(SAMPLE).await, None, "a young oplog has no known rate of writes");
    // A server adopts a later cluster time: with its next write the oplog spans two hours.
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
    fixture.wait_for_applied("order-1").await;
    let headroom = wait_for("the headroom", SOON, async || fixture.metric(SAMPLE).await.ok_or("unknown")).await;
    // The oplog is almost empty, so the headroom is larger than its window.
    assert!(headroom >= 7_000.0, "{headroom} s");
    fixture.stop().await;
}
