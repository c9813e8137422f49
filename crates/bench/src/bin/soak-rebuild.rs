//! `cargo xtask soak rebuild`: a read model of 1,000,000 events is built anew while 1,000 more are written every second and the leader is killed twice in the
//! middle; then it is rolled back and built once more. Readers find documents all the time, writers wait a second at most, and in the end every read model
//! equals a fold of the source.
//!
//! The last line is JSON; a run that was not clean prints its seed and can be repeated with `--seed`.

use std::process::ExitCode;

use bench::soak::rebuild_soak::{RebuildSoakOptions, RebuildSoakResult, run};
use bench::soak::{RoundSummary, SoakArgs};
use clap::Parser;

/// Rebuild a read model under load, and compare it with the source
#[derive(Parser)]
#[command(name = "soak-rebuild")]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// Events before the first rebuild
    #[arg(long, default_value_t = 1_000_000)]
    history: u64,
    /// No pod is killed
    #[arg(long)]
    peace: bool,
}

impl Args {
    fn options(&self, seed: u64) -> RebuildSoakOptions {
        let mut options = RebuildSoakOptions::full(seed);
        self.soak.apply(&mut options.base);
        options.history = self.history;
        if self.peace {
            options.kills = 0;
        }
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let summarize = |result: &RebuildSoakResult, options: &RebuildSoakOptions| RoundSummary {
        is_clean: result.is_clean(options),
        missing: result.missing(options),
        json: result.json(),
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
