//! Releasing the lease.

use election_test::{CandidateReport, ElectionTest};
use lease::Config;
use testkit::mongo::shared;

use crate::{BUSY_SLACK, CANDIDATE_ARGS, RELEASE_LIMIT, SLACK, election, quick, secs};

#[tokio::test]
async fn a_stopping_pod_hands_over_at_once_and_logs_it() {
    let shared = shared().await.unwrap();
    let database = shared.database("shutdown");
    // The defaults: with a long ttl, a takeover that waits for it is clearly slower.
    let config = Config::default();
    let mut election =
        ElectionTest::new(shared.uri(), database.name(), config.clone(), CANDIDATE_ARGS).with_checkpoint();
    for name in ["a", "b"] {
        election.start_candidate(name);
    }
    let (first, mut term, _) = election.next_leader(0, None, secs(20)).await;
    let (mut leader, mut takeovers) = (first, vec![]);
    for _ in 0..5 {
        election.get(&leader).terminate();
        let drained = |report: &CandidateReport| match report {
            CandidateReport::Lost { at, drain: true, .. } => Some(*at),
            _ => None,
        };
        let released = election.get(&leader).wait_for_report("drained", secs(10), drained).await;
        let (next, gained, at) = election.next_leader(term, Some(&leader), secs(10)).await;
        takeovers.push(at - released);
        election.get(&leader).wait_until_ended().await;
        let gain = ["lease acquired", "\"reason\":\"released\"", &format!("\"pod_id\":\"{next}\"")];
        assert_eq!(election.get(&next).wait_for_log(&gain, secs(10)).await, 1);
        let loss = ["lease given up", "\"reason\":\"shutting down\"", &format!("\"term\":\"{term}\"")];
        assert_eq!(election.get(&leader).log_lines(&loss).len(), 1);
        election.start_candidate(&leader).wait_until_started().await;
        (leader, term) = (next, gained);
    }
    takeovers.sort_by(f64::total_cmp);
    let limit = RELEASE_LIMIT.as_secs_f64() * 1000.0;
    assert!(takeovers[takeovers.len() / 2] <= limit, "a takeover after a release does not wait: {takeovers:?} ms");
    election.evaluate().assert_clean();
    assert!(election.log_lines(&["ERROR", "WARN"]).is_empty(), "{:?}", election.log_lines(&["ERROR", "WARN"]));
}

#[tokio::test]
async fn a_killed_leader_is_replaced_within_ttl_and_a_second() {
    let shared = shared().await.unwrap();
    let database = shared.database("crash");
    let mut election = election(shared.uri(), database.name());
    for name in ["a", "b"] {
        election.start_candidate(name);
    }
    let (mut leader, mut term, _) = election.next_leader(0, None, secs(20)).await;
    for round in 0..3 {
        let killed = election.kill(&leader).await;
        let (next, gained, at) = election.next_leader(term, Some(&leader), secs(20)).await;
        let limit = (quick().ttl + SLACK).as_secs_f64() * 1000.0;
        assert!(at - killed <= limit, "round {round}: {} ms", at - killed);
        election.start_candidate(&leader).wait_until_started().await;
        (leader, term) = (next, gained);
    }
    election.evaluate().assert_clean();
}

#[tokio::test]
async fn without_watch_a_release_and_a_crash_are_found_by_polling() {
    let shared = shared().await.unwrap();
    let database = shared.database("unwatched");
    let config = Config { watch: false, ..quick() };
    let mut election = ElectionTest::new(shared.uri(), database.name(), config.clone(), CANDIDATE_ARGS);
    for name in ["a", "b", "c"] {
        election.start_candidate(name);
    }
    let (first, term, _) = election.next_leader(0, None, secs(20)).await;
    election.get(&first).terminate();
    let (second, term, _) = election.next_leader(term, Some(&first), config.ttl).await;
    let killed = election.kill(&second).await;
    let (_, _, gained) = election.next_leader(term, Some(&second), secs(20)).await;
    let limit = (config.ttl + BUSY_SLACK).as_secs_f64() * 1000.0;
    assert!(gained - killed <= limit, "{} ms", gained - killed);
    election.evaluate().assert_clean();
}
