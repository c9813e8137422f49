//! `headwater audit`: one round of the audit, now.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::bail;
use pipeline::audit::{AuditTotals, RoundOptions, WaitReason};
use serde_json::json;

use super::shared_args::ConfigArgs;
use super::table::plural;
use crate::command_applier::CommandApplier;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::signal::ShutdownSignal;
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater audit --all --dry-run     report what is missing, change nothing
  headwater audit --all               after Service Bus lost messages: do not wait for the next round";

/// Compare the source with the read models now, and heal what is missing.
///
/// Pods do the same all the time, within `audit.budget_percent`; this runs one round without pauses, with the read models of the configuration file.
/// An aggregate whose cursor is behind the source is healed from the source, if no message of it is on Service Bus any more; while messages wait,
/// the command waits. The round continues where the pods are; with `--all` it starts at the first aggregate. The pods need not run, but one must
/// lead: the checkpoint has to pass the time at which the source was read.
///
/// Exits with 0 if nothing was missing, with 4 if something was, healed or not, and with 1 if the pipeline cannot be audited.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Start at the first aggregate, instead of where the present round is
    #[arg(long)]
    all: bool,

    /// Report what is missing, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON when it is done
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let mut stop = ShutdownSignal::new()?;
    tokio::select! {
        totals = run_round(&config, &args) => {
            let totals = totals?;
            if !args.dry_run {
                operator_log::record(&config, "audit", &summary(&totals)).await;
            }
            report(&totals, &args)
        }
        // cancel-safe: the progress is stored.
        () = stop.recv() => bail!(ExitReason::Interrupted.with_message("stopped; the pods continue the round")),
    }
}

async fn run_round(config: &Config, args: &Args) -> anyhow::Result<AuditTotals> {
    let dependencies = connect::producer_dependencies(config, COMMAND_TIMEOUT).await?;
    let applier = CommandApplier::start(config, &dependencies).await?;
    let auditor = connect::auditor(config, &dependencies, &applier.views, applier.handle())?;
    let mut display = ProgressDisplay::new(args.json);
    let options = RoundOptions { from_start: args.all, dry_run: args.dry_run };
    let round = auditor.run_round(options, &mut |totals, waiting| display.show(totals, waiting)).await;
    applier.stop().await?;
    display.end();
    Ok(round?)
}

fn report(totals: &AuditTotals, args: &Args) -> anyhow::Result<()> {
    if args.json {
        output::print_json(&json!({
            "dry_run": args.dry_run, "compared": totals.compared, "found": totals.found, "healed": totals.healed,
            "healed_events": totals.healed_events,
            "skipped": {
                "parked": totals.parked, "regressed": totals.regressed, "before_start": totals.before_start,
                "unusable": totals.unusable,
            },
        }))?;
    } else {
        output::print_line(summary(totals))?;
    }
    if totals.found == 0 {
        return Ok(());
    }
    let found = plural(totals.found, "aggregate");
    bail!(ExitReason::Unhealthy.with_message(if args.dry_run {
        format!("{found} miss events; run `headwater audit --all` to heal them")
    } else {
        format!("{found} missed {}, which are applied now", plural(totals.healed_events, "event"))
    }))
}

fn summary(totals: &AuditTotals) -> String {
    let AuditTotals { parked, regressed, before_start, unusable, .. } = *totals;
    let reasons = [
        (parked, "parked"),
        (regressed, "regressed"),
        (before_start, "older than the pipeline"),
        (unusable, "unusable"),
    ];
    let reasons: Vec<_> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}")).collect();
    let skipped = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    format!(
        "{} compared, {} skipped{skipped}, {} with missing events",
        plural(totals.compared, "aggregate"),
        totals.skipped(),
        totals.found
    )
}

/// One line that is rewritten on a terminal; otherwise a line now and then.
struct ProgressDisplay {
    is_quiet: bool,
    is_terminal: bool,
    shown: Option<Instant>,
}

const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(5);

impl ProgressDisplay {
    fn new(is_quiet: bool) -> Self {
        Self { is_quiet, is_terminal: std::io::stdout().is_terminal(), shown: None }
    }

    fn show(&mut self, totals: &AuditTotals, waiting: Option<WaitReason>) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= interval) || waiting.is_some();
        if self.is_quiet || !is_due {
            return;
        }
        self.shown = Some(Instant::now());
        let waiting = match waiting {
            Some(WaitReason::Checkpoint) => "; waiting for the checkpoint: is there a leader?",
            Some(WaitReason::Backlog) => "; waiting for messages on Service Bus to be applied",
            Some(WaitReason::Healing) => "; failed to apply missing events, retrying",
            None => "",
        };
        let line = format!("{}, {} with missing events{waiting}", plural(totals.compared, "aggregate"), totals.found);
        // `\x1b[K` clears what a longer line left.
        output::try_print(if self.is_terminal { format!("\r{line}\x1b[K") } else { format!("{line}\n") });
    }

    fn end(&self) {
        if self.is_terminal && self.shown.is_some() {
            output::try_print("\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_why_aggregates_were_skipped() {
        let totals = AuditTotals { compared: 12, parked: 2, before_start: 1, ..AuditTotals::default() };
        let expected = "12 aggregates compared, 3 skipped (2 parked, 1 older than the pipeline), 0 with missing events";
        assert_eq!(summary(&totals), expected);
    }
}
