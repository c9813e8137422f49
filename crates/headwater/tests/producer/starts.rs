//! Where a pipeline begins is stored before anything is read.

use std::sync::Arc;

use bench::soak::SubscriptionReader;
use testkit::checker::{Checker, DuplicatePolicy};
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig};
use testkit::load::Load;

use super::{BINARY, SOON, all_come, checkpoint, phase};

/// The bus takes nothing until the first leader is dead, so it can have saved nothing but where it began.
#[tokio::test]
async fn a_leader_that_began_now_and_died_before_its_first_save_loses_nothing() {
    let blueprint = TestClusterConfig {
        pods: 2,
        mongo: MongoTopology::Shared,
        producer: "start: now".into(),
        ..TestClusterConfig::new(BINARY)
    };
    let mut house = TestCluster::start(blueprint).await.unwrap();
    house.broker_mut().pause().await;
    house.start_pods().unwrap();
    let began = checkpoint(&house, "where the pipeline begins", |stored| phase(stored) == "stream").await;
    let checker = Arc::new(Checker::new());
    let written =
        Load { events: 500, aggregates: 20, seed: 11, ..Load::default() }.write(&house.events(), &checker).await;
    assert_eq!(written.in_doubt, 0);
    let leader = house.wait_for_leader(SOON).await.unwrap();
    house.pod_mut(leader).kill().await;
    let left = checkpoint(&house, "the checkpoint", |_| true).await;
    assert_eq!(left.get("token"), began.get("token"), "it saved something: the test shows nothing");
    house.broker_mut().resume();
    let _drain =
        SubscriptionReader::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    all_come(&checker).await;
    let report = checker.check(DuplicatePolicy::Forbidden);
    assert!(report.is_clean(), "{report}");
    house.stop().await;
}
