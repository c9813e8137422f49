//! Cold starts of the lease: eight candidates, each with its own thread, runtime and client, 200 times.
//!
//! `cargo xtask soak lease-races [-- ROUNDS]`. Ends with a line of JSON, and with failure if a round does not end with
//! exactly one leader, no logged warning or error, and an oplog with the leader's heartbeats and nothing else.

use std::process::ExitCode;

use clap::Parser;
use election_test::cold_start::{cold_start, database, options};
use testkit::mongo::shared;

const CANDIDATES: usize = 8;
/// How often each standby polls the lease before the round ends.
const POLLS: u32 = 10;

/// Start eight candidates on a new lease, again and again
#[derive(Parser)]
struct Args {
    /// How often they start
    #[arg(default_value_t = 200)]
    rounds: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { rounds } = Args::parse();
    let shared = shared().await.expect("a mongod can be started");
    let scratch = shared.database("lease_races");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    let mut failed = 0;
    for round in 1..=rounds {
        let result = cold_start(&options, &database, CANDIDATES, POLLS).await;
        if let Some(problem) = result.problem() {
            failed += 1;
            eprintln!("round {round}: {problem}: {result:?}");
        }
    }
    println!(r#"{{"soak":"lease-races","rounds":{rounds},"candidates":{CANDIDATES},"failed":{failed}}}"#);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
