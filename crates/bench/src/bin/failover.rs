//! How long nobody leads: after a release, and after a crash.
//!
//! `cargo run --release -p bench --bin failover [-- GRACEFUL CRASHES]`. Three contenders, each a process, ttl 2 s. Graceful:
//! the leader gets SIGTERM, and the time runs from when it has drained (right before it gives the lease back) to when
//! another process was told that it leads. Crash: the leader gets SIGKILL, and the time runs from before the kill. Fails
//! when a limit of design.md is passed, or the judge finds two leaders at once.

use std::process::ExitCode;
use std::time::Duration;

use bench::contest::{Contest, Millis, Report, serve_if_asked};
use bench::latency::percentile;
use bench::race::short;
use testkit::mongo::shared;

const GRACEFUL_ROUNDS: usize = 200;
const CRASH_ROUNDS: usize = 20;
const GRACEFUL_LIMIT: Millis = 100.0;
const CRASH_GRACE: Millis = 1000.0;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    if serve_if_asked() {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(run())
}

async fn run() -> ExitCode {
    let mut rounds = std::env::args().skip(1).map(|given| given.parse().expect("rounds are numbers"));
    let graceful_rounds = rounds.next().unwrap_or(GRACEFUL_ROUNDS);
    let crash_rounds = rounds.next().unwrap_or(CRASH_ROUNDS);
    let shared = shared().await.expect("a mongod can be started");
    let database = shared.database("failover");
    let mut contest = Contest::new(shared.uri(), database.name(), short(), &[]);
    for name in ["a", "b", "c"] {
        contest.contender(name).starts().await;
    }
    let graceful = sorted(graceful(&mut contest, graceful_rounds).await);
    let crash = sorted(crash(&mut contest, crash_rounds).await);
    contest.judge().must_be_clean();

    let ttl = short().ttl.as_secs_f64() * 1000.0;
    let (p50, p99) = (percentile(&graceful, 50), percentile(&graceful, 99));
    let crash_max = percentile(&crash, 100);
    println!(
        r#"{{"bench":"failover","graceful_p50_ms":{p50:.1},"graceful_p99_ms":{p99:.1},"crash_ttl_ms":{ttl:.0},"crash_max_ms":{crash_max:.0}}}"#
    );
    let kept = p99 <= GRACEFUL_LIMIT && crash_max <= ttl + CRASH_GRACE;
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn graceful(contest: &mut Contest, rounds: usize) -> Vec<Millis> {
    let mut took = vec![];
    let (mut leader, mut term, _) = contest.next_leader(0, None, PATIENCE).await;
    for _ in 0..rounds {
        contest.get(&leader).terminate();
        let drained = |report: &Report| match report {
            Report::Lost { at, drain: true, .. } => Some(*at),
            _ => None,
        };
        let released = contest.get(&leader).says("drained", PATIENCE, drained).await;
        let (next, gained, at) = contest.next_leader(term, Some(&leader), PATIENCE).await;
        took.push(at - released);
        contest.get(&leader).ends().await;
        contest.contender(&leader).starts().await;
        (leader, term) = (next, gained);
    }
    took
}

async fn crash(contest: &mut Contest, rounds: usize) -> Vec<Millis> {
    let mut took = vec![];
    let (mut leader, mut term) = contest.last_leader();
    for _ in 0..rounds {
        let killed = contest.kill(&leader).await;
        let (next, gained, at) = contest.next_leader(term, Some(&leader), PATIENCE).await;
        took.push(at - killed);
        contest.contender(&leader).starts().await;
        (leader, term) = (next, gained);
    }
    took
}

fn sorted(mut times: Vec<Millis>) -> Vec<Millis> {
    times.sort_by(Millis::total_cmp);
    times
}
