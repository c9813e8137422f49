//! `headwater history`: what operators did.

use serde_json::{Value as Json, json};

use super::shared_args::ConfigArgs;
use super::table::render_table;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::operator_log::{OperatorAction, OperatorLog};
use crate::output;
use crate::parked::format_time;

const EXAMPLES: &str = "\
Examples:
  headwater history
  headwater history --limit 10 --json";

/// Show what operators did: who, when, what.
///
/// Commands that change something are recorded in `operator_actions` of the coordination database, and so are actions on the dashboard. Records are kept until you delete them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Maximum number of rows, the newest first
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: i64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let coordination = connect::coordination_database(&config, COMMAND_TIMEOUT).await?;
    let actions = OperatorLog::new(&coordination, &config.pipeline).list(args.limit).await?;
    if args.json {
        output::print_json(&actions.iter().map(to_json).collect::<Json>())?;
    } else if actions.is_empty() {
        output::print_line(format_args!("no operator action is recorded for `{}`", config.pipeline))?;
    } else {
        let rows: Vec<_> = actions.iter().map(to_row).collect();
        output::print(render_table(&["TIME", "BY", "ACTION", "DETAIL"], &rows))?;
    }
    Ok(())
}

fn to_row(action: &OperatorAction) -> [String; 4] {
    [format_time(action.at), action.by.clone(), action.action.clone(), action.detail.clone()]
}

fn to_json(action: &OperatorAction) -> Json {
    json!({ "at": format_time(action.at), "by": action.by, "action": action.action, "detail": action.detail })
}
