//! `cargo xtask soak stops`: SIGTERM to the leader under load, a hundred rounds, and sometimes to a standby with it.
//!
//! Every stop must be in order and within its deadline, every event on the topic once and in order, every read model equal to a fold of
//! the source. Says how long stops, the next lease and the next event took. The last line is JSON; a run that was not clean says its seed.

use std::process::ExitCode;

use bench::broker_process::binary;
use bench::soak::stops::{StopSoakOptions, run};
use clap::Parser;

#[derive(Parser)]
#[command(name = "soak-stops")]
struct Args {
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    #[arg(long, default_value_t = 5_000)]
    aggregates: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Events a second; 0: as fast as they are acknowledged
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    #[arg(long, default_value_t = 3)]
    pods: usize,
}

impl Args {
    fn options(&self) -> StopSoakOptions {
        let mut options = StopSoakOptions { rounds: self.rounds, pods: self.pods, ..StopSoakOptions::full(self.seed) };
        let load = &mut options.load;
        load.aggregates = self.aggregates;
        load.writers = load.writers.min(self.aggregates);
        load.rate = (self.rate > 0.0).then_some(self.rate);
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    println!("seed {}: {} rounds", args.seed, args.rounds);
    match run(&binary(), &args.options()).await {
        Ok(outcome) => {
            println!("{outcome}\n{}", outcome.json());
            if outcome.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("seed {}: the cluster failed: {error}", args.seed);
            ExitCode::FAILURE
        }
    }
}
