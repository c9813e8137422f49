//! Lost history halts the producer, and `docs/errors/E0001.md` describes the recovery.

use std::path::Path;
use std::sync::Arc;

use bench::soak::SubscriptionReader;
use futures_util::StreamExt;
use mongodb::IndexModel;
use mongodb::bson::{Document, doc, serialize_to_document};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use serde_json::Value;
use testkit::checker::{Checker, DuplicatePolicy, ViolationKind};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::load::Load;
use testkit::wait::wait_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::{BINARY, TIMEOUT, phase, wait_for_all_events, wait_for_checkpoint};

async fn start_cluster(producer: &str) -> TestCluster {
    let config = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        producer: producer.into(),
        ..TestClusterConfig::new(BINARY)
    };
    TestCluster::start(config).await.unwrap()
}

/// Moves the checkpoint to a time that no oplog holds. Uses the token of an event: the token of a quiet stream resumes as long as the oplog was
/// never truncated.
async fn age_checkpoint(cluster: &TestCluster, token: &str) {
    // Two digits of type, then eight digits of seconds.
    let aged = format!("{}00000001{}", &token[..2], &token[10..]);
    let update = doc! { "$set": { "token._data": &aged, "position": &aged } };
    let checkpoints = cluster.coordination().collection::<Document>("checkpoints");
    let changed = checkpoints.update_one(doc! { "_id": "shop" }, update).await.unwrap();
    assert_eq!(changed.modified_count, 1, "a checkpoint");
}

/// The token of the next event.
async fn token_of_next(changes: &mut ChangeStream<ChangeStreamEvent<Document>>) -> String {
    let event = timeout(TIMEOUT, changes.next()).await.expect("an event").unwrap().unwrap();
    let token = serialize_to_document(&event.id).expect("a token is a document");
    token.get_str("_data").expect("it has its key").to_owned()
}

/// Runs the pipeline until its first events are published, then stops it and removes its history.
async fn cluster_with_lost_history(cluster: &mut TestCluster, checker: &Arc<Checker>) -> SubscriptionReader {
    cluster.start_pods().unwrap();
    let drain = SubscriptionReader::start(cluster.broker(), &cluster.broker().subscription(), checker);
    wait_for_checkpoint(cluster, "the stream", |stored| phase(stored) == "stream").await;
    let mut changes = cluster.events().watch().await.unwrap();
    Load { events: 300, aggregates: 20, seed: 21, ..Load::default() }.write(&cluster.events(), checker).await;
    let token = token_of_next(&mut changes).await;
    wait_for_all_events(checker).await;
    cluster.stop_pods().await;
    age_checkpoint(cluster, &token).await;
    // Written while there is no leader.
    Load { events: 300, aggregates: 20, seed: 22, ..Load::default() }.write(&cluster.events(), checker).await;
    drain
}

fn assert_complete_and_in_order(checker: &Checker) {
    // Events published before the loss are published again; consumers recognise them by sequence.
    let report = checker.check(DuplicatePolicy::Counted);
    assert_eq!(
        (
            report.count(ViolationKind::Lost),
            report.count(ViolationKind::OutOfOrder),
            report.count(ViolationKind::Unexpected)
        ),
        (0, 0, 0),
        "{report}"
    );
}

