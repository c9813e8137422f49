//! `cargo xtask soak broker-kills [-- ROUNDS [SEED]]`: the broker killed -9 under load, 200 rounds by default.
//!
//! Prints a line every ten rounds and the result at the end. The seed decides when each kill happens; what it hits depends on the machine.

use std::process::ExitCode;
use std::time::Instant;

use bench::broker_kills::{self, KillReport};
use bench::processes::headwater_binary;
use clap::Parser;

const LINE_EVERY: u32 = 10;

/// Kill the broker under load, again and again
#[derive(Parser)]
struct Args {
    /// How often the broker is killed
    #[arg(default_value_t = 200)]
    rounds: u32,
    /// Decides when each kill happens
    #[arg(default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { rounds, seed } = Args::parse();
    println!("{rounds} rounds, seed {seed}");
    let began = Instant::now();
    let line = |report: &KillReport| {
        if report.rounds.is_multiple_of(LINE_EVERY) {
            println!("{:>4.0} s {}", began.elapsed().as_secs_f64(), summarize(report));
        }
    };
    match broker_kills::run(&headwater_binary(), rounds, seed, line).await {
        Ok(report) => {
            println!(
                "clean: nothing accepted is lost, nothing completed is redelivered, order is kept; {}",
                summarize(&report)
            );
            ExitCode::SUCCESS
        }
        Err(violations) => {
            println!("violations with seed {seed}, {violations}");
            ExitCode::FAILURE
        }
    }
}

fn summarize(report: &KillReport) -> String {
    let KillReport { rounds, accepted, completed, sends_in_doubt, completions_in_doubt } = report;
    format!(
        "{rounds} kills, {accepted} accepted, {completed} completed, {sends_in_doubt} sends and {completions_in_doubt} completions in doubt"
    )
}
