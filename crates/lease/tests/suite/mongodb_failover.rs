//! MongoDB loses its primary.

use std::time::Duration;

use election_test::ElectionTest;
use lease::BootInstant;
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;

use crate::{BUSY_SLACK, election, quick, secs};

fn now() -> f64 {
    BootInstant::now().as_duration().as_secs_f64() * 1000.0
}

#[tokio::test]
async fn leadership_returns_within_ttl_after_a_primary_is_killed() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let mut election = election(&set.uri(), "coordination").with_checkpoint();
    for name in ["a", "b", "c"] {
        election.start_candidate(name);
    }
    election.next_leader(0, None, secs(30)).await;
    for round in 0..3 {
        let primary = set.primary().await.unwrap();
        set.kill(primary).await.unwrap();
        set.primary().await.unwrap();
        let elected = now();
        let limit = quick().ttl + BUSY_SLACK;
        let granted = wait_for_grant(&election, elected, limit * 3).await;
        assert!(
            granted - elected <= limit.as_secs_f64() * 1000.0,
            "round {round}: {} ms after the election",
            granted - elected
        );
        set.restart(primary).await.unwrap();
        set.wait_until_secondary(primary).await.unwrap();
    }
    election.evaluate().assert_clean();
    assert!(election.names().iter().all(|name| election.get(name).is_running()), "no candidate exited");
}

/// When a candidate sent the first request that was granted after `moment`. Acting on an older grant does not count.
async fn wait_for_grant(election: &ElectionTest, moment: f64, within: Duration) -> f64 {
    wait_for("a granted term or renewal", within, async || {
        let reports = election.names().into_iter().flat_map(|name| election.get(&name).reports());
        let deadline = quick().renew_deadline.as_secs_f64() * 1000.0;
        let granted = reports.filter_map(|report| report.granted_after(moment, deadline));
        granted.min_by(f64::total_cmp).ok_or("no grant yet")
    })
    .await
}
