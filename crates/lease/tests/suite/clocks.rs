//! Wall clocks an hour apart, of pods and of MongoDB's members.

use std::time::Duration;

use bench::contest::{Contest, Engine, Report, WallClock};
use lease::Config;
use mongodb::bson::{DateTime, doc};
use testkit::mongo::{ReplicaSet, ReplicaSetConfig, shared};
use testkit::wait::wait_for;

use crate::{CONTENDER, SLACK, contest, quick, secs};

const HOUR: i64 = 3600;

/// A set whose members disagree about the time of day.
async fn skewed_set() -> ReplicaSet {
    let clocks = [WallClock::True, WallClock::Off(HOUR), WallClock::Off(-HOUR)];
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

/// The pods' clocks, likewise: whoever leads, some pod that starts later is an hour ahead of it.
fn start_pods(contest: &mut Contest) {
    for (name, clock) in [("behind", -HOUR), ("true", 0), ("ahead", HOUR)] {
        contest.contender_with(name, name, WallClock::Off(clock));
    }
}

/// Makes this member the primary, so that its clock is the one that counts.
async fn leads(set: &ReplicaSet, member: usize) {
    let admin = set.member(member).direct_client().unwrap().database("admin");
    wait_for("the member to be elected", secs(60), async || {
        // refused while it lags behind, or another election is under way
        let asked = admin.run_command(doc! { "replSetStepUp": 1 }).await;
        let primary = set.primary().await.unwrap();
        if primary == member {
            Ok(())
        } else {
            Err(format!("member {primary} leads; it was elected: {}", asked.is_ok()))
        }
    })
    .await;
}

#[tokio::test]
async fn clocks_an_hour_apart_change_nothing() {
    let set = skewed_set().await;
    let mut contest = contest(&set.uri(), "coordination").with_checkpoint();
    start_pods(&mut contest);
    let (_, mut term, _) = contest.next_leader(0, None, secs(30)).await;
    // ahead, behind, and back to the true time: every step of the clock there can be
    for (round, member) in [1, 2, 0].into_iter().enumerate() {
        // a lease that is alive stays where it is, also when a pod starts whose clock says that it is long over
        let newcomer = format!("newcomer-{round}");
        contest.contender_with(&newcomer, &newcomer, WallClock::Off(HOUR)).starts().await;
        tokio::time::sleep(quick().ttl + quick().ttl / 2).await;
        assert_eq!(contest.judge().terms.last().unwrap().0, term, "round {round}: nobody should have taken over");

        // a failover to a member an hour away: the term may end, for the election can outlast the deadline, but no two
        leads(&set, member).await;
        tokio::time::sleep(quick().ttl).await;
        assert_eq!(set.primary().await.unwrap(), member, "round {round}: its clock should be the one that counts");
        let leader;
        (leader, term) = contest.last_leader();

        // and a crash is followed as fast as ever
        let killed = contest.kill(&leader).await;
        let (_, next, gained) = contest.next_leader(term, Some(&leader), secs(30)).await;
        assert!(gained - killed <= within(quick().ttl + SLACK), "round {round}: {} ms", gained - killed);
        contest.contender_with(&leader, &leader, WallClock::Off(HOUR)).starts().await;
        term = next;
    }
    contest.judge().must_be_clean();
}

fn within(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// Only where the operator vouches for the servers' clocks.
#[tokio::test]
async fn a_pod_that_may_trust_the_server_s_clock_takes_a_long_dead_lease_at_once() {
    let shared = shared().await.unwrap();
    let database = shared.database("vouched");
    let ttl = secs(6);
    let config = Config { ttl, renew_deadline: secs(4), heartbeat: secs(1), ..quick() };
    let vouched = Config { max_clock_skew: Some(Duration::from_millis(200)), ..config.clone() };
    let mut contest = Contest::new(shared.uri(), database.name(), vouched, CONTENDER);
    contest.contender("first");
    let (_, term, _) = contest.next_leader(0, None, secs(20)).await;
    contest.kill("first").await;
    tokio::time::sleep(ttl + Duration::from_millis(500)).await;
    contest.contender("second").starts().await;
    let started = contest.get("second").says("started", secs(1), |report| match report {
        Report::Started { at } => Some(*at),
        _ => None,
    });
    let started = started.await;
    let (_, _, gained) = contest.next_leader(term, Some("first"), secs(20)).await;
    assert!(gained - started < within(ttl / 2), "{} ms", gained - started);
    contest.judge().must_be_clean();
}

#[tokio::test]
async fn the_same_contest_by_the_notes_statement_catches_the_theft() {
    let set = skewed_set().await;
    let mut contest = contest(&set.uri(), "coordination").by(Engine::Seeds);
    contest.contender_with("true", "true", WallClock::True);
    assert_eq!(contest.first_leader(secs(30)).await, "true");
    contest.contender_with("ahead", "ahead", WallClock::Off(HOUR)).starts().await;
    wait_for("the judge to see two leaders at once", secs(30), async || {
        let overlaps = contest.judge().overlaps;
        if overlaps.is_empty() { Err("one at a time") } else { Ok(()) }
    })
    .await;
}
