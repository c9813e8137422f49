//! MongoDB loses its primary.

use std::time::Duration;

use bench::contest::Contest;
use lease::BootInstant;
use testkit::mongo::ReplicaSet;
use testkit::wait::wait_for;

use crate::{SLACK, contest, quick, secs};

fn now() -> f64 {
    BootInstant::now().as_duration().as_secs_f64() * 1000.0
}

#[tokio::test]
async fn when_the_primary_is_killed_terms_rise_and_leadership_is_back_after_election_and_ttl() {
    let mut set = ReplicaSet::start(3).await.unwrap();
    let mut contest = contest(&set.uri(), "coordination").with_checkpoint();
    for name in ["a", "b", "c"] {
        contest.contender(name);
    }
    contest.next_leader(0, None, secs(30)).await;
    for round in 0..3 {
        let primary = set.primary().await.unwrap();
        set.kill(primary).await.unwrap();
        set.primary().await.unwrap();
        let elected = now();
        let limit = quick().ttl + SLACK;
        let back = leads_again(&contest, elected, limit * 3).await;
        assert!(
            back - elected <= limit.as_secs_f64() * 1000.0,
            "round {round}: {} ms after the election",
            back - elected
        );
        set.restart(primary).await.unwrap();
        set.wait_until_secondary(primary).await.unwrap();
    }
    contest.judge().must_be_clean();
    assert!(contest.names().iter().all(|name| contest.get(name).is_running()), "nobody should have exited");
}

/// When somebody asked for what it first was granted after `moment`: whoever only acts on what it had is not back.
async fn leads_again(contest: &Contest, moment: f64, within: Duration) -> f64 {
    wait_for("somebody to be granted a term or a renewal", within, async || {
        let reports = contest.names().into_iter().flat_map(|name| contest.get(&name).reports());
        let deadline = quick().renew_deadline.as_secs_f64() * 1000.0;
        let granted = reports.filter_map(|report| report.granted_after(moment, deadline));
        granted.min_by(f64::total_cmp).ok_or("nobody was granted anything")
    })
    .await
}
