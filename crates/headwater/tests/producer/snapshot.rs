//! A snapshot under load with a takeover is complete, in order, and resumed instead of restarted.

mod document_churn;
mod documents;
mod topic_reader;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::soak::SubscriptionReader;
use mongodb::bson::{Document, doc};
use testkit::checker::{Checker, DuplicatePolicy, ViolationKind};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig, TopicConfig};
use testkit::load::Load;
use testkit::nemesis::LinkTarget;
use testkit::proxy::{Direction, NetworkFault};
use testkit::wait::wait_for;
use tokio_util::sync::CancellationToken;

use topic_reader::{TopicContents, TopicReader};

use super::{BINARY, TIMEOUT, phase, wait_for_all_events, wait_for_checkpoint};

/// Small, so that a restarted snapshot is visible.
const WINDOW: &str = "start: beginning, checkpoint: 20ms, window: { events: 64, bytes: 1MiB }";

const WINDOW_EVENTS: u64 = 64;

fn scanned(checkpoint: &Document) -> i64 {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_i64("scanned")).unwrap_or(0)
}

fn run(checkpoint: &Document) -> String {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_str("run")).unwrap_or_default().to_owned()
}

/// Starts the pods; their links to the broker freeze after `bytes`, at about 1,100 bytes per message.
async fn start_pods_with_frozen_links(cluster: &mut TestCluster, bytes: u64) {
    for pod in cluster.pods() {
        let bus = pod.link(LinkTarget::Broker).expect("a pod is linked to the bus");
        bus.on_each_connection(NetworkFault::Freeze.after(bytes, Direction::ToTarget)).await;
    }
    cluster.start_pods().unwrap();
}

async fn wait_until_scanned(cluster: &TestCluster, least: i64) {
    let on_its_way = |stored: &Document| phase(stored) == "snapshot" && scanned(stored) >= least;
    wait_for_checkpoint(cluster, "a snapshot on its way", on_its_way).await;
}

/// Unfreezes the links; the same snapshot run must continue after `left`.
async fn assert_snapshot_resumes(cluster: &TestCluster, left: &Document) {
    for pod in cluster.pods() {
        pod.link(LinkTarget::Broker).expect("a pod is linked to the bus").heal().await;
    }
    let further = |stored: &Document| phase(stored) == "stream" || scanned(stored) > scanned(left);
    let next = wait_for_checkpoint(cluster, "the snapshot to go on", further).await;
    if phase(&next) == "snapshot" {
        assert_eq!(run(&next), run(left), "another run");
    }
}

