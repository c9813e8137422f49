//! `cargo xtask soak verify`: compares every read model with the source again and again, while events flow and pods are killed. The read models are
//! right, so whatever `read-model verify` finds is a false alarm.
//!
//! The last line is JSON; a run that was not clean prints its seed and can be repeated with `--seed`.

use std::process::ExitCode;
use std::time::Duration;

use bench::soak::verify_soak::{VerifySoakOptions, VerifySoakResult, run};
use bench::soak::{RoundSummary, SoakArgs};
use clap::Parser;

/// Verify read models under load, and count false alarms
#[derive(Parser)]
#[command(name = "soak-verify")]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// Write for this long at `--rate`
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// No pod is killed
    #[arg(long)]
    peace: bool,
}

impl Args {
    fn options(&self, seed: u64) -> VerifySoakOptions {
        let mut options = VerifySoakOptions::full(seed);
        self.soak.apply(&mut options.base);
        options.length = Duration::from_secs(60 * self.minutes);
        if self.peace {
            options.kill_every = None;
        }
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let summarize = |result: &VerifySoakResult, options: &VerifySoakOptions| RoundSummary {
        is_clean: result.is_clean(),
        missing: result.missing(options),
        json: result.json(),
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