#[tokio::test]
async fn lost_history_halts_the_producer_until_a_reset() {
    let checker = Arc::new(Checker::new());
    let mut cluster = start_cluster("start: beginning").await;
    let _drain = cluster_with_lost_history(&mut cluster, &checker).await;
    cluster.start_pods().unwrap();
    let leader = cluster.wait_for_leader(TIMEOUT).await.unwrap();
    let output = cluster.pod(leader).process().unwrap().wait_for_line("operator action required", TIMEOUT).await;
    assert!(output.text.contains("E0001"), "{}", output.text);
    let config = cluster.pod(leader).config().to_owned();
    assert_halt_is_reported(&config).await;

    // Without `--yes` it only prints the consequence.
    let reset = async |yes: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["checkpoint", "reset", "--start", "beginning", "--config"]).arg(&config).args(yes);
        command.output().await.expect("the binary runs")
    };
    let refused = reset(&[]).await;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --yes"));
    let done = reset(&["--yes"]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    wait_for_all_events(&checker).await;
    assert_complete_and_in_order(&checker);
    wait_for_checkpoint(&cluster, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    assert_recovery_is_reported(&config).await;
    cluster.stop().await;
}

/// `status` reports it, also by its exit code; the leader is not ready but alive, so that it is not restarted.
async fn assert_halt_is_reported(config: &Path) {
    let (is_well, status) =
        wait_for_status(config, "a halted producer", |status| leader(status)["producer"] == "halted").await;
    assert!(!is_well && status["healthy"] == false, "{status:#}");
    let named = |problem: &&Value| problem["page"] == "E0001" && problem["severity"] == "critical";
    let problem = status["problems"].as_array().unwrap().iter().find(named);
    let text = problem.unwrap_or_else(|| panic!("{status:#}"))["text"].as_str().unwrap();
    assert!(text.contains("operator action required"), "{text}");

    let address = leader(&status)["address"].as_str().unwrap();
    let (code, ready) = http_get(address, "/readyz").await;
    let service = |name: &str| ready["services"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
    assert_eq!(
        (code, &ready["ready"], &service("producer")["ready"]),
        (503, &false.into(), &false.into()),
        "{ready:#}"
    );
    assert!(service("producer")["reason"].as_str().unwrap().contains("operator action required"), "{ready:#}");
    assert_eq!(service("lease")["ready"], true, "it leads all the same: {ready:#}");
    assert_eq!(http_get(address, "/healthz").await.0, 200, "starting it anew would not help");
}

async fn assert_recovery_is_reported(config: &Path) {
    // Other tests write to the same oplog, so `status` may report a short one.
    let problems_besides_oplog = |status: &Value| {
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().filter(|problem| problem["code"] != "oplog_headroom").count()
    };
    let publishing = |status: &Value| leader(status)["producer"] == "publishing" && problems_besides_oplog(status) == 0;
    let (is_well, status) = wait_for_status(config, "a producer that publishes", publishing).await;
    assert_eq!(Some(is_well), status["healthy"].as_bool(), "{status:#}");
    let address = leader(&status)["address"].as_str().unwrap();
    wait_for("a leader that is ready", TIMEOUT, async || match http_get(address, "/readyz").await {
        (200, _) => Ok(()),
        (code, ready) => Err(format!("{code} {ready}")),
    })
    .await;
}

/// Waits until `headwater status --json` says so; returns whether it ended well, and what it printed.
async fn wait_for_status(config: &Path, what: &str, is_it: impl Fn(&Value) -> bool) -> (bool, Value) {
    wait_for(what, TIMEOUT, async || {
        let mut command = Command::new(BINARY);
        let output =
            command.args(["status", "--json", "--config"]).arg(config).output().await.expect("the binary runs");
        let status: Value = serde_json::from_slice(&output.stdout).expect("it says JSON");
        if is_it(&status) { Ok((output.status.success(), status)) } else { Err(format!("{status:#}")) }
    })
    .await
}

/// The announcement of the leader; null if there is none.
fn leader(status: &Value) -> &Value {
    let is_leader = |pod: &&Value| pod["id"] == status["leader"]["pod"];
    status["pods"].as_array().and_then(|pods| pods.iter().find(is_leader)).unwrap_or(&Value::Null)
}

async fn http_get(address: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
    (code, body.expect("its body is JSON"))
}

#[tokio::test]
async fn lost_history_starts_a_new_snapshot_if_configured() {
    let checker = Arc::new(Checker::new());
    let mut cluster = start_cluster("start: beginning, on_history_lost: snapshot").await;
    let _drain = cluster_with_lost_history(&mut cluster, &checker).await;
    cluster.start_pods().unwrap();
    wait_for_all_events(&checker).await;
    assert_complete_and_in_order(&checker);
    wait_for_checkpoint(&cluster, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    cluster.stop().await;
}

/// A new snapshot needs the scan index, which a pipeline started at `now` does not need.
#[tokio::test]
async fn a_new_snapshot_needs_the_scan_index() {
    let checker = Arc::new(Checker::new());
    let mut cluster = start_cluster("start: now, on_history_lost: snapshot").await;
    let _drain = cluster_with_lost_history(&mut cluster, &checker).await;
    cluster.events().drop_indexes().await.unwrap();
    cluster.start_pods().unwrap();
    let leader = cluster.wait_for_leader(TIMEOUT).await.unwrap();
    let output = cluster.pod(leader).process().unwrap().wait_for_line("operator action required", TIMEOUT).await;
    assert!(output.text.contains("index"), "{}", output.text);
    wait_for_checkpoint(&cluster, "what it was", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(1)
    })
    .await;

    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    cluster.events().create_index(index).await.unwrap();
    wait_for_all_events(&checker).await;
    assert_complete_and_in_order(&checker);
    cluster.stop().await;
}
