//! `cargo xtask soak rollouts`: three pods under load are restarted one after the other, as the chart does it, twenty times.
//! With `--previous`, from an older binary to the present one and back.
//!
//! Every event must be on the topic once and in order, every read model must equal a fold of the source, and the topic must get a new event
//! at least every second. The last line is JSON.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::processes::headwater_binary;
use bench::soak::rollout_soak::{BeforeFenceResult, Error, RolloutSoakOptions, run, run_before_fence};
use clap::Parser;

/// Restart all pods one after the other under load, again and again
#[derive(Parser)]
#[command(name = "soak-rollouts")]
struct Args {
    /// How often all pods are restarted
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Seed of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Events per second; 0: as fast as they are acknowledged
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// Pods of the cluster
    #[arg(long, default_value_t = 3)]
    pods: usize,
    /// An older `headwater` that the pods begin with: every rollout is then an upgrade, or the way back
    #[arg(long, value_name = "BINARY")]
    previous: Option<PathBuf>,
    /// The older binary is from before read models had generations: one pod that goes back to it must stop and say so
    #[arg(long, requires = "previous")]
    before_fence: bool,
    /// The longest time without a new event on the topic, in milliseconds
    #[arg(long, default_value_t = 1_000)]
    max_gap: u64,
}

impl Args {
    fn options(&self) -> RolloutSoakOptions {
        let mut options = RolloutSoakOptions::full(self.seed);
        (options.rollouts, options.max_gap) = (self.rounds, Duration::from_millis(self.max_gap));
        options.previous.clone_from(&self.previous);
        options.base.pods = self.pods;
        options.base.load.rate = (self.rate > 0.0).then_some(self.rate);
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let (true, Some(older)) = (args.before_fence, &args.previous) {
        return report(run_before_fence(&headwater_binary(), older, &args.options()).await);
    }
    println!("seed {}: {} rollouts", args.seed, args.rounds);
    match run(&headwater_binary(), &args.options()).await {
        Ok(outcome) => {
            println!("{outcome}\n{}", outcome.json());
            let is_covered = outcome.rollouts() > 0 && outcome.acknowledged() > 0;
            if !is_covered {
                println!("the run did not cover: a rollout under load");
            }
            if outcome.is_clean() && is_covered { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("seed {}: the test cluster failed: {error}", args.seed);
            ExitCode::FAILURE
        }
    }
}

fn report(outcome: Result<BeforeFenceResult, Error>) -> ExitCode {
    match outcome {
        Ok(outcome) => {
            println!("{outcome}\n{}", outcome.json());
            if outcome.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("the test cluster failed: {error}");
            ExitCode::FAILURE
        }
    }
}
