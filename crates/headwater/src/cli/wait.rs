//! `headwater wait`: waits until an event is applied.

use std::time::Duration;

use anyhow::bail;
use pipeline::view::AppliedState;

use super::shared_args::ConfigArgs;
use super::table::render_table;
use crate::aggregate_argument;
use crate::applied::{self, AppliedWait};
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  headwater wait order-7 --sequence 12
  headwater wait order-7 --sequence 12 --timeout 30s --json";

/// Wait until the events of an aggregate up to a sequence are applied in every read model.
///
/// Returns as soon as the cursor of the aggregate is at or beyond the sequence. If the aggregate is parked in a read model, or a read model is
/// paused or being built, waiting does not help: the command fails at once.
/// Web applications ask a pod: `GET /api/applied?aggregate=…&sequence=…`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Aggregate id
    aggregate: String,

    /// Sequence of the event
    #[arg(long, value_name = "N")]
    sequence: i64,

    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    if !config.source.is_sequenced() {
        bail!(
            ExitReason::Failed
                .with_message("the source has no sequence (`source.sequence`), so there is nothing to wait for")
        );
    }
    let client = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
    let coordination = connect::coordination_database(&config, COMMAND_TIMEOUT).await?;
    let reader = AppliedWait::new(&config, &coordination, &client.database(&config.read_models.database));
    let aggregates = aggregate_argument::candidates(&args.aggregate);
    let state = reader.wait(&aggregates, args.sequence, args.timeout).await?;
    report(&args, &state)
}

fn report(args: &Args, state: &AppliedState) -> anyhow::Result<()> {
    if args.json {
        output::print_json(&serde_json::to_value(applied::to_answer(state))?)?;
    } else {
        let rows: Vec<_> =
            state.models.iter().map(|(model, progress)| [model.clone(), applied::describe(*progress)]).collect();
        output::print(render_table(&["read model", "state"], &rows))?;
    }
    if state.is_parked() {
        let name = &args.aggregate;
        bail!(ExitReason::Failed.with_message(format!(
            "the aggregate is parked; `headwater parked list` and `headwater explain {name}` say why"
        )));
    }
    if state.is_unavailable() {
        bail!(
            ExitReason::Failed
                .with_message("a read model is paused or being built; `headwater status` says which and since when")
        );
    }
    if !state.is_applied() {
        let at = state
            .sequence
            .map_or_else(|| "no event is applied".to_owned(), |at| format!("applied up to sequence {at}"));
        bail!(
            ExitReason::Failed
                .with_message(format!("not applied after {}: {at}", humantime::format_duration(args.timeout)))
        );
    }
    Ok(())
}
