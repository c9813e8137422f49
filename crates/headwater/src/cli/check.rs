//! `headwater check`: what stands in the way of running well.

use anyhow::bail;
use serde_json::{Value as Json, json};

use super::run::ConfigArgs;
use crate::check::{self, CheckFinding, FindingLevel};
use crate::config::ConfigProblems;
use crate::exit::ExitReason;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  headwater check --offline         in a pipeline that builds the configuration
  headwater check --sample 1000     before the first pod, and after a change of read models
  headwater check --json | jq -r '.findings[] | select(.level == \"error\") | .problem'";

/// Check configuration, MongoDB and the bus, and say what to mend.
///
/// Looks and changes nothing. Every finding is one line: how bad it is, what it is about, and what to do. Errors stop pods from running, or
/// lose what is promised; warnings will hurt some day; notes are worth knowing. Ends with 4 if there is an error, with 3 if it is in the configuration itself, else with 0.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Only the configuration itself: ask neither MongoDB nor the bus.
    #[arg(long)]
    offline: bool,

    /// Look at so many of the newest events, too: do they have what source and read models name? Nothing of them but their types is shown.
    #[arg(long, value_name = "N", conflicts_with = "offline", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,

    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => {
            if args.json {
                output::print_line(format_args!("{:#}", load_failure_json(&error)))?;
            }
            return Err(error);
        }
    };
    let findings =
        if args.offline { check::check_offline(&config) } else { check::check_online(&config, args.sample).await? };
    let errors = findings.iter().filter(|finding| finding.level == FindingLevel::Error).count();
    if args.json {
        let list: Vec<_> = findings.iter().map(CheckFinding::to_json).collect();
        output::print_line(format_args!("{:#}", json!({ "ok": errors == 0, "findings": Json::Array(list) })))?;
    } else {
        for finding in &findings {
            output::print_line(finding)?;
        }
        if findings.is_empty() {
            output::print_line("all is well")?;
        }
    }
    if errors > 0 {
        bail!(ExitReason::Unhealthy.with_message(format!("{errors} of {} findings must be mended", findings.len())));
    }
    Ok(())
}

/// Why there is no configuration to check, as findings.
fn load_failure_json(error: &anyhow::Error) -> Json {
    if let Some(problems) = error.downcast_ref::<ConfigProblems>() {
        return problems.to_json();
    }
    let finding = json!({
        "level": "error", "about": "configuration", "path": "", "line": null, "column": null, "problem": format!("{error:#}")
    });
    json!({ "ok": false, "file": null, "findings": [finding] })
}
