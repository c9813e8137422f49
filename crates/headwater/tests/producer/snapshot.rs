//! A snapshot under writes, with a takeover in its middle: complete, in order, resumed and not restarted.

mod churn;
mod documents;
mod told;

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

use told::Listening;

use super::{BINARY, SOON, all_come, checkpoint, phase};

/// Small, so that a takeover that begins again would show.
const WINDOW: &str = "start: beginning, checkpoint: 20ms, window: { events: 64, bytes: 1MiB }";

const WINDOW_EVENTS: u64 = 64;

fn scanned(checkpoint: &Document) -> i64 {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_i64("scanned")).unwrap_or(0)
}

fn run(checkpoint: &Document) -> String {
    checkpoint.get_document("snapshot").and_then(|snapshot| snapshot.get_str("run")).unwrap_or_default().to_owned()
}

/// Starts the pods; their links to the bus freeze when so many bytes have gone out, which is some 1,100 a message.
async fn start_and_freeze_after(house: &mut TestCluster, bytes: u64) {
    for pod in house.pods() {
        let bus = pod.link(LinkTarget::Broker).expect("a pod is linked to the bus");
        bus.on_each_connection(NetworkFault::Freeze.after(bytes, Direction::ToTarget)).await;
    }
    house.start_pods().unwrap();
}

async fn has_scanned(house: &TestCluster, least: i64) {
    let on_its_way = |stored: &Document| phase(stored) == "snapshot" && scanned(stored) >= least;
    checkpoint(house, "a snapshot on its way", on_its_way).await;
}

/// The links are free; sees the same snapshot go on behind where it was `left`.
async fn goes_on(house: &TestCluster, left: &Document) {
    for pod in house.pods() {
        pod.link(LinkTarget::Broker).expect("a pod is linked to the bus").heal().await;
    }
    let further = |stored: &Document| phase(stored) == "stream" || scanned(stored) > scanned(left);
    let next = checkpoint(house, "the snapshot to go on", further).await;
    if phase(&next) == "snapshot" {
        assert_eq!(run(&next), run(left), "another run");
    }
}

/// Kills the leader in the middle of its snapshot, and sees the next one go on there.
async fn takeover_in_the_middle(house: &mut TestCluster) {
    let leader = house.wait_for_leader(SOON).await.unwrap();
    house.pod_mut(leader).kill().await;
    let left = checkpoint(house, "what the leader left", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    goes_on(house, &left).await;
}

/// Waits for a second in which a thousand writes and more happen: the snapshot stands in its middle until then, however slow the machine is.
async fn a_second_of_a_thousand(written: impl Fn() -> u64) {
    const LEAST: f64 = 1_000.0;
    let rate = wait_for("a second of a thousand writes", SOON, async || {
        let (before, began) = (written(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let rate = (written() - before) as f64 / began.elapsed().as_secs_f64();
        if rate >= LEAST { Ok(rate) } else { Err(rate) }
    })
    .await;
    println!("{rate:.0} writes a second while the snapshot was under way");
}

/// How often the lease has changed hands.
async fn takeovers(house: &TestCluster) -> u64 {
    let leases = house.coordination().collection::<Document>("leader_leases");
    let lease = leases.find_one(doc! { "_id": "shop" }).await.unwrap().expect("a lease");
    u64::try_from(lease.get_i64("term").expect("it has its term")).expect("terms rise from one") - 1
}

#[tokio::test]
async fn a_snapshot_of_events_under_inserts_goes_on_with_the_next_leader() {
    // Far more than may be told twice: reading from the beginning again would show.
    const BEFORE: i64 = 16 * WINDOW_EVENTS as i64;
    // Without duplicate detection, so that what is read again is seen again.
    let topic = TopicConfig { duplicate_window: None, observer_subscription: true, ..TopicConfig::default() };
    let blueprint = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        topic,
        producer: WINDOW.into(),
        ..TestClusterConfig::new(BINARY)
    };
    let mut house = TestCluster::start(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 4_000, aggregates: 400, writers: 16, seed: 31, ..Load::default() }
        .write(&house.events(), &checker)
        .await;
    start_and_freeze_after(&mut house, 3_000_000).await;
    has_scanned(&house, BEFORE).await;

    // Twice as fast as must be, in runs, and what is late is made up for.
    let (events, ledger, enough) = (house.events(), Arc::clone(&checker), CancellationToken::new());
    let load =
        Load { events: 1_000_000, aggregates: 400, writers: 16, run_length: 8..=16, seed: 32, ..Load::default() };
    let inserts = Load { rate: Some(2_000.0), ..load };
    let told_enough = enough.clone();
    let inserting = tokio::spawn(async move { inserts.write_until(&events, &ledger, &told_enough).await });
    a_second_of_a_thousand(|| checker.counts().acknowledged).await;
    takeover_in_the_middle(&mut house).await;
    let _drain =
        SubscriptionReader::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    enough.cancel();
    assert_eq!(inserting.await.unwrap().in_doubt, 0);
    all_come(&checker).await;
    let most = WINDOW_EVENTS * takeovers(&house).await;
    house.stop_pods().await;
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
    let told = Listening::start(&house, &house.broker().observer_subscription()).finish().await;
    println!("{} events told twice by the snapshot, at most {most} were under way", told.scanned_again());
    assert!(most < BEFORE as u64, "so many takeovers show nothing");
    assert!(told.scanned_again() <= most, "{} told twice: the snapshot was read again", told.scanned_again());
    house.stop().await;
}

#[tokio::test]
async fn a_snapshot_goes_on_when_the_primary_is_killed_in_its_middle() {
    // Without duplicate detection, so that what is read again is seen again.
    let topic = TopicConfig { duplicate_window: None, ..TopicConfig::default() };
    let blueprint = TestClusterConfig { pods: 2, topic, producer: WINDOW.into(), ..TestClusterConfig::new(BINARY) };
    let mut house = TestCluster::start(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    Load { events: 3_000, aggregates: 200, writers: 16, seed: 33, ..Load::default() }
        .write(&house.events(), &checker)
        .await;
    start_and_freeze_after(&mut house, 300_000).await;
    // More than a window: reading it all again would show.
    has_scanned(&house, 2 * WINDOW_EVENTS as i64).await;
    house.mongo_mut().kill_primary().await.unwrap();
    let left = checkpoint(&house, "what the others have of it", |_| true).await;
    assert_eq!(phase(&left), "snapshot");
    goes_on(&house, &left).await;
    let _drain =
        SubscriptionReader::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    all_come(&checker).await;
    checkpoint(&house, "the stream", |stored| phase(stored) == "stream").await;
    house.stop_pods().await;
    let report = checker.check(DuplicatePolicy::Counted);
    assert!(report.is_clean(), "{report}");
    assert!(report.most_duplicates_in_a_term() <= WINDOW_EVENTS, "it was read again: {:?}", report.duplicates);
    house.stop().await;
}
