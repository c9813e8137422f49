//! `cargo xtask soak stops`: SIGTERM to the leader under load, a hundred rounds, and sometimes to a standby with it.
//!
//! Every stop must be orderly and meet its deadline, every event must be on the topic once and in order, and every read model must equal a
//! fold of the source. Prints how long stops, the next lease and the next event took. The last line is JSON.

use std::process::ExitCode;

use bench::processes::headwater_binary;
use bench::soak::stop_soak::{StopSoakOptions, run};
use clap::Parser;

/// Stop the leader under load, again and again
#[derive(Parser)]
#[command(name = "soak-stops")]
struct Args {
    /// How often the leader gets SIGTERM
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Aggregates that the events belong to
    #[arg(long, default_value_t = 5_000)]
    aggregates: u64,
    /// Seed of the load and of the stops
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Events per second; 0: as fast as they are acknowledged
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// Pods of the cluster
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
    let options = args.options();
    match run(&headwater_binary(), &options).await {
        Ok(outcome) => {
            let missing = outcome.missing(&options);
            missing.iter().for_each(|what| println!("the run did not cover: {what}"));
            println!("{outcome}\n{}", outcome.json());
            if outcome.is_clean() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("seed {}: the test cluster failed: {error}", args.seed);
            ExitCode::FAILURE
        }
    }
}
