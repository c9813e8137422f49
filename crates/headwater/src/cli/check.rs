//! `headwater check`: reports problems of the setup.

use anyhow::bail;
use serde_json::{Value as Json, json};

use super::shared_args::ConfigArgs;
use crate::check::{self, CheckFinding, FindingLevel};
use crate::config::ConfigProblems;
use crate::exit::ExitReason;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  headwater check --offline         in CI, without servers
  headwater check --sample 1000     before the first start, and after a change of read models
  headwater check --json | jq -r '.findings[] | select(.level == \"error\") | .problem'";

/// Check configuration, MongoDB and Service Bus, and suggest fixes.
///
/// Changes nothing. Every finding is one line: level, section, problem and fix. An error prevents pods from running or breaks a guarantee; a warning
/// causes problems later; a note is worth knowing. Exits with 4 if there is an error, with 3 if the configuration is invalid, otherwise with 0.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Check only the configuration, without MongoDB and Service Bus
    #[arg(long)]
    offline: bool,

    /// Also check that the N newest events have the fields that source and read models use; only event types are shown
    #[arg(long, value_name = "N", conflicts_with = "offline", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let deployment = match args.config.load_all() {
        Ok(deployment) => deployment,
        Err(error) => {
            if args.json {
                output::print_json(&load_failure_json(&error))?;
            }
            return Err(error);
        }
    };
    let mut found = vec![];
    for config in &deployment.pipelines {
        let findings =
            if args.offline { check::check_offline(config) } else { check::check_online(config, args.sample).await? };
        found.push((config.pipeline.clone(), findings));
    }
    let findings = if deployment.is_list { check::with_pipeline_names(found) } else { found.remove(0).1 };
    let errors = findings.iter().filter(|finding| finding.level == FindingLevel::Error).count();
    if args.json {
        let list: Vec<_> = findings.iter().map(CheckFinding::to_json).collect();
        output::print_json(&json!({ "ok": errors == 0, "findings": Json::Array(list) }))?;
    } else {
        for finding in &findings {
            output::print_line(finding)?;
        }
        if findings.is_empty() {
            output::print_line("no problems found")?;
        }
    }
    if errors > 0 {
        bail!(ExitReason::Unhealthy.with_message(format!("{errors} of {} findings are errors", findings.len())));
    }
    Ok(())
}

/// The reason why the configuration cannot be loaded, as findings.
fn load_failure_json(error: &anyhow::Error) -> Json {
    if let Some(problems) = error.downcast_ref::<ConfigProblems>() {
        return problems.to_json();
    }
    let finding = json!({
        "level": "error", "about": "configuration", "path": "", "line": null, "column": null, "problem": format!("{error:#}")
    });
    json!({ "ok": false, "file": null, "findings": [finding] })
}
