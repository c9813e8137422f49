//! `cargo xtask soak producer`: events written with majority while leaders are killed, paused and deposed and the primary is killed once.
//!
//! Everything acknowledged must come out of the subscription, in order per session, once. The last line is JSON; a run that was not clean
//! says its seed, and is run again with `--seed`.

use std::process::ExitCode;
use std::time::Duration;

use bench::broker_process::binary;
use bench::soak::{self, Options, run};
use clap::Parser;
use testkit::cluster::Topic;
use testkit::nemesis::Profile;

#[derive(Parser)]
#[command(name = "soak-producer")]
struct Arguments {
    #[command(flatten)]
    soak: soak::Arguments,
    /// Break the broker and its links too
    #[arg(long)]
    everything: bool,
    /// A topic without duplicate detection: copies are counted by the term that sent them
    #[arg(long)]
    no_duplicate_detection: bool,
    #[arg(long)]
    partitioned: bool,
    /// Without duplicate detection, more copies than this in one term fail the run: the window, as it is by default
    #[arg(long, default_value_t = 8_192)]
    most_copies: u64,
}

impl Arguments {
    fn options(&self, seed: u64) -> Options {
        let mut options = Options::full(seed);
        self.soak.apply(&mut options);
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
    let round = async |seed| {
        let options = arguments.options(seed);
        let outcome = run(&binary(), &options).await?;
        let missing = outcome.missing(&options);
        missing.iter().for_each(|what| println!("the run was to see this, and did not: {what}"));
        println!("{outcome}\n{}", outcome.json("producer"));
        let copies = outcome.verdict.most_duplicates_in_a_term() <= arguments.most_copies;
        let good = outcome.is_clean() && copies && missing.is_empty() && outcome.deaths.is_empty();
        Ok::<_, testkit::cluster::Error>(good)
    };
    arguments.soak.rounds(round).await
}
