//! `cargo xtask soak producer`: events written with majority while leaders are killed, paused and deposed and the primary is killed once.
//!
//! The subscription must hold every acknowledged write once, in order per session. The last line is JSON; a run that was not clean
//! prints its seed and can be repeated with `--seed`.

use std::process::ExitCode;
use std::time::Duration;

use bench::soak::{ProducerSoakOptions, ProducerSoakResult, RoundSummary, SoakArgs, run};
use clap::Parser;
use testkit::cluster::TopicConfig;
use testkit::nemesis::FaultProfile;

/// Write events while leaders and the primary fail, and compare the subscription with the source
#[derive(Parser)]
#[command(name = "soak-producer")]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// Also inject faults into the broker and its links
    #[arg(long)]
    everything: bool,
    /// A topic without duplicate detection: copies are counted by the term that sent them
    #[arg(long)]
    no_duplicate_detection: bool,
    /// A partitioned topic
    #[arg(long)]
    partitioned: bool,
    /// Without duplicate detection, more copies than this in one term fail the run [the default window in flight]
    #[arg(long, default_value_t = 8_192)]
    most_copies: u64,
}

impl Args {
    fn options(&self, seed: u64) -> ProducerSoakOptions {
        let mut options = ProducerSoakOptions::full(seed);
        self.soak.apply(&mut options);
        if self.everything {
            options.profile = FaultProfile::everything();
        }
        let duplicate_window = (!self.no_duplicate_detection).then_some(Duration::from_secs(1_200));
        options.topic = TopicConfig { duplicate_window, partitioned: self.partitioned, ..TopicConfig::default() };
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let summarize = |result: &ProducerSoakResult, options: &ProducerSoakOptions| {
        let has_few_copies = result.report.most_duplicates_in_a_term() <= args.most_copies;
        RoundSummary {
            is_clean: result.is_clean() && has_few_copies && result.unexpected_exits.is_empty(),
            missing: result.missing(options),
            json: result.json("producer"),
        }
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
