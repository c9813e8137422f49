//! `headwater parked`: lists, shows, retries and discards parked events.

use clap::Subcommand;
use mongodb::bson::Bson;
use pipeline::view::{DeliveredEvent, DiscardScope, Error, EventBody, ParkedAggregate};
use serde_json::{Value as Json, json};

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::{plural, render_table};
use crate::config::Config;
use crate::connect::COMMAND_TIMEOUT;
use crate::parked::{ParkedCommands, format_bson, format_id, format_time};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater parked list
  headwater parked show order-7 --model order_summary
  headwater parked retry order-7 --model order_summary
  headwater parked discard order-7 --yes";

/// List, show, retry or discard parked events.
///
/// An event that cannot be applied parks its aggregate in that one read model: its later events queue behind it, in order, and everything
/// else continues. Fix the cause (the declaration of the read model, an index, or the document), then `retry`. `discard` the events only if
/// the read model does not need them. New events keep queueing meanwhile; pods keep running.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ParkedCommand,
}

#[derive(Debug, Subcommand)]
enum ParkedCommand {
    /// List parked aggregates: read model, reason and since when
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the parked events of an aggregate, in order; their bodies only with `--bodies`
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: i64,
        /// Also print the bodies: documents of the source, with any personal data in them
        #[arg(long)]
        bodies: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Apply the parked events, in order; stops at the first event that still cannot be applied, and keeps those before it applied
    Retry {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Leave parked events out of the read model for good; they are kept, marked as discarded, and never applied
    ///
    /// Without `--all`, only the first event is discarded; `retry` then applies the rest.
    Discard {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        selector: AggregateArgs,
        /// Discard all parked events of the aggregate, not only the first
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Selects a parked aggregate.
#[derive(Debug, clap::Args)]
struct AggregateArgs {
    /// Aggregate id, as `parked list` shows it
    #[arg(value_name = "AGGREGATE")]
    aggregate: String,
    /// Read model; optional if the aggregate is parked in only one
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
        ParkedCommand::Retry { config, selector, json } => retry(&config.load()?, &selector, json).await,
        ParkedCommand::Discard { config, selector, all, confirm, json } => {
            discard(&config.load()?, &selector, all, &confirm, json).await
        }
    }
}

async fn open(config: &ConfigArgs) -> anyhow::Result<ParkedCommands> {
    ParkedCommands::open(&config.load()?, COMMAND_TIMEOUT).await
}

async fn list(commands: &ParkedCommands, pipeline: &str, limit: i64, as_json: bool) -> anyhow::Result<()> {
    let list = commands.list(limit).await?;
    if as_json {
        output::print_json(&Json::Array(list.iter().map(waiting_json).collect()))?;
        return Ok(());
    }
    if list.is_empty() {
        output::print_line(format_args!("no parked events in `{pipeline}`"))?;
        return Ok(());
    }
    let rows: Vec<_> = list.iter().map(waiting_row).collect();
    output::print(render_table(&["MODEL", "AGGREGATE", "REASON", "SEQUENCE", "EVENTS", "SINCE", "DETAIL"], &rows))?;
    output::print_line(format_args!("\nFix the cause, then run: headwater parked retry AGGREGATE --model MODEL"))?;
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
        output::print_json(&shown)?;
        return Ok(());
    }
    output::print_line(format_args!("read model  {}", waiting.model))?;
    output::print_line(format_args!("aggregate   {}", format_id(&waiting.aggregate)))?;
    output::print_line(format_args!("reason      {} ({})", waiting.parked.reason, waiting.parked.detail))?;
    output::print_line(format_args!("since       {}", format_time(waiting.parked.since)))?;
    output::print_line(format_args!("events      {}\n", waiting.parked.waiting()))?;
    let rows: Vec<_> = events.iter().map(event_row).collect();
    output::print(render_table(&["SEQUENCE", "TYPE", "EVENT", "TERM", "COMMITTED"], &rows))?;
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
            EventBody::Oversize(id) => json!({ "oversize": id }),
            EventBody::Marker(id) => json!({ "rejected": id }),
        };
    }
    shown
}

async fn retry(config: &Config, selector: &AggregateArgs, as_json: bool) -> anyhow::Result<()> {
    let commands = ParkedCommands::open(config, COMMAND_TIMEOUT).await?;
    let waiting = selector.find_in(&commands).await?;
    let ParkedAggregate { aggregate, model, .. } = &waiting;
    let retried = commands.retry(&waiting).await;
    if let Ok(events) = &retried {
        let detail = format!("{} of {} in `{model}`", plural(*events, "event"), format_id(aggregate));
        operator_log::record(config, "parked retry", &detail).await;
    }
    match retried {
        Ok(events) if as_json => {
            output::print_json(
                &json!({ "model": model, "aggregate": to_extended_json(aggregate.value()), "applied": events }),
            )?;
        }
        Ok(events) => {
            output::print_line(format_args!(
                "applied {} to `{model}`; {} is no longer parked",
                plural(events, "event"),
                format_id(aggregate)
            ))?;
        }
        Err(error) if matches!(error.downcast_ref(), Some(Error::UnknownModel(_))) => {
            return Err(error.context(
                "this configuration does not declare the read model; retry with the configuration of the pods",
            ));
        }
        Err(error) if matches!(error.downcast_ref(), Some(Error::ReplayRefused { .. })) => {
            return Err(error.context(
                "the aggregate stays parked; fix the cause and retry, or discard the event with `parked discard`",
            ));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn discard(
    config: &Config,
    selector: &AggregateArgs,
    all: bool,
    confirm: &ConfirmArgs,
    as_json: bool,
) -> anyhow::Result<()> {
    let commands = ParkedCommands::open(config, COMMAND_TIMEOUT).await?;
    let waiting = selector.find_in(&commands).await?;
    let ParkedAggregate { aggregate, model, parked, .. } = &waiting;
    let name = format_id(aggregate);
    let scope = if all { format!("all {} parked events", parked.waiting()) } else { "the first event".to_owned() };
    confirm.require(&format!(
        "leaves {scope} of {name} out of `{model}` for good: the read model will lack their changes"
    ))?;
    let what = if all { DiscardScope::All } else { DiscardScope::First };
    let events = commands.discard(&waiting, what).await?;
    operator_log::record(config, "parked discard", &format!("{} of {name} in `{model}`", plural(events, "event")))
        .await;
    let left = parked.waiting().saturating_sub(events);
    if as_json {
        let aggregate = to_extended_json(aggregate.value());
        output::print_json(&json!({ "model": model, "aggregate": aggregate, "discarded": events, "waiting": left }))?;
        return Ok(());
    }
    output::print_line(format_args!(
        "discarded {} of {name} from `{model}`; kept in `parked_events`, marked as discarded",
        plural(events, "event")
    ))?;
    if left > 0 {
        output::print_line(format_args!(
            "{} still parked; apply with: headwater parked retry {name} --model {model}",
            plural(left, "event")
        ))?;
    }
    Ok(())
}

fn to_extended_json(value: &Bson) -> Json {
    value.clone().into_relaxed_extjson()
}
