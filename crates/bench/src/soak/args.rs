//! What the soak programs share: arguments, a round per seed, and the printed result.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::ProducerSoakOptions;
use crate::processes::headwater_binary;

// A soak's own args are called so too, and two groups of one name are refused by a debug build.
#[derive(Args)]
#[group(skip)]
pub struct SoakArgs {
    /// Events that are written
    #[arg(long, default_value_t = 200_000)]
    events: u64,
    /// Aggregates that the events belong to
    #[arg(long, default_value_t = 5_000)]
    aggregates: u64,
    /// Seed of the first round; each round uses the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds, each with a new cluster
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Events per second; 0: as fast as they are acknowledged
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// Parallel writers [default: as many as the soak has]
    #[arg(long)]
    writers: Option<u64>,
    /// Take aggregates in turn instead of at random
    #[arg(long = "by-turns")]
    round_robin: bool,
    /// Pods of the cluster
    #[arg(long, default_value_t = 3)]
    pods: usize,
}

/// What a round showed, besides its text.
pub struct RoundSummary {
    /// Every guarantee held.
    pub is_clean: bool,
    /// What the round was to cover and did not.
    pub missing: Vec<String>,
    pub json: Value,
}

impl SoakArgs {
    pub fn apply(&self, options: &mut ProducerSoakOptions) {
        let load = &mut options.load;
        (load.events, load.aggregates) = (self.events, self.aggregates);
        (load.writers, load.round_robin) =
            (self.writers.unwrap_or(load.writers).min(self.aggregates), self.round_robin);
        load.rate = (self.rate > 0.0).then_some(self.rate);
        options.pods = self.pods;
    }

    /// Runs and prints every round; the last line is JSON. A round passes if it is clean and covered everything it should.
    pub async fn run_rounds<O, R: Display, E: Debug>(
        &self,
        options: impl Fn(u64) -> O,
        run: impl AsyncFn(&Path, &O) -> Result<R, E>,
        summarize: impl Fn(&R, &O) -> RoundSummary,
    ) -> ExitCode {
        if self.rounds == 0 {
            println!("no rounds: nothing was tested");
            return ExitCode::FAILURE;
        }
        let mut failed = 0;
        for seed in self.seed..self.seed + self.rounds {
            println!("seed {seed}: {} events, {} aggregates", self.events, self.aggregates);
            let options = options(seed);
            match run(&headwater_binary(), &options).await {
                Ok(result) => failed += u64::from(!print_result(&result, &summarize(&result, &options))),
                Err(error) => {
                    println!("seed {seed}: the test cluster failed: {error:?}");
                    failed += 1;
                }
            }
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns whether the round passes.
fn print_result(result: &impl Display, RoundSummary { is_clean, missing, json }: &RoundSummary) -> bool {
    missing.iter().for_each(|what| println!("the run did not cover: {what}"));
    println!("{result}\n{json}");
    *is_clean && missing.is_empty()
}