/// Kills the leader during its snapshot; the next leader must resume it.
async fn kill_leader_during_snapshot(cluster: &mut TestCluster) {
    let leader = cluster.wait_for_leader(TIMEOUT).await.unwrap();
    cluster.pod_mut(leader).kill().await;
    let left = wait_for_checkpoint(cluster, "what the leader left", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    assert_snapshot_resumes(cluster, &left).await;
}

/// Waits for a second with at least a thousand writes. The snapshot is frozen meanwhile, however slow the machine is.
async fn wait_for_write_rate(written: impl Fn() -> u64) {
    const LEAST: f64 = 1_000.0;
    let rate = wait_for("a second of a thousand writes", TIMEOUT, async || {
        let (before, began) = (written(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let rate = (written() - before) as f64 / began.elapsed().as_secs_f64();
        if rate >= LEAST { Ok(rate) } else { Err(rate) }
    })
    .await;
    println!("{rate:.0} writes a second during the snapshot");
}

/// Number of takeovers.
async fn takeovers(cluster: &TestCluster) -> u64 {
    let leases = cluster.coordination().collection::<Document>("leader_leases");
    let lease = leases.find_one(doc! { "_id": "shop" }).await.unwrap().expect("a lease");
    u64::try_from(lease.get_i64("term").expect("it has its term")).expect("terms rise from one") - 1
}

#[tokio::test]
async fn an_event_snapshot_resumes_under_load_with_the_next_leader() {
    // Far more than may be republished, so a restarted snapshot is visible.
    const BEFORE: i64 = 16 * WINDOW_EVENTS as i64;
    // Without duplicate detection, so that republished messages are visible.
    let topic = TopicConfig { duplicate_window: None, observer_subscription: true, ..TopicConfig::default() };
    let config = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        topic,
        producer: WINDOW.into(),
        ..TestClusterConfig::new(BINARY)
    };
    let mut cluster = TestCluster::start(config).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 4_000, aggregates: 400, writers: 16, seed: 31, ..Load::default() }
        .write(&cluster.events(), &checker)
        .await;
    start_pods_with_frozen_links(&mut cluster, 3_000_000).await;
    wait_until_scanned(&cluster, BEFORE).await;

    // Twice the required rate; late writes are made up for.
    let (events, ledger, stop) = (cluster.events(), Arc::clone(&checker), CancellationToken::new());
    let load =
        Load { events: 1_000_000, aggregates: 400, writers: 16, run_length: 8..=16, seed: 32, ..Load::default() };
    let inserts = Load { rate: Some(2_000.0), ..load };
    let stop_writing = stop.clone();
    let inserting = tokio::spawn(async move { inserts.write_until(&events, &ledger, &stop_writing).await });
    wait_for_write_rate(|| checker.counts().acknowledged).await;
    kill_leader_during_snapshot(&mut cluster).await;
    let _drain = SubscriptionReader::start(cluster.broker(), &cluster.broker().subscription(), &checker);
    wait_for_checkpoint(&cluster, "the stream", |stored| phase(stored) == "stream").await;
    stop.cancel();
    assert_eq!(inserting.await.unwrap().in_doubt, 0);
    wait_for_all_events(&checker).await;
    let most = WINDOW_EVENTS * takeovers(&cluster).await;
    cluster.stop_pods().await;
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
    let contents = TopicReader::start(&cluster, &cluster.broker().observer_subscription()).finish().await;
    assert_not_restarted(&contents, most, BEFORE);
    cluster.stop().await;
}

/// At most the messages in flight at each takeover are repeated; `scanned` of them would be if the snapshot had restarted.
fn assert_not_restarted(contents: &TopicContents, most: u64, scanned: i64) {
    let repeated = contents.repeated_snapshot_messages();
    println!("{repeated} messages repeated by the snapshot, at most {most} were in flight");
    assert!(most < scanned as u64, "too many takeovers for this check");
    assert!(repeated <= most, "{repeated} messages repeated: the snapshot was restarted");
}

#[tokio::test]
async fn a_snapshot_resumes_when_the_primary_is_killed() {
    // Without duplicate detection, so that republished messages are visible.
    let topic = TopicConfig { duplicate_window: None, ..TopicConfig::default() };
    let config = TestClusterConfig { pods: 2, topic, producer: WINDOW.into(), ..TestClusterConfig::new(BINARY) };
    let mut cluster = TestCluster::start(config).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 3_000, aggregates: 200, writers: 16, seed: 33, ..Load::default() }
        .write(&cluster.events(), &checker)
        .await;
    start_pods_with_frozen_links(&mut cluster, 300_000).await;
    // More than a window, so a restarted snapshot is visible.
    wait_until_scanned(&cluster, 2 * WINDOW_EVENTS as i64).await;
    cluster.mongo_mut().kill_primary().await.unwrap();
    let left = wait_for_checkpoint(&cluster, "what the others have of it", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    assert_snapshot_resumes(&cluster, &left).await;
    let _drain = SubscriptionReader::start(cluster.broker(), &cluster.broker().subscription(), &checker);
    wait_for_all_events(&checker).await;
    wait_for_checkpoint(&cluster, "the stream", |stored| phase(stored) == "stream").await;
    cluster.stop_pods().await;
    let report = checker.check(DuplicatePolicy::Counted);
    assert!(report.is_clean(), "{report}");
    assert!(report.most_duplicates_in_a_term() <= WINDOW_EVENTS, "the snapshot was restarted: {:?}", report.duplicates);
    cluster.stop().await;
}
