//! The real processes that get the inputs, and the memory that they may use.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use local_cluster::{BrokerOptions, BrokerProcess, usage};
use mongodb::bson::{Bson, Document, doc};
use nix::sys::resource::{UsageWho, getrusage};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::wait::wait_for;

use crate::table::PeakMemory;

pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Stated in `docs/security.md`. The binary of a test build is larger than a release.
const BROKER_LIMIT_MB: f64 = 200.0;
const POD_LIMIT_MB: f64 = 300.0;
const COMMAND_LIMIT_MB: f64 = 300.0;

pub(crate) async fn start_broker(folder: &Path) -> BrokerProcess {
    start_broker_with(folder, vec![]).await
}

pub(crate) async fn start_broker_with(folder: &Path, arguments: Vec<String>) -> BrokerProcess {
    let options = BrokerOptions {
        binary: crate::BINARY.into(),
        data_dir: folder.join("data"),
        entities: None,
        test_hooks: false,
        access: None,
        arguments,
        environment: vec![],
    };
    BrokerProcess::start(&options).await.unwrap()
}

pub(crate) fn broker_memory(broker: &BrokerProcess) -> PeakMemory {
    PeakMemory { process: "broker", used_mb: usage::peak_resident_mb(broker.pid()), limit_mb: BROKER_LIMIT_MB }
}

/// One pod that leads and follows the change stream.
pub(crate) async fn start_pod(extra_yaml: &str) -> TestCluster {
    let config = TestClusterConfig {
        pods: 1,
        mongo: MongoTopology::Shared,
        extra_yaml: extra_yaml.to_owned(),
        ..TestClusterConfig::new(crate::BINARY)
    };
    let mut cluster = TestCluster::start(config).await.unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_leader(SOON).await.unwrap();
    cluster.wait_for_stream_phase(SOON).await.unwrap();
    cluster
}

/// Of the one pod, which must be the process that was started.
pub(crate) fn pod_memory(cluster: &TestCluster) -> PeakMemory {
    let pod = cluster.pod(0).running_process().expect("the pod did not end");
    PeakMemory { process: "pod", used_mb: usage::peak_resident_mb(pod.pid()), limit_mb: POD_LIMIT_MB }
}

/// Of the largest command that this process has run.
pub(crate) fn command_memory() -> PeakMemory {
    let kibibytes = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    PeakMemory { process: "command", used_mb: kibibytes as f64 / 1024.0, limit_mb: COMMAND_LIMIT_MB }
}

pub(crate) async fn admin_address(cluster: &TestCluster) -> SocketAddr {
    let line = cluster.pod(0).process().unwrap().wait_for_line("admin server listening", SOON).await.text;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    line["address"].as_str().unwrap().parse().unwrap()
}

pub(crate) fn views(cluster: &TestCluster) -> mongodb::Database {
    cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()))
}

/// The cursor of an aggregate. `$eq`, because the aggregate may look like a condition.
pub(crate) async fn find_cursor(cluster: &TestCluster, aggregate: &Bson) -> Option<Document> {
    let cursors = views(cluster).collection::<Document>("_headwater_cursors");
    cursors.find_one(doc! { "_id.aggregate": { "$eq": aggregate } }).await.unwrap()
}

/// Where the pod has put an event in one read model. `None`: the only event of its aggregate.
pub(crate) fn describe_cursor(cursor: &Document, model: &str, sequence: Option<i64>) -> String {
    let Ok(parked) = cursor.get_document("parked").and_then(|parked| parked.get_document(model)) else {
        return "applied".to_owned();
    };
    match (parked.get_i64("sequence"), sequence) {
        (Ok(at), Some(sequence)) if at < sequence => "queued behind a parked event".to_owned(),
        (Ok(at), Some(sequence)) if at > sequence => "applied".to_owned(),
        _ => format!("parked: {}", parked.get_str("reason").unwrap()),
    }
}

/// An event in the source still reaches its read model.
pub(crate) async fn assert_events_are_still_applied(cluster: &TestCluster) {
    let event = doc! {
        "aggregateId": "honest", "version": 1_i64, "type": "Added", "payload": { "shop": "honest", "line": "oar" },
    };
    cluster.events().insert_one(event).await.unwrap();
    let orders = views(cluster).collection::<Document>("orders");
    let order = wait_for("the honest event to be applied", SOON, async || {
        orders.find_one(doc! { "_id": "honest" }).await.unwrap().ok_or("not yet")
    })
    .await;
    assert_eq!(order, doc! { "_id": "honest", "lines": ["oar"] });
}
