//! The start position is saved before anything is read.

use std::sync::Arc;

use bench::soak::SubscriptionReader;
use testkit::checker::{Checker, DuplicatePolicy};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::load::Load;

use super::{BINARY, TIMEOUT, phase, wait_for_all_events, wait_for_checkpoint};

/// The broker is paused until the first leader is killed, so the leader has saved only the start position.
#[tokio::test]
async fn a_leader_killed_before_its_first_save_loses_no_event() {
    let config = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        producer: "start: now".into(),
        ..TestClusterConfig::new(BINARY)
    };
    let mut cluster = TestCluster::start(config).await.unwrap();
    cluster.broker_mut().pause().await;
    cluster.start_pods().unwrap();
    let began = wait_for_checkpoint(&cluster, "where the pipeline begins", |stored| phase(stored) == "stream").await;
    let checker = Arc::new(Checker::new());
    let written =
        Load { events: 500, aggregates: 20, seed: 11, ..Load::default() }.write(&cluster.events(), &checker).await;
    assert_eq!(written.in_doubt, 0);
    let leader = cluster.wait_for_leader(TIMEOUT).await.unwrap();
    cluster.pod_mut(leader).kill().await;
    let left = wait_for_checkpoint(&cluster, "the checkpoint", |_| true).await;
    assert_eq!(left.get("token"), began.get("token"), "the leader saved: the test proves nothing");
    cluster.broker_mut().resume();
    let _drain = SubscriptionReader::start(cluster.broker(), &cluster.broker().subscription(), &checker);
    wait_for_all_events(&checker).await;
    let report = checker.check(DuplicatePolicy::Forbidden);
    assert!(report.is_clean(), "{report}");
    cluster.stop().await;
}
