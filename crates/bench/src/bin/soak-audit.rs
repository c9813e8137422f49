//! `cargo xtask soak audit`: the bus loses one message in a thousand for good, the topic is purged, the subscription is deleted and made again, and pods
//! and the primary are killed. After the audit every read model must equal a fold of the source.
//!
//! With `--minutes` nothing is lost: an audit that finds something raises a false alarm. The last line is JSON; a run that was not clean prints its seed
//! and can be repeated with `--seed`.

use std::process::ExitCode;
use std::time::Duration;

use bench::soak::audit_soak::{AuditSoakOptions, AuditSoakResult, run};
use bench::soak::{RoundSummary, SoakArgs};
use clap::Parser;
use testkit::nemesis::FaultProfile;

/// Lose messages for good, and compare the read models with the source after the audit
#[derive(Parser)]
#[command(name = "soak-audit")]
struct Args {
    #[command(flatten)]
    soak: SoakArgs,
    /// Write for this long at `--rate`, and lose nothing: whatever the audit finds is a false alarm
    #[arg(long)]
    minutes: Option<u64>,
    /// No process is killed or paused
    #[arg(long)]
    peace: bool,
    /// The control: without the audit the run is not clean
    #[arg(long)]
    no_audit: bool,
    /// The broker loses one transfer in this many
    #[arg(long, default_value_t = 1_000)]
    lose_one_in: u64,
    /// `audit.period` of the pods, in seconds
    #[arg(long, default_value_t = 10)]
    period: u64,
}

impl Args {
    fn options(&self, seed: u64) -> AuditSoakOptions {
        let mut options = AuditSoakOptions::full(seed);
        self.soak.apply(&mut options.base);
        (options.audit, options.lose_one_in) = (!self.no_audit, self.lose_one_in);
        options.period = Duration::from_secs(self.period.max(1));
        if self.peace {
            options.base.profile = FaultProfile::none();
        }
        let rate = options.base.load.rate.unwrap_or(200.0);
        match self.minutes {
            Some(minutes) => options.without_losses(rate, Duration::from_secs(60 * minutes)),
            None => options,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let summarize = |result: &AuditSoakResult, options: &AuditSoakOptions| RoundSummary {
        is_clean: result.is_clean(options),
        missing: result.missing(options),
        json: result.json(),
    };
    args.soak.run_rounds(|seed| args.options(seed), run, summarize).await
}
