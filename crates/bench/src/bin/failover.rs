//! How long the pipeline has no leader: after a release, and after a crash.
//!
//! `cargo xtask bench failover [-- RELEASES [CRASHES]]`. Three candidate processes, ttl 2 s. Graceful: the
//! leader gets SIGTERM, and the time runs from the end of its drain (right before the release) to the moment another process
//! gains its term. Crash: the leader gets SIGKILL, and the time runs from before the kill. Fails when a time exceeds its limit,
//! or the evaluation finds two leaders at once.

use std::process::ExitCode;
use std::time::Duration;

use bench::latency::percentile;
use clap::{Parser, value_parser};
use election_test::cold_start::short_ttl;
use election_test::{CandidateReport, ElectionTest, Millis, run_if_candidate};
use testkit::mongo::shared;

const GRACEFUL_LIMIT: Millis = 100.0;
const CRASH_GRACE: Millis = 1000.0;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Measure how long the pipeline has no leader
#[derive(Parser)]
struct Args {
    /// How often the leader stops and releases the lease
    #[arg(default_value_t = 200, value_parser = value_parser!(u32).range(1..))]
    releases: u32,
    /// How often the leader is killed
    #[arg(default_value_t = 20, value_parser = value_parser!(u32).range(1..))]
    crashes: u32,
}

fn main() -> ExitCode {
    if run_if_candidate() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(run(&args))
}

async fn run(args: &Args) -> ExitCode {
    let shared = shared().await.expect("a mongod can be started");
    let database = shared.database("failover");
    let mut election = ElectionTest::new(shared.uri(), database.name(), short_ttl(), &[]);
    for name in ["a", "b", "c"] {
        election.start_candidate(name).wait_until_started().await;
    }
    let graceful = sorted(graceful(&mut election, args.releases).await);
    let crash = sorted(crash(&mut election, args.crashes).await);
    election.evaluate().assert_clean();

    let ttl = short_ttl().ttl.as_secs_f64() * 1000.0;
    let (p50, p99) = (percentile(&graceful, 50), percentile(&graceful, 99));
    let crash_max = percentile(&crash, 100);
    println!(
        r#"{{"bench":"failover","graceful_p50_ms":{p50:.1},"graceful_p99_ms":{p99:.1},"crash_ttl_ms":{ttl:.0},"crash_max_ms":{crash_max:.0}}}"#
    );
    let within_limits = p99 <= GRACEFUL_LIMIT && crash_max <= ttl + CRASH_GRACE;
    if within_limits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn graceful(election: &mut ElectionTest, rounds: u32) -> Vec<Millis> {
    let mut took = vec![];
    let (mut leader, mut term, _) = election.next_leader(0, None, TIMEOUT).await;
    for _ in 0..rounds {
        election.get(&leader).terminate();
        let drained = |report: &CandidateReport| match report {
            CandidateReport::Lost { at, drain: true, .. } => Some(*at),
            _ => None,
        };
        let released = election.get(&leader).wait_for_report("drained", TIMEOUT, drained).await;
        let (next, gained, at) = election.next_leader(term, Some(&leader), TIMEOUT).await;
        took.push(at - released);
        election.get(&leader).wait_until_ended().await;
        election.start_candidate(&leader).wait_until_started().await;
        (leader, term) = (next, gained);
    }
    took
}

async fn crash(election: &mut ElectionTest, rounds: u32) -> Vec<Millis> {
    let mut took = vec![];
    let (mut leader, mut term) = election.last_leader();
    for _ in 0..rounds {
        let killed = election.kill(&leader).await;
        let (next, gained, at) = election.next_leader(term, Some(&leader), TIMEOUT).await;
        took.push(at - killed);
        election.start_candidate(&leader).wait_until_started().await;
        (leader, term) = (next, gained);
    }
    took
}

fn sorted(mut times: Vec<Millis>) -> Vec<Millis> {
    times.sort_by(Millis::total_cmp);
    times
}
