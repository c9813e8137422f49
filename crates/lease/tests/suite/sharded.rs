//! The lease behind a mongos.

use testkit::mongo::ShardedCluster;

use crate::{SLACK, contest, quick, secs};

#[tokio::test]
async fn a_lease_is_kept_handed_over_and_taken_over_through_mongos() {
    let cluster = ShardedCluster::start(1).await.unwrap();
    let mut contest = contest(&cluster.uri(), "coordination").with_checkpoint();
    for name in ["a", "b", "c"] {
        contest.contender(name);
    }
    let (first, term, _) = contest.next_leader(0, None, secs(30)).await;
    contest.get(&first).terminate();
    let (second, term, _) = contest.next_leader(term, Some(&first), secs(30)).await;
    let killed = contest.kill(&second).await;
    let (_, _, gained) = contest.next_leader(term, Some(&second), secs(30)).await;
    let limit = (quick().ttl + SLACK).as_secs_f64() * 1000.0;
    assert!(gained - killed <= limit, "{} ms", gained - killed);
    contest.judge().must_be_clean();
}
