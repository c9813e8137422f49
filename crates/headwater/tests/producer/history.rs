//! A history that is lost is a state, and there is a documented way out of it (`docs/errors/E0001.md`).

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

use super::{BINARY, SOON, all_come, checkpoint, phase};

async fn house(producer: &str) -> TestCluster {
    let blueprint = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        producer: producer.into(),
        ..TestClusterConfig::new(BINARY)
    };
    TestCluster::start(blueprint).await.unwrap()
}

/// As if nobody had led for years: the token names an event of a moment that no oplog holds. That of an event, whatever was saved last:
/// the token of a quiet moment can be resumed from as long as the oplog was never cut.
async fn age_the_checkpoint(house: &TestCluster, token: &str) {
    // Two digits of type, eight of seconds.
    let aged = format!("{}00000001{}", &token[..2], &token[10..]);
    let update = doc! { "$set": { "token._data": &aged, "position": &aged } };
    let checkpoints = house.coordination().collection::<Document>("checkpoints");
    let changed = checkpoints.update_one(doc! { "_id": "shop" }, update).await.unwrap();
    assert_eq!(changed.modified_count, 1, "a checkpoint");
}

/// The token of the next event.
async fn token_of_next(changes: &mut ChangeStream<ChangeStreamEvent<Document>>) -> String {
    let event = timeout(SOON, changes.next()).await.expect("an event").unwrap().unwrap();
    let token = serialize_to_document(&event.id).expect("a token is a document");
    token.get_str("_data").expect("it has its key").to_owned()
}

/// Runs the pipeline until its first events are out, then stops it and takes its history away.
async fn a_pipeline_without_its_history(house: &mut TestCluster, checker: &Arc<Checker>) -> SubscriptionReader {
    house.start_pods().unwrap();
    let drain = SubscriptionReader::start(&house.broker().connection_string(), &house.broker().subscription(), checker);
    checkpoint(house, "the stream", |stored| phase(stored) == "stream").await;
    let mut changes = house.events().watch().await.unwrap();
    Load { events: 300, aggregates: 20, seed: 21, ..Load::default() }.write(&house.events(), checker).await;
    let token = token_of_next(&mut changes).await;
    all_come(checker).await;
    house.stop_pods().await;
    age_the_checkpoint(house, &token).await;
    // Written while nobody leads.
    Load { events: 300, aggregates: 20, seed: 22, ..Load::default() }.write(&house.events(), checker).await;
    drain
}

