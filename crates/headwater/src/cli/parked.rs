//! `headwater parked`: aggregates that wait behind an event that cannot be applied, and the operator's hand on them.

use anyhow::{Context, bail};
use clap::Subcommand;
use mongodb::bson::Bson;
use pipeline::view::{DeliveredEvent, DiscardScope, Error, EventBody, ParkedAggregate};
use serde_json::{Value as Json, json};

use super::run::ConfigArgs;
use super::table::render_table;
use crate::connect::COMMAND_TIMEOUT;
use crate::exit::ExitReason;
use crate::output;
use crate::parked::{ParkedCommands, format_bson, format_id, format_time};

const EXAMPLES: &str = "\
Examples:
  headwater parked list
  headwater parked show order-7 --model order_summary
  headwater parked retry order-7 --model order_summary
  headwater parked discard order-7 --yes";

/// Look at aggregates that wait behind an event that cannot be applied, and let them go on.
///
/// An event that cannot be applied does not stop the others: its aggregate is parked in that one read model, and its later events queue
/// behind it, in order. Mend the cause (a read model's declaration, an index, the document it meets), then `retry`. Only if the events
/// are not wanted in that read model, `discard` them. New events queue behind meanwhile; pods need not be stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ParkedCommand,
}

#[derive(Debug, Subcommand)]
enum ParkedCommand {
    /// List what is parked: which aggregate, in which read model, why and since when.
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: i64,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the events that wait, in order: ids, types and places, and what they say only with `--bodies`.
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: i64,
        /// Also what the events say: this prints documents of the source, and whatever is personal in them.
        #[arg(long)]
        bodies: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Apply what waits, in order. Stops at the first event that still cannot be applied; what came before it stays applied.
    Retry {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Leave events out of the read model for good. They are kept, marked as discarded, and never applied.
    ///
    /// Without `--all` only the first, behind which the others wait; `retry` then applies the rest.
    Discard {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// All that waits, not only the first.
        #[arg(long)]
        all: bool,
        /// Yes, this is meant.
        #[arg(long)]
        yes: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// AggregateArgs of those that wait.
#[derive(Debug, clap::Args)]
struct AggregateArgs {
    /// The aggregate, as `parked list` shows it.
    #[arg(value_name = "AGGREGATE")]
    aggregate: String,
    /// The read model; may be left out where the aggregate waits in one only.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

impl AggregateArgs {
    async fn find_in(&self, commands: &ParkedCommands) -> anyhow::Result<ParkedAggregate> {
        commands.find(&self.aggregate, self.model.as_deref()).await
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        ParkedCommand::List { config, limit, json } => {
            let config = config.load()?;
            list(&ParkedCommands::open(&config, COMMAND_TIMEOUT).await?, &config.pipeline, limit, json).await
        }
        ParkedCommand::Show { config, selector, limit, bodies, json } => {
            show(&open(&config).await?, &selector, limit, bodies, json).await
        }
        ParkedCommand::Retry { config, selector, json } => retry(&open(&config).await?, &selector, json).await,
        ParkedCommand::Discard { config, selector, all, yes, json } => {
            discard(&open(&config).await?, &selector, all, yes, json).await
        }
    }
}

async fn open(config: &ConfigArgs) -> anyhow::Result<ParkedCommands> {
    ParkedCommands::open(&config.load()?, COMMAND_TIMEOUT).await
}

async fn list(commands: &ParkedCommands, pipeline: &str, limit: i64, as_json: bool) -> anyhow::Result<()> {
    let list = commands.list(limit).await?;
    if as_json {
        output::print_line(format_args!("{:#}", Json::Array(list.iter().map(waiting_json).collect())))?;
        return Ok(());
    }
    if list.is_empty() {
        output::print_line(format_args!("nothing is parked in `{pipeline}`"))?;
        return Ok(());
    }
    let rows: Vec<_> = list.iter().map(waiting_row).collect();
    output::print(render_table(["MODEL", "AGGREGATE", "REASON", "AT", "WAITING", "SINCE", "DETAIL"], &rows))?;
    output::print_line(format_args!("\nMend the cause, then: headwater parked retry AGGREGATE --model MODEL"))?;
    Ok(())
}

fn waiting_row(waiting: &ParkedAggregate) -> [String; 7] {
    let parked = &waiting.parked;
    [
        waiting.model.clone(),
        format_id(&waiting.aggregate),
        parked.reason.to_string(),
        parked.sequence.map_or("-".to_owned(), |sequence| sequence.to_string()),
        parked.waiting().to_string(),
        format_time(parked.since),
        parked.detail.clone(),
    ]
}

fn waiting_json(waiting: &ParkedAggregate) -> Json {
    let parked = &waiting.parked;
    json!({
        "model": waiting.model,
        "aggregate": to_extended_json(waiting.aggregate.value()),
        "collection": waiting.collection,
        "reason": parked.reason.as_str(),
        "detail": parked.detail,
        "event": to_extended_json(&parked.event_id),
        "sequence": parked.sequence,
        "waiting": parked.waiting(),
        "since": format_time(parked.since),
    })
}

async fn show(
    commands: &ParkedCommands,
    selector: &AggregateArgs,
    limit: i64,
    bodies: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let waiting = selector.find_in(commands).await?;
    let events = commands.show(&waiting, limit).await?;
    if as_json {
        let mut shown = waiting_json(&waiting);
        shown["events"] = Json::Array(events.iter().map(|event| event_json(event, bodies)).collect());
        output::print_line(format_args!("{shown:#}"))?;
        return Ok(());
    }
    output::print_line(format_args!("read model  {}", waiting.model))?;
    output::print_line(format_args!("aggregate   {}", format_id(&waiting.aggregate)))?;
    output::print_line(format_args!("reason      {} ({})", waiting.parked.reason, waiting.parked.detail))?;
    output::print_line(format_args!("since       {}", format_time(waiting.parked.since)))?;
    output::print_line(format_args!("waiting     {}\n", waiting.parked.waiting()))?;
    let rows: Vec<_> = events.iter().map(event_row).collect();
    output::print(render_table(["SEQUENCE", "TYPE", "EVENT", "TERM", "COMMITTED"], &rows))?;
    for event in events.iter().filter(|_| bodies) {
        output::print_line(format_args!("\n{:#}", event_json(event, true)))?;
    }
    Ok(())
}

fn event_row(event: &DeliveredEvent) -> [String; 5] {
    [
        event.sequence.map_or("-".to_owned(), |sequence| sequence.to_string()),
        event.event_type.clone().unwrap_or_else(|| "-".to_owned()),
        format_bson(&event.key),
        event.term.to_string(),
        event.committed.map_or("-".to_owned(), format_time),
    ]
}

fn event_json(event: &DeliveredEvent, bodies: bool) -> Json {
    let mut shown = json!({
        "event": to_extended_json(&event.key),
        "type": event.event_type,
        "sequence": event.sequence,
        "operation": event.operation.as_str(),
        "term": event.term.get(),
        "committed": event.committed.map(format_time),
    });
    if bodies {
        shown["body"] = match &event.body {
            EventBody::Document(document) => mongodb::bson::Document::try_from(&**document)
                .map_or(Json::Null, |document| to_extended_json(&document.into())),
            EventBody::Oversize(id) => json!({ "kept_apart": id }),
            EventBody::Marker(id) => json!({ "rejected": id }),
        };
    }
    shown
}

async fn retry(commands: &ParkedCommands, selector: &AggregateArgs, as_json: bool) -> anyhow::Result<()> {
    let waiting = selector.find_in(commands).await?;
    let ParkedAggregate { aggregate, model, .. } = &waiting;
    match commands.retry(&waiting).await {
        Ok(events) if as_json => {
            output::print_line(format_args!(
                "{:#}",
                json!({ "model": model, "aggregate": to_extended_json(aggregate.value()), "applied": events })
            ))?;
        }
        Ok(events) => {
            output::print_line(format_args!(
                "{events} events were applied to `{model}`; {} goes on",
                format_id(aggregate)
            ))?;
        }
        Err(error @ Error::UnknownModel(_)) => {
            return Err(error).context("this configuration does not declare it; retry with the one that pods run with");
        }
        Err(error @ Error::ReplayRefused { .. }) => {
            return Err(error).context("it stays parked; mend the cause and retry, or `parked discard` the event");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn discard(
    commands: &ParkedCommands,
    selector: &AggregateArgs,
    all: bool,
    yes: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let waiting = selector.find_in(commands).await?;
    let ParkedAggregate { aggregate, model, parked, .. } = &waiting;
    let name = format_id(aggregate);
    if !yes {
        let events = if all { format!("all {} events that wait", parked.waiting()) } else { "the first event".into() };
        bail!(ExitReason::Usage.with_message(format!(
            "this leaves {events} of {name} out of `{model}` for good: the read model will lack what they say; if that is \
             meant, say --yes"
        )));
    }
    let what = if all { DiscardScope::All } else { DiscardScope::First };
    let events = commands.discard(&waiting, what).await?;
    let left = parked.waiting().saturating_sub(events);
    if as_json {
        let aggregate = to_extended_json(aggregate.value());
        output::print_line(format_args!(
            "{:#}",
            json!({ "model": model, "aggregate": aggregate, "discarded": events, "waiting": left })
        ))?;
        return Ok(());
    }
    output::print_line(format_args!(
        "{events} events of {name} were discarded from `{model}`; they are kept in `parked_events`"
    ))?;
    if left > 0 {
        output::print_line(format_args!(
            "{left} more wait; apply them with: headwater parked retry {name} --model {model}"
        ))?;
    }
    Ok(())
}

fn to_extended_json(value: &Bson) -> Json {
    value.clone().into_relaxed_extjson()
}
