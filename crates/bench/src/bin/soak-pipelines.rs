//! `cargo xtask soak pipelines`: twenty pipelines on three pods, one of them poisoned and one halted.
//!
//! Leaders must be within one of each other, every event of a good pipeline must be applied once, and the bad two must be reported. The run measures
//! the good ones without and beside the bad ones, takeovers, and the memory of an additional pipeline. The last line is JSON.

use std::process::ExitCode;
use std::time::Duration;

use bench::processes::headwater_binary;
use bench::soak::pipelines_soak::{PipelinesSoakOptions, run};
use clap::Parser;

/// Run many pipelines in the same pods, one poisoned and one halted
#[derive(Parser)]
#[command(name = "soak-pipelines")]
struct Args {
    /// Pipelines, with the poisoned and the halted one
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(4..))]
    pipelines: u64,
    /// Backlogs that are measured without the bad pipelines, and again beside them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Events of each aggregate in a backlog
    #[arg(long, default_value_t = 20)]
    events: u64,
    /// How often a pod is restarted to measure takeovers
    #[arg(long, default_value_t = 12)]
    restarts: usize,
    /// `coordination.balance_interval` of the pods, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    balance_interval: u64,
}

impl Args {
    fn options(&self) -> PipelinesSoakOptions {
        let mut options = PipelinesSoakOptions::full();
        options.pipelines = self.pipelines as usize;
        (options.rounds, options.restarts) = (self.rounds, self.restarts);
        options.backlog.events = self.events;
        options.balance_interval = Duration::from_secs(self.balance_interval);
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(&headwater_binary(), &args.options()).await {
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