fn is_complete_and_in_order(checker: &Checker) {
    // What was published before the history was lost comes again: consumers know it by its sequence.
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
async fn a_lost_history_halts_the_producer_until_the_checkpoint_is_reset() {
    let checker = Arc::new(Checker::new());
    let mut house = house("start: beginning").await;
    let _drain = a_pipeline_without_its_history(&mut house, &checker).await;
    house.start_pods().unwrap();
    let leader = house.wait_for_leader(SOON).await.unwrap();
    let said = house.pod(leader).process().unwrap().wait_for_line("operator action required", SOON).await;
    assert!(said.text.contains("E0001"), "{}", said.text);
    let config = house.pod(leader).config().to_owned();
    a_halt_is_told(&config).await;

    // Without --yes it only says what it would do.
    let reset = async |yes: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["checkpoint", "reset", "--start", "beginning", "--config"]).arg(&config).args(yes);
        command.output().await.expect("the binary runs")
    };
    let refused = reset(&[]).await;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("say --yes"));
    let done = reset(&["--yes"]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    all_come(&checker).await;
    is_complete_and_in_order(&checker);
    checkpoint(&house, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    a_recovery_is_told(&config).await;
    house.stop().await;
}

/// By `status`, to whoever asks with an exit code too; and by the leader's HTTP side: not ready, and not to be restarted either.
async fn a_halt_is_told(config: &Path) {
    let (is_well, status) = told(config, "a halted producer", |status| leader(status)["producer"] == "halted").await;
    assert!(!is_well && status["healthy"] == false, "{status:#}");
    let named = |problem: &&Value| problem["page"] == "E0001" && problem["severity"] == "critical";
    let problem = status["problems"].as_array().unwrap().iter().find(named);
    let text = problem.unwrap_or_else(|| panic!("{status:#}"))["text"].as_str().unwrap();
    assert!(text.contains("operator action required"), "{text}");

    let address = leader(&status)["address"].as_str().unwrap();
    let (code, ready) = ask(address, "/readyz").await;
    let service = |name: &str| ready["services"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
    assert_eq!(
        (code, &ready["ready"], &service("producer")["ready"]),
        (503, &false.into(), &false.into()),
        "{ready:#}"
    );
    assert!(service("producer")["reason"].as_str().unwrap().contains("operator action required"), "{ready:#}");
    assert_eq!(service("lease")["ready"], true, "it leads all the same: {ready:#}");
    assert_eq!(ask(address, "/healthz").await.0, 200, "starting it anew would not help");
}

async fn a_recovery_is_told(config: &Path) {
    // The tests beside this one write into the same oplog, and a status rightly says when that makes it short.
    let troubles = |status: &Value| {
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().filter(|problem| problem["code"] != "oplog_headroom").count()
    };
    let publishing = |status: &Value| leader(status)["producer"] == "publishing" && troubles(status) == 0;
    let (is_well, status) = told(config, "a producer that publishes", publishing).await;
    assert_eq!(Some(is_well), status["healthy"].as_bool(), "{status:#}");
    let address = leader(&status)["address"].as_str().unwrap();
    wait_for("a leader that is ready", SOON, async || match ask(address, "/readyz").await {
        (200, _) => Ok(()),
        (code, ready) => Err(format!("{code} {ready}")),
    })
    .await;
}

/// Waits until `headwater status --json` says so; returns whether it ended well, and what it printed.
async fn told(config: &Path, what: &str, is_it: impl Fn(&Value) -> bool) -> (bool, Value) {
    wait_for(what, SOON, async || {
        let mut command = Command::new(BINARY);
        let output =
            command.args(["status", "--json", "--config"]).arg(config).output().await.expect("the binary runs");
        let status: Value = serde_json::from_slice(&output.stdout).expect("it says JSON");
        if is_it(&status) { Ok((output.status.success(), status)) } else { Err(format!("{status:#}")) }
    })
    .await
}

/// What the leader announced of itself; null while there is none.
fn leader(status: &Value) -> &Value {
    let is_leader = |pod: &&Value| pod["id"] == status["leader"]["pod"];
    status["pods"].as_array().and_then(|pods| pods.iter().find(is_leader)).unwrap_or(&Value::Null)
}

async fn ask(address: &str, path: &str) -> (u16, Value) {
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
async fn a_lost_history_is_read_anew_where_that_is_configured() {
    let checker = Arc::new(Checker::new());
    let mut house = house("start: beginning, on_history_lost: snapshot").await;
    let _drain = a_pipeline_without_its_history(&mut house, &checker).await;
    house.start_pods().unwrap();
    all_come(&checker).await;
    is_complete_and_in_order(&checker);
    checkpoint(&house, "the stream again", |stored| {
        phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(2)
    })
    .await;
    house.stop().await;
}

/// What a pipeline that began `now` never needed, reading the whole source does: an index that has the order.
#[tokio::test]
async fn a_source_that_cannot_be_read_in_order_is_not_read_anew() {
    let checker = Arc::new(Checker::new());
    let mut house = house("start: now, on_history_lost: snapshot").await;
    let _drain = a_pipeline_without_its_history(&mut house, &checker).await;
    house.events().drop_indexes().await.unwrap();
    house.start_pods().unwrap();
    let leader = house.wait_for_leader(SOON).await.unwrap();
    let said = house.pod(leader).process().unwrap().wait_for_line("operator action required", SOON).await;
    assert!(said.text.contains("index"), "{}", said.text);
    checkpoint(&house, "what it was", |stored| phase(stored) == "stream" && stored.get_i64("epoch").ok() == Some(1))
        .await;

    let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).build();
    house.events().create_index(index).await.unwrap();
    all_come(&checker).await;
    is_complete_and_in_order(&checker);
    house.stop().await;
}
