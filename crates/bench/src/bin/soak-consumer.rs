//! `cargo xtask soak consumer`: events written with majority while pods are killed, paused and stopped, primary and broker killed once,
//! one message in ten republished out of order, and one event of one aggregate refused.
//!
//! At the end every read model must equal a fold of the source, and one lists 1, 2, 3 … for every aggregate. A run that did not cover what it
//! was to cover fails too, for example one in which no pod was paused past its locks while another took its sessions. The last line is
//! JSON; a run that was not clean prints its seed and can be repeated with `--seed`.

use std::process::ExitCode;

use bench::soak::consumer_soak::{ConsumerSoakOptions, ConsumerSoakResult, run};
use bench::soak::{RoundSummary, SoakArgs};
use clap::Parser;

/// Workloads in which a consumer could stall.
const SHAPES: &str = "\
Very many aggregates, of one event each:
  --peace --rate 0 --events 100000 --aggregates 100000 --run 1 --by-turns --together 100
One aggregate, of very many events (a list of what was applied would be copied with each):
  --peace --rate 0 --events 100000 --aggregates 1 --run 100 --no-history
One document that all of them write:
  --peace --rate 0 --events 20000 --customers 1
Without --peace, the same under faults.

standstill_s is the longest time with unprocessed events in which none was applied,
drained_in_s the time from the last write to the last applied event.";

/// Write events while pods, primary and broker fail, and compare the read models with the source
#[derive(Parser)]
#[command(name = "soak-consumer", after_help = SHAPES)]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// Most events of one aggregate that are written in a row
    #[arg(long, default_value_t = 6)]
    run: u64,
    /// Aggregates whose events are written in one statement: many keep the writers from loading MongoDB
    #[arg(long, default_value_t = 1)]
    together: u64,
    /// Customers that the aggregates belong to: few make hot documents
    #[arg(long, default_value_t = 100)]
    customers: u64,
    /// No faults, no republished messages, no refused event
    #[arg(long)]
    peace: bool,
    /// Without the events' sequence: only the position gives the order
    #[arg(long)]
    position: bool,
    /// Without the read model that lists all applied events: for one aggregate of very many events
    #[arg(long)]
    no_history: bool,
    /// Run the broker with `--profile harsh`, its times divided by this number, such as 60
    #[arg(long, value_name = "SCALE")]
    harsh: Option<f64>,
    /// The content of the pods' `producer:`, besides `start`
    #[arg(long)]
    producer: Option<String>,
}

impl Args {
    fn options(&self, seed: u64) -> ConsumerSoakOptions {
        let mut options = ConsumerSoakOptions::full(seed);
        self.soak.apply(&mut options.base);
        let load = &mut options.base.load;
        (load.customers, load.run_length, load.runs_per_statement) =
            (self.customers, 1..=self.run, self.together.max(1));
        (options.sequence, options.history) = (!self.position, !self.no_history);
        if let Some(producer) = &self.producer {
            options.base.producer = format!("start: beginning, {producer}");
        }
        options.poison = options.can_poison();
        options.base.harsh_scale = self.harsh;
        if self.peace { options.without_faults() } else { options }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let summarize = |result: &ConsumerSoakResult, options: &ConsumerSoakOptions| RoundSummary {
        is_clean: result.is_clean() && result.unexpected_exits.is_empty(),
        missing: result.missing(options),
        json: result.json(),
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
