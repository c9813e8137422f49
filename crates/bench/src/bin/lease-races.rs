//! Cold-start races for the lease: eight contenders, each with its own thread, runtime and client, two hundred times.
//!
//! `cargo run -p bench --bin lease-races [-- ROUNDS]`. Ends with a line of JSON, and with failure if any round did not end
//! with exactly one leader, no warning or error logged, and an oplog that holds the leader's heartbeats and nothing else.

use std::process::ExitCode;

use bench::race::{cold_start, database, options};
use testkit::mongo::shared;

const CONTENDERS: usize = 8;
const ROUNDS: usize = 200;
/// How often each loser looks at the lease before the round ends.
const POLLS: u32 = 10;

#[tokio::main]
async fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).map_or(ROUNDS, |given| given.parse().expect("ROUNDS is a number"));
    let shared = shared().await.expect("a mongod can be started");
    let scratch = shared.database("lease_races");
    let options = options(shared.uri()).await;
    let database = database(&options, scratch.name());
    let mut failed = 0;
    for round in 1..=rounds {
        let seen = cold_start(&options, &database, CONTENDERS, POLLS).await;
        if let Some(problem) = seen.problem() {
            failed += 1;
            eprintln!("round {round}: {problem}: {seen:?}");
        }
    }
    println!(r#"{{"soak":"lease-races","rounds":{rounds},"contenders":{CONTENDERS},"failed":{failed}}}"#);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
