//! Wall clocks an hour apart, on pods and on MongoDB members.

use std::time::Duration;

use election_test::{CandidateReport, ElectionProtocol, ElectionTest, WallClock};
use lease::Config;
use mongodb::bson::{DateTime, doc};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig, shared};
use testkit::wait::wait_for;

use crate::{BUSY_SLACK, CANDIDATE_ARGS, election, quick, secs};

const HOUR: i64 = 3600;

/// A replica set whose members have different wall clocks.
async fn skewed_set() -> ReplicaSet {
    let clocks = [WallClock::Accurate, WallClock::Offset(HOUR), WallClock::Offset(-HOUR)];
    let config = clocks.into_iter().enumerate().fold(ReplicaSetConfig::with_members(3), |config, (member, clock)| {
        let variables = clock.variables().into_iter();
        variables.fold(config, |config, (name, value)| config.variable(member, name, value))
    });
    let set = config.start().await.unwrap();
    for (member, expected) in [(0, 0), (1, HOUR), (2, -HOUR)] {
        let admin = set.member(member).direct_client().unwrap().database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
        let off = hello.get_datetime("localTime").unwrap().timestamp_millis() - DateTime::now().timestamp_millis();
        assert!(
            (off / 1000 - expected).abs() < 60,
            "member {member} should be off by {expected} s, and is by {off} ms"
        );
    }
    set
}

/// Pods with different wall clocks: whichever leads, a pod that starts later is an hour ahead of it.
fn start_pods(election: &mut ElectionTest) {
    for (name, clock) in [("behind", -HOUR), ("true", 0), ("ahead", HOUR)] {
        election.start_candidate_with(name, name, WallClock::Offset(clock));
    }
}

/// Makes this member the primary, so that its clock counts.
async fn make_primary(set: &ReplicaSet, member: usize) {
    let admin = set.member(member).direct_client().unwrap().database("admin");
    wait_for("the member to be elected", secs(60), async || {
        // Refused while the member lags behind, or while another election runs.
        let result = admin.run_command(doc! { "replSetStepUp": 1 }).await;
        let primary = set.primary().await.unwrap();
        if primary == member {
            Ok(())
        } else {
            Err(format!("member {primary} leads; it was elected: {}", result.is_ok()))
        }
    })
    .await;
}

#[tokio::test]
async fn clocks_an_hour_apart_change_nothing() {
    let set = skewed_set().await;
    let mut election = election(&set.uri(), "coordination").with_checkpoint();
    start_pods(&mut election);
    let (_, mut term, _) = election.next_leader(0, None, secs(30)).await;
    // Ahead, behind, and back to the true time: every possible step of the clock.
    for (round, member) in [1, 2, 0].into_iter().enumerate() {
        // A live lease stays with its holder, even when a pod starts whose clock says that it expired long ago.
        let newcomer = format!("newcomer-{round}");
        election.start_candidate_with(&newcomer, &newcomer, WallClock::Offset(HOUR)).wait_until_started().await;
        tokio::time::sleep(quick().ttl + quick().ttl / 2).await;
        assert_eq!(election.evaluate().terms.last().unwrap().0, term, "round {round}: no pod takes over");

        // A failover to a member an hour away: the term may end, because the election can outlast the deadline, but two never lead.
        make_primary(&set, member).await;
        tokio::time::sleep(quick().ttl).await;
        assert_eq!(set.primary().await.unwrap(), member, "round {round}: its clock counts");
        let leader;
        (leader, term) = election.last_leader();

        // A takeover after a crash is as fast as ever.
        let killed = election.kill(&leader).await;
        let (_, next, gained) = election.next_leader(term, Some(&leader), secs(30)).await;
        assert!(gained - killed <= to_millis(quick().ttl + BUSY_SLACK), "round {round}: {} ms", gained - killed);
        election.start_candidate_with(&leader, &leader, WallClock::Offset(HOUR)).wait_until_started().await;
        term = next;
    }
    election.evaluate().assert_clean();
}

fn to_millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// Only if the operator guarantees a maximum skew of the servers' clocks.
#[tokio::test]
async fn with_max_clock_skew_an_expired_lease_is_taken_at_once() {
    let shared = shared().await.unwrap();
    let database = shared.database("trusting");
    let ttl = secs(6);
    let config = Config { ttl, renew_deadline: secs(4), heartbeat: secs(1), ..quick() };
    let trusting = Config { max_clock_skew: Some(Duration::from_millis(200)), ..config.clone() };
    let mut election = ElectionTest::new(shared.uri(), database.name(), trusting, CANDIDATE_ARGS);
    election.start_candidate("first");
    let (_, term, _) = election.next_leader(0, None, secs(20)).await;
    election.kill("first").await;
    tokio::time::sleep(ttl + Duration::from_millis(500)).await;
    election.start_candidate("second").wait_until_started().await;
    let started = election.get("second").wait_for_report("started", secs(1), |report| match report {
        CandidateReport::Started { at } => Some(*at),
        _ => None,
    });
    let started = started.await;
    let (_, _, gained) = election.next_leader(term, Some("first"), secs(20)).await;
    assert!(gained - started < to_millis(ttl / 2), "{} ms", gained - started);
    election.evaluate().assert_clean();
}

#[tokio::test]
async fn an_election_by_the_client_clock_has_two_leaders() {
    let set = skewed_set().await;
    let mut election = election(&set.uri(), "coordination").with_protocol(ElectionProtocol::ClientClock);
    election.start_candidate_with("true", "true", WallClock::Accurate);
    assert_eq!(election.first_leader(secs(30)).await, "true");
    election.start_candidate_with("ahead", "ahead", WallClock::Offset(HOUR)).wait_until_started().await;
    wait_for("the evaluation to find two leaders at once", secs(30), async || {
        let overlaps = election.evaluate().overlaps;
        if overlaps.is_empty() { Err("one leader at a time") } else { Ok(()) }
    })
    .await;
}
