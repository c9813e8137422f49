//! The arguments that all soaks share, and their rounds: one seed after the other.

use std::fmt::Display;
use std::process::ExitCode;

use clap::Args;

use super::ProducerSoakOptions;

// A soak's own args are called so too, and two groups of one name are refused by a debug build.
#[derive(Args)]
#[group(skip)]
pub struct SoakArgs {
    #[arg(long, default_value_t = 200_000)]
    pub events: u64,
    #[arg(long, default_value_t = 5_000)]
    pub aggregates: u64,
    /// Seed of the first round; each round uses the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    #[arg(long, default_value_t = 3)]
    pods: usize,
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

    /// Runs every round; a round returns whether every guarantee held.
    pub async fn rounds<E: std::fmt::Debug>(&self, round: impl AsyncFn(u64) -> Result<bool, E>) -> ExitCode {
        let mut failed = 0;
        for seed in self.seed..self.seed + self.rounds {
            println!("seed {seed}: {} events, {} aggregates", self.events, self.aggregates);
            match round(seed).await {
                Ok(is_clean) => failed += u64::from(!is_clean),
                Err(error) => {
                    println!("seed {seed}: the test cluster failed: {error:?}");
                    failed += 1;
                }
            }
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints the result, with the JSON as the last line. Returns whether the run covered everything it should.
pub fn print_result(result: &impl Display, missing: &[String], json: &serde_json::Value) -> bool {
    missing.iter().for_each(|what| println!("the run did not cover: {what}"));
    println!("{result}\n{json}");
    missing.is_empty()
}
