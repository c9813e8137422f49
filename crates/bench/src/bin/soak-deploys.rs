//! `cargo xtask soak deploys`: rolling deploys add, change and remove read models under load, pods are killed in the middle, and the deploy is rolled
//! back. In the end every read model equals a fold of its definition.
//!
//! The last line is JSON; a run that was not clean prints its seed and can be repeated with `--seed`.

use std::process::ExitCode;

use bench::soak::deploy_soak::{DeploySoakOptions, DeploySoakResult, run};
use bench::soak::{RoundSummary, SoakArgs};
use clap::Parser;
use pipeline::failpoints::Failpoint;

/// Deploy other read models under load, and compare them with the source
#[derive(Parser)]
#[command(name = "soak-deploys")]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// The control: pods ignore generations, and the run is not clean. Only in a dev build, which has failpoints
    #[arg(long)]
    no_generation_check: bool,
    /// No pod is killed
    #[arg(long)]
    peace: bool,
}

impl Args {
    fn options(&self, seed: u64) -> DeploySoakOptions {
        let mut options = DeploySoakOptions::full(seed);
        self.soak.apply(&mut options.base);
        if self.peace {
            options.kills = 0;
        }
        if self.no_generation_check {
            options.base.failpoint = Some(Failpoint::NoGenerationCheck);
        }
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.no_generation_check && !cfg!(debug_assertions) {
        // The pods would ignore the failpoint, and the run would be clean.
        eprintln!(
            "a release build has no failpoints; run `cargo build --package headwater && cargo run --package bench --bin soak-deploys -- --no-generation-check`"
        );
        return ExitCode::FAILURE;
    }
    let summarize = |result: &DeploySoakResult, options: &DeploySoakOptions| RoundSummary {
        is_clean: result.is_clean(options),
        missing: result.missing(options),
        json: result.json(),
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
