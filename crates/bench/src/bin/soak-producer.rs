//! `cargo xtask soak producer`: events written with majority while leaders are killed, paused and deposed and the primary is killed once.
//!
//! Everything acknowledged must come out of the subscription, in order per session, once. The last line is JSON; a run that was not clean
//! says its seed, and is run again with `--seed`.

use std::process::ExitCode;
use std::time::Duration;

use bench::broker_process::binary;
use bench::soak::{Options, run};
use clap::Parser;
use testkit::cluster::Topic;
use testkit::nemesis::Profile;

#[derive(Parser)]
#[command(name = "soak-producer")]
struct Arguments {
    #[arg(long, default_value_t = 200_000)]
    events: u64,
    #[arg(long, default_value_t = 5_000)]
    aggregates: u64,
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
    /// Break the broker and its links too
    #[arg(long)]
    everything: bool,
    /// A topic without duplicate detection: copies are counted by the term that sent them
    #[arg(long)]
    no_duplicate_detection: bool,
    #[arg(long)]
    partitioned: bool,
    /// Without duplicate detection, more copies than this in one term fail the run
    #[arg(long, default_value_t = u64::MAX)]
    most_copies: u64,
}

impl Arguments {
    fn options(&self, seed: u64) -> Options {
        let mut options = Options::full(seed);
        options.load.events = self.events;
        options.load.aggregates = self.aggregates;
        options.load.rate = (self.rate > 0.0).then_some(self.rate);
        options.pods = self.pods;
        if self.everything {
            options.profile = Profile::everything();
        }
        let duplicate_window = (!self.no_duplicate_detection).then_some(Duration::from_secs(1_200));
        options.topic = Topic { duplicate_window, partitioned: self.partitioned, ..Topic::default() };
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut failed = 0;
    for seed in arguments.seed..arguments.seed + arguments.rounds {
        let options = arguments.options(seed);
        println!(
            "seed {seed}: {} events, {} aggregates, {}",
            arguments.events, arguments.aggregates, options.profile.name
        );
        match run(&binary(), &options).await {
            Ok(outcome) => {
                println!("{outcome}\n{}", outcome.json("producer"));
                let copies = outcome.verdict.most_duplicates_in_a_term() <= arguments.most_copies;
                failed += u64::from(!outcome.is_clean() || !copies || !outcome.deaths.is_empty());
            }
            Err(error) => {
                println!("seed {seed}: the house failed: {error:?}");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
