//! `headwater explain`: where the events of one aggregate are.

use anyhow::Context;
use mongodb::Client;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use pipeline::checkpoint::{Checkpoint, CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use pipeline::event::AggregateId;
use pipeline::sequence::read_sequence;
use pipeline::view::{Cursor, CursorReader, ParkReason, ParkedEntry, Projection, is_version_of};
use serde_json::{Value as Json, json};

use super::shared_args::ConfigArgs;
use super::table::plural;
use crate::aggregate_argument;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::output;
use crate::parked::{format_id, format_time};
use crate::pauses::{PauseStore, PauseTarget, Pauses};
use crate::status::SubscriptionMonitor;

const EXAMPLES: &str = "\
Examples:
  headwater explain order-7
  headwater explain order-7 --json
  headwater explain '{\"$oid\":\"65a0c0ffee65a0c0ffee65a0\"}'";

/// Show where the events of one aggregate are: source, checkpoint, Service Bus, cursor, read models.
///
/// Reads only; does not touch the session. For a source of events with a sequence. The messages of one session cannot be counted without locking it, so the count is of
/// the whole subscription.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Aggregate id
    aggregate: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is known about one aggregate.
struct AggregateReport {
    aggregate: AggregateId,
    /// The highest sequence in the source.
    source: Option<i64>,
    checkpoint: Option<Checkpoint>,
    active_messages: Option<u64>,
    dead_letters: Option<u64>,
    cursor: Option<Cursor>,
    models: Vec<String>,
    pauses: Pauses,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let report = collect(&config, &args.aggregate).await?;
    if args.json {
        output::print_json(&to_json(&report))?;
    } else {
        output::print(to_text(&report, &args.aggregate))?;
    }
    Ok(())
}

async fn collect(config: &Config, argument: &str) -> anyhow::Result<AggregateReport> {
    let source = connect::mongo_client(&config.source_uri, "source.uri", COMMAND_TIMEOUT).await?;
    let views = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    let cursors = CursorReader::new(&views.database(&config.read_models.database), &config.pipeline);
    let candidates = aggregate_argument::candidates(argument);
    let mut found = cursors.read(candidates.iter()).await?;
    let mut known = vec![];
    for aggregate in candidates {
        let (cursor, sequence) =
            (found.remove(&cursors.identity(&aggregate)), highest_sequence(config, &source, &aggregate).await?);
        known.push((aggregate, cursor, sequence));
    }
    let at = known.iter().position(|(_, cursor, sequence)| cursor.is_some() || sequence.is_some()).unwrap_or(0);
    let (aggregate, cursor, sequence) = known.into_iter().nth(at).context("this is no aggregate id")?;
    let checkpoints = MongoCheckpointStore::new(&coordination, &config.pipeline, config.source.fingerprint());
    let bus = &config.service_bus;
    let subscription = SubscriptionMonitor::new(connect::bus_administration(config)?, &bus.topic, &bus.subscription);
    let counts = subscription.read_counts().await;
    Ok(AggregateReport {
        aggregate,
        source: sequence,
        checkpoint: checkpoints.load().await?,
        active_messages: counts.active_messages,
        dead_letters: counts.dead_letters,
        cursor,
        models: config.read_models.models.iter().map(|model| model.name().to_owned()).collect(),
        pauses: PauseStore::new(&coordination, &config.pipeline).load().await?,
    })
}

async fn highest_sequence(config: &Config, client: &Client, aggregate: &AggregateId) -> anyhow::Result<Option<i64>> {
    let Some(sequence) = &config.source.sequence else { return Ok(None) };
    let mut highest = None;
    for namespace in config.source.namespaces() {
        let events = client.database(&namespace.database).collection::<RawDocumentBuf>(&namespace.collection);
        let numbers = doc! { "$gte": f64::NEG_INFINITY, "$lte": f64::INFINITY };
        let filter = doc! { &config.source.aggregate_id: { "$eq": aggregate.value().clone() }, sequence: numbers };
        let find = events.find_one(filter).sort(doc! { sequence: -1 }).projection(doc! { "_id": 0, sequence: 1 });
        let find = find.read_concern(ReadConcern::majority());
        let find = find.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let found = find.await.map_err(mongo_error::DriverError::from).context("failed to read the source")?;
        highest = highest.max(found.as_deref().and_then(|event| read_at(event, sequence)));
    }
    Ok(highest)
}

/// A number at a dotted path.
fn read_at(event: &mongodb::bson::RawDocument, path: &str) -> Option<i64> {
    match path.split_once('.') {
        Some((first, rest)) => read_at(event.get_document(first).ok()?, rest),
        None => read_sequence(event.get(path).ok()??),
    }
}

/// What the sequences mean, and what helps.
fn conclude(report: &AggregateReport, name: &str) -> (String, Option<String>) {
    let parked = || report.cursor.iter().flat_map(|cursor| &cursor.parked);
    if let Some((model, _)) = parked().find(|(_, entry)| entry.reason != ParkReason::Paused) {
        return (format!("parked in `{model}`"), Some(format!("headwater parked show {name} --model {model}")));
    }
    if let Some((model, entry)) = parked().next() {
        let paused = report.pauses.paused_models();
        let waiting = plural(entry.waiting(), "event");
        return match paused.iter().find(|name| is_version_of(model, name)) {
            Some(name) => (
                format!("read model `{name}` is paused: {waiting} waiting"),
                Some(format!("headwater resume read-model {name}")),
            ),
            None => (format!("`{model}` was paused, and applies {waiting} now"), Some("headwater status".to_owned())),
        };
    }
    let at = report.cursor.as_ref().and_then(|cursor| cursor.sequence);
    let is_behind = report.source.is_some_and(|source| at.is_none_or(|at| at < source));
    let services = [PauseTarget::Producer, PauseTarget::Consumer];
    if let Some(target) = services.iter().find(|target| is_behind && report.pauses.is_paused(target)) {
        return (format!("{target} is paused"), Some(format!("headwater resume {}", target.argument())));
    }
    match (report.source, at) {
        (None, None) => ("unknown: neither the source nor a cursor has it".to_owned(), None),
        (None, Some(_)) => ("applied; the source no longer has its events, or has no sequence".to_owned(), None),
        (Some(source), Some(at)) if at >= source => ("up to date".to_owned(), None),
        (Some(source), at) => {
            let behind = match at {
                Some(at) => format!("behind by {}", plural(source.abs_diff(at), "event")),
                None => "no event is applied".to_owned(),
            };
            let is_streaming = matches!(&report.checkpoint, Some(checkpoint) if matches!(checkpoint.phase, CheckpointPhase::Stream { .. }));
            match (is_streaming, report.active_messages) {
                (false, _) => (
                    format!("{behind}: the pipeline has not published the source yet"),
                    Some("headwater status".to_owned()),
                ),
                (true, Some(0)) => (
                    format!("{behind}, and no message is on Service Bus"),
                    Some("headwater audit --all --dry-run".to_owned()),
                ),
                (true, _) => (
                    format!("{behind}; its messages are on the way"),
                    Some(format!("headwater wait {name} --sequence {source}")),
                ),
            }
        }
    }
}

fn to_text(report: &AggregateReport, name: &str) -> String {
    let number = |sequence: Option<i64>| sequence.map_or("none".to_owned(), |sequence| sequence.to_string());
    let count = |count: Option<u64>| count.map_or("unknown".to_owned(), |count| count.to_string());
    let cursor = report.cursor.as_ref();
    let (state, command) = conclude(report, name);
    let mut text = format!(
        "aggregate     {}\nsession       {}\nsource        highest sequence {}\ncheckpoint    {}\nService Bus   {} active messages, {} dead letters (all sessions)\ncursor        {}\n",
        format_id(&report.aggregate),
        report.aggregate.session_id(),
        number(report.source),
        describe_checkpoint(report.checkpoint.as_ref()),
        count(report.active_messages),
        count(report.dead_letters),
        cursor.map_or("none".to_owned(), |cursor| format!("sequence {}", number(cursor.sequence))),
    );
    for model in &report.models {
        let parked = cursor.and_then(|cursor| cursor.parked_in(model));
        text.push_str(&format!("  {model}: {}\n", describe_model(parked, cursor)));
    }
    text.push_str(&format!("\n{state}\n"));
    if let Some(command) = command {
        text.push_str(&format!("next: {command}\n"));
    }
    text
}

fn describe_checkpoint(checkpoint: Option<&Checkpoint>) -> String {
    match checkpoint {
        None => "none: the pipeline has never published".to_owned(),
        Some(checkpoint) => {
            let saved = checkpoint.saved_at.map_or_else(String::new, |at| format!(", saved {}", format_time(at)));
            format!("{}, epoch {}{saved}", checkpoint.phase.name(), checkpoint.epoch)
        }
    }
}

fn describe_model(parked: Option<&ParkedEntry>, cursor: Option<&Cursor>) -> String {
    match (parked, cursor.and_then(|cursor| cursor.sequence)) {
        (Some(entry), _) => {
            let at = entry.sequence.map_or_else(String::new, |sequence| format!(" at sequence {sequence}"));
            format!(
                "parked{at} since {}: {}, {} waiting",
                format_time(entry.since),
                entry.reason,
                plural(entry.waiting(), "event")
            )
        }
        (None, Some(at)) => format!("applied up to sequence {at}"),
        (None, None) => "nothing applied".to_owned(),
    }
}

fn to_json(report: &AggregateReport) -> Json {
    let name = format_id(&report.aggregate);
    let (state, command) = conclude(report, &name);
    let cursor = report.cursor.as_ref();
    let model = |model: &String| {
        let parked = cursor.and_then(|cursor| cursor.parked_in(model));
        let parked = parked.map(|entry| {
            json!({
                "reason": entry.reason.as_str(), "detail": entry.detail, "sequence": entry.sequence,
                "since": format_time(entry.since), "waiting": entry.waiting(),
            })
        });
        (
            model.clone(),
            json!({ "applied": cursor.and_then(|cursor| cursor.sequence).filter(|_| parked.is_none()), "parked": parked }),
        )
    };
    let checkpoint = report.checkpoint.as_ref().map(|checkpoint| {
        json!({
            "phase": checkpoint.phase.name(), "epoch": checkpoint.epoch.get(), "term": checkpoint.term.get(),
            "saved": checkpoint.saved_at.map(format_time),
        })
    });
    json!({
        "aggregate": report.aggregate.value().clone().into_relaxed_extjson(),
        "session": report.aggregate.session_id(),
        "source": { "sequence": report.source },
        "checkpoint": checkpoint,
        "subscription": { "active_messages": report.active_messages, "dead_letters": report.dead_letters },
        "cursor": cursor.map(|cursor| json!({ "sequence": cursor.sequence, "first_sequence": cursor.first_sequence })),
        "read_models": report.models.iter().map(model).collect::<serde_json::Map<String, Json>>(),
        "paused": report.pauses.0.iter().filter(|pause| !pause.is_resuming).map(|pause| pause.target.argument()).collect::<Vec<_>>(),
        "state": state,
        "next": command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(source: Option<i64>, at: Option<i64>, active_messages: Option<u64>) -> AggregateReport {
        AggregateReport {
            aggregate: AggregateId::new("order-7".into()).unwrap(),
            source,
            checkpoint: None,
            active_messages,
            dead_letters: None,
            cursor: at.map(|at| Cursor { sequence: Some(at), ..Cursor::default() }),
            models: vec!["orders".to_owned()],
            pauses: Pauses::default(),
        }
    }

    #[test]
    fn the_conclusion_follows_from_the_sequences() {
        let conclude = |source, at| conclude(&report(source, at, Some(0)), "order-7").0;
        assert_eq!(conclude(Some(4), Some(4)), "up to date");
        assert_eq!(conclude(None, None), "unknown: neither the source nor a cursor has it");
        assert_eq!(conclude(Some(4), None), "no event is applied: the pipeline has not published the source yet");
        assert_eq!(conclude(Some(4), Some(1)), "behind by 3 events: the pipeline has not published the source yet");
    }

    #[test]
    fn a_number_is_read_at_a_dotted_path() {
        let event = RawDocumentBuf::try_from(&doc! { "head": { "version": 3_i64 } }).unwrap();
        assert_eq!(read_at(&event, "head.version"), Some(3));
        assert_eq!(read_at(&event, "head.other"), None);
    }
}
