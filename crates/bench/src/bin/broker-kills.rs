//! `cargo xtask soak broker-kills [-- ROUNDS [SEED]]`: the broker killed -9 under load, 200 rounds unless told otherwise.

use std::process::ExitCode;

use bench::broker_process::binary;
use bench::kills;

#[tokio::main]
async fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|given| given.parse::<u64>().expect("rounds and seed are numbers"));
    let rounds = numbers.next().map_or(200, |rounds| u32::try_from(rounds).expect("rounds fit 32 bits"));
    let seed = numbers.next().unwrap_or(1);
    println!("{rounds} rounds, seed {seed}");
    match kills::run(&binary(), rounds, seed).await {
        Ok(report) => {
            println!("{report:?}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            println!("{faults}");
            ExitCode::FAILURE
        }
    }
}
