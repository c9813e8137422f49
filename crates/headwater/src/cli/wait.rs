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
use crate::parked::format_id;

const EXAMPLES: &str = "\
Examples:
  headwater wait order-7 --sequence 12
  headwater wait order-7 --sequence 12 --timeout 30s --json
  headwater wait --event 65a0c0ffee65a0c0ffee65a0";

/// Wait until the events of an aggregate up to a sequence are applied in every read model.
///
/// The event is named by aggregate and sequence, or by its `_id` in the source. Returns as soon as the cursor of the aggregate is at or beyond the sequence. If the aggregate is parked in a read model, or a read model is
/// paused or being built, waiting does not help: the command fails at once.
/// Web applications ask a pod: `GET /api/applied?aggregate=…&sequence=…` or `?event=…`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Aggregate id
    #[arg(required_unless_present = "event", conflicts_with = "event", requires = "sequence")]
    aggregate: Option<String>,

    /// Sequence of the event
    #[arg(long, value_name = "N", conflicts_with = "event")]
    sequence: Option<i64>,

    /// `_id` of the event in the source, in place of aggregate and sequence
    #[arg(long, value_name = "ID")]
    event: Option<String>,

    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let client = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
    let source = connect::mongo_client(&config.source_uri, "source.uri", COMMAND_TIMEOUT).await?;
    let coordination = connect::coordination_database(&config, COMMAND_TIMEOUT).await?;
    let views = client.database(&config.read_models.database);
    let Some(reader) = AppliedWait::new(&config, &source, &coordination, &views) else {
        bail!(ExitReason::Failed.with_message(applied::NO_SEQUENCE));
    };
    let (aggregates, sequence) = match (&args.event, &args.aggregate, args.sequence) {
        (Some(event), _, _) => {
            let (aggregate, sequence) = reader.find_event(&aggregate_argument::id_candidates(event)).await?;
            (vec![aggregate], sequence)
        }
        (None, Some(aggregate), Some(sequence)) => (aggregate_argument::candidates(aggregate), sequence),
        (None, _, _) => {
            bail!(ExitReason::Usage.with_message("name an event: aggregate and `--sequence`, or `--event`"))
        }
    };
    let state = reader.wait(&aggregates, sequence, args.timeout).await?;
    let name = args.aggregate.clone().or_else(|| aggregates.first().map(format_id)).unwrap_or_default();
    report(&args, &name, &state)
}

fn report(args: &Args, name: &str, state: &AppliedState) -> anyhow::Result<()> {
    if args.json {
        output::print_json(&serde_json::to_value(applied::to_answer(state))?)?;
    } else {
        let rows: Vec<_> =
            state.models.iter().map(|(model, progress)| [model.clone(), applied::describe(*progress)]).collect();
        output::print(render_table(&["read model", "state"], &rows))?;
    }
    if state.is_parked() {
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
