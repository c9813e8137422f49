//! Giving the lease back.

use bench::contest::{Contest, Report};
use lease::Config;
use testkit::mongo::shared;

use crate::{CONTENDER, SLACK, quick, secs};

#[tokio::test]
async fn a_pod_that_is_told_to_stop_hands_over_at_once_and_says_so() {
    let shared = shared().await.unwrap();
    let database = shared.database("shutdown");
    // the defaults: what need not be waited for is told from what must be by a long ttl
    let config = Config::default();
    let mut contest = Contest::new(shared.uri(), database.name(), config.clone(), CONTENDER).with_checkpoint();
    for name in ["a", "b"] {
        contest.contender(name);
    }
    let (first, mut term, _) = contest.next_leader(0, None, secs(20)).await;
    let mut leader = first;
    for _ in 0..5 {
        contest.get(&leader).terminate();
        let drained = |report: &Report| match report {
            Report::Lost { at, drain: true, .. } => Some(*at),
            _ => None,
        };
        let released = contest.get(&leader).says("drained", secs(10), drained).await;
        let (next, gained, at) = contest.next_leader(term, Some(&leader), secs(10)).await;
        let limit = config.ttl.as_secs_f64() * 1000.0 / 3.0;
        assert!(at - released < limit, "{} ms: a release need not be waited for", at - released);
        contest.get(&leader).ends().await;
        let gain = ["gained leadership", "\"reason\":\"released\"", &format!("\"pod_id\":\"{next}\"")];
        assert_eq!(contest.get(&next).logs(&gain, secs(10)).await, 1);
        let loss = ["lost leadership", "\"reason\":\"shutting down\"", &format!("\"term\":\"{term}\"")];
        assert_eq!(contest.get(&leader).logged(&loss).len(), 1);
        contest.contender(&leader).starts().await;
        (leader, term) = (next, gained);
    }
    contest.judge().must_be_clean();
    assert!(contest.logged(&["ERROR", "WARN"]).is_empty(), "{:?}", contest.logged(&["ERROR", "WARN"]));
}

#[tokio::test]
async fn without_the_watch_a_release_and_a_crash_are_seen_by_looking() {
    let shared = shared().await.unwrap();
    let database = shared.database("unwatched");
    let config = Config { watch: false, ..quick() };
    let mut contest = Contest::new(shared.uri(), database.name(), config.clone(), CONTENDER);
    for name in ["a", "b", "c"] {
        contest.contender(name);
    }
    let (first, term, _) = contest.next_leader(0, None, secs(20)).await;
    contest.get(&first).terminate();
    let (second, term, _) = contest.next_leader(term, Some(&first), config.ttl).await;
    let killed = contest.kill(&second).await;
    let (_, _, gained) = contest.next_leader(term, Some(&second), secs(20)).await;
    let limit = (config.ttl + SLACK).as_secs_f64() * 1000.0;
    assert!(gained - killed <= limit, "{} ms", gained - killed);
    contest.judge().must_be_clean();
}
