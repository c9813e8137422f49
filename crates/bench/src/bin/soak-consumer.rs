//! `cargo xtask soak consumer`: events written with majority while pods are killed, paused and stopped, primary and broker killed once,
//! one message in ten said again out of turn, and one event of one aggregate refused.
//!
//! At the end every read model must equal a fold of the source, and one lists 1, 2, 3 … for every aggregate. The last line is JSON; a run
//! that was not clean says its seed, and is run again with `--seed`.

use std::process::ExitCode;

use bench::broker_process::binary;
use bench::soak::consumer::{Options, run};
use clap::Parser;

#[derive(Parser)]
#[command(name = "soak-consumer")]
struct Arguments {
    #[arg(long, default_value_t = 200_000)]
    events: u64,
    #[arg(long, default_value_t = 5_000)]
    aggregates: u64,
    /// How many events of one aggregate are written in one go, at most
    #[arg(long, default_value_t = 6)]
    run: u64,
    /// Of the first round; each round has the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Events a second; 0: as fast as they are acknowledged
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    #[arg(long, default_value_t = 3)]
    pods: usize,
    /// Customers the aggregates belong to: few make hot documents
    #[arg(long, default_value_t = 100)]
    customers: u64,
    /// Nothing is broken, said twice or refused
    #[arg(long)]
    peace: bool,
    /// Without the events' sequence: only the position orders
    #[arg(long)]
    position: bool,
    /// Without the model that lists everything applied: for one aggregate of very many events
    #[arg(long)]
    no_history: bool,
    /// The inside of the pods' `producer:`, besides where to start
    #[arg(long)]
    producer: Option<String>,
}

impl Arguments {
    fn options(&self, seed: u64) -> Options {
        let mut options = Options::full(seed);
        let load = &mut options.walk.load;
        (load.events, load.aggregates, load.customers) = (self.events, self.aggregates, self.customers);
        (load.writers, load.run) = (load.writers.min(self.aggregates), 1..=self.run);
        load.rate = (self.rate > 0.0).then_some(self.rate);
        options.walk.pods = self.pods;
        (options.sequence, options.history) = (!self.position, !self.no_history);
        if let Some(producer) = &self.producer {
            options.walk.producer = format!("start: beginning, {producer}");
        }
        if self.peace { options.in_peace() } else { options }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut failed = 0;
    for seed in arguments.seed..arguments.seed + arguments.rounds {
        let options = arguments.options(seed);
        let profile = options.walk.profile.name;
        println!("seed {seed}: {} events, {} aggregates, {profile}", arguments.events, arguments.aggregates);
        match run(&binary(), &options).await {
            Ok(outcome) => {
                println!("{outcome}\n{}", outcome.json());
                failed += u64::from(!outcome.is_clean() || !outcome.deaths.is_empty());
            }
            Err(error) => {
                println!("seed {seed}: the house failed: {error:?}");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
