//! The lease through a mongos.

use testkit::mongo::ShardedCluster;

use crate::{BUSY_SLACK, election, quick, secs};

#[tokio::test]
async fn a_lease_is_released_and_taken_over_through_mongos() {
    let cluster = ShardedCluster::start(1).await.unwrap();
    let mut election = election(&cluster.uri(), "coordination").with_checkpoint();
    for name in ["a", "b", "c"] {
        election.start_candidate(name);
    }
    let (first, term, _) = election.next_leader(0, None, secs(30)).await;
    election.get(&first).terminate();
    let (second, term, _) = election.next_leader(term, Some(&first), secs(30)).await;
    let killed = election.kill(&second).await;
    let (_, _, gained) = election.next_leader(term, Some(&second), secs(30)).await;
    let limit = (quick().ttl + BUSY_SLACK).as_secs_f64() * 1000.0;
    assert!(gained - killed <= limit, "{} ms", gained - killed);
    election.evaluate().assert_clean();
}
