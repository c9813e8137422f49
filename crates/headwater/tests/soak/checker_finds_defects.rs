//! Writers, nemesis, reader and checker around a simple publisher with planted defects.

use std::sync::Arc;
use std::time::Duration;

use bench::soak::SubscriptionReader;
use testkit::checker::{CheckReport, Checker, DuplicatePolicy, ViolationKind};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::load::Load;
use testkit::nemesis::{self, BrokerProcessFault, ClusterFault, FaultPlan, PlannedFault};
use testkit::wait::try_wait_for;

use super::BINARY;
use super::simple_publisher::{PublisherBug, publish, watch};

const EVENTS: u64 = 1_000;

/// Publishes a thousand events while the broker is killed twice.
async fn run_pipeline(bug: PublisherBug) -> CheckReport {
    let blueprint = TestClusterConfig { pods: 0, mongo: MongoTopology::Shared, ..TestClusterConfig::new(BINARY) };
    let mut cluster = TestCluster::start(blueprint).await.unwrap();
    let checker = Arc::new(Checker::new());
    let reader = SubscriptionReader::start(cluster.broker(), &cluster.broker().subscription(), &checker);
    let changes = watch(&cluster).await;
    let publishing = tokio::spawn(publish(changes, cluster.broker().client(servicebus::Config::default()), bug));
    let load = Load { events: EVENTS, aggregates: 40, writers: 4, ..Load::default() };
    let (events, writers_checker) = (cluster.events(), Arc::clone(&checker));
    let writing = tokio::spawn(async move { load.write(&events, &writers_checker).await });
    let kill = ClusterFault::Broker(BrokerProcessFault::Kill);
    let [first, second] = [100, 400].map(|after| PlannedFault {
        after: Duration::from_millis(after),
        fault: kill,
        duration: Duration::from_millis(50),
        seed: 1,
    });
    let plan = FaultPlan { faults: vec![first, second] };
    let report =
        nemesis::run_plan(&mut cluster, &plan, || checker.outstanding(), std::future::pending()).await.unwrap();
    assert_eq!(report.counts(kill).injected, 2);
    let written = writing.await.unwrap();
    assert_eq!((written.events, written.in_doubt), (EVENTS, 0));
    // A dropped event never arrives, so the wait must end without it.
    let expected = u64::from(bug == PublisherBug::DropsEvent);
    let _ = try_wait_for("all events to arrive", Duration::from_secs(60), async || {
        let outstanding = checker.outstanding();
        if outstanding <= expected { Ok(()) } else { Err(outstanding) }
    })
    .await;
    publishing.abort();
    drop(reader);
    checker.check(DuplicatePolicy::Forbidden)
}

/// The kinds that were found, with their counts.
fn counts(report: &CheckReport) -> Vec<(ViolationKind, u64)> {
    let counts = ViolationKind::ALL.map(|kind| (kind, report.count(kind)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn a_correct_publisher_is_clean_though_the_broker_is_killed() {
    let report = run_pipeline(PublisherBug::None).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.acknowledged, EVENTS);
}

#[tokio::test]
async fn a_dropped_event_is_found_lost() {
    let report = run_pipeline(PublisherBug::DropsEvent).await;
    assert_eq!(counts(&report), [(ViolationKind::Lost, 1)], "{report}");
}

#[tokio::test]
async fn an_event_sent_twice_is_found_duplicated() {
    let report = run_pipeline(PublisherBug::SendsTwice).await;
    assert_eq!(counts(&report), [(ViolationKind::Duplicated, 1)], "{report}");
}

#[tokio::test]
async fn an_event_that_overtook_another_is_found() {
    let report = run_pipeline(PublisherBug::SwapsEvents).await;
    assert_eq!(counts(&report), [(ViolationKind::OutOfOrder, 1)], "{report}");
}

#[tokio::test]
async fn an_event_with_another_body_is_found_altered() {
    let report = run_pipeline(PublisherBug::AltersBody).await;
    assert_eq!(counts(&report), [(ViolationKind::Altered, 1)], "{report}");
}
