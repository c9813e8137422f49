//! `headwater rejected`: lists, shows, resubmits and discards events that could not become messages.

use anyhow::bail;
use clap::Subcommand;
use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::Collection;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use mongodb::options::ReadConcern;
use pipeline::producer::ProducerDependencies;
use pipeline::publish::rejected::COLLECTION;
use pipeline::view::{ApplyOutcome, CursorReader, DeliveredEvent};
use serde_json::{Value as Json, json};

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::render_table;
use crate::command_applier::CommandApplier;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::coordination_store::{majority_collection, of_pipeline};
use crate::parked::{format_bson, format_time};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater rejected list
  headwater rejected show 9f2c… --body
  headwater rejected resubmit 9f2c…
  headwater rejected discard 9f2c… --yes";

/// List, show, resubmit or discard rejected events.
///
/// The producer rejects an event that cannot become a message: it has no valid aggregate id or sequence, is too large, or Service Bus refuses it. Everything else continues.
/// The event stays in the source and is kept in `rejected_events` of the coordination database. Correct the event in the source and `resubmit` it; or insert another event and
/// `discard` the rejected one, so that `status` does not count it any more. A discarded event is kept, marked as discarded.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RejectedCommand,
}

#[derive(Debug, Subcommand)]
enum RejectedCommand {
    /// List rejected events: message id, reason, collection, key and since when
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Also list discarded events
        #[arg(long)]
        all: bool,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one rejected event; its body only with `--body`
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Message id, as `rejected list` shows it
        message: String,
        /// Also print the body: the document of the source, with any personal data in it
        #[arg(long)]
        body: bool,
    },
    /// Apply the event as the source has it now, after it was corrected there
    ///
    /// For a source with a sequence. The cursor decides, as for any event: missing events before it are applied as well, and nothing is applied twice. Refused if later events of
    /// the aggregate are applied or parked already: then `read-model verify --repair` brings the read model in order.
    Resubmit {
        #[command(flatten)]
        config: ConfigArgs,
        /// Message id, as `rejected list` shows it
        message: String,
    },
    /// Mark a rejected event as discarded: it is kept, and not counted any more
    Discard {
        #[command(flatten)]
        config: ConfigArgs,
        /// Message id, as `rejected list` shows it
        message: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        RejectedCommand::List { config, all, limit, json } => list(&config.load()?, all, limit, json).await,
        RejectedCommand::Show { config, message, body } => show(&config.load()?, &message, body).await,
        RejectedCommand::Resubmit { config, message } => resubmit(&config.load()?, &message).await,
        RejectedCommand::Discard { config, message, confirm } => discard(&config.load()?, &message, &confirm).await,
    }
}

async fn open(config: &Config) -> anyhow::Result<Collection<Document>> {
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    Ok(majority_collection(&coordination, COLLECTION))
}

async fn list(config: &Config, all: bool, limit: i64, as_json: bool) -> anyhow::Result<()> {
    // Documents without a reason are further chunks of a large event.
    let mut filter = doc! { "$and": [of_pipeline(&config.pipeline), { "reason": { "$exists": true } }] };
    if !all {
        filter.insert("discardedAt", doc! { "$exists": false });
        filter.insert("resubmittedAt", doc! { "$exists": false });
    }
    let rejected = open(config).await?;
    let find = rejected.find(filter).projection(doc! { "document": 0 }).sort(doc! { "_id": 1 }).limit(limit);
    let found = async { find.await?.try_collect::<Vec<Document>>().await };
    let events = found.await.map_err(DriverError::from)?;
    if as_json {
        output::print_json(&events.iter().map(to_json).collect::<Json>())?;
    } else if events.is_empty() {
        output::print_line(format_args!("no rejected events in `{}`", config.pipeline))?;
    } else {
        let rows: Vec<_> = events.iter().map(to_row).collect();
        output::print(render_table(&["MESSAGE", "REASON", "COLLECTION", "KEY", "SINCE", "DETAIL"], &rows))?;
    }
    Ok(())
}

async fn find(config: &Config, message: &str) -> anyhow::Result<Document> {
    let id = doc! { "pipeline": &config.pipeline, "message": message };
    let found = open(config).await?.find_one(doc! { "_id": id }).await.map_err(DriverError::from)?;
    match found {
        Some(event) => Ok(event),
        None => bail!("no rejected event has this message id; `headwater rejected list` shows them"),
    }
}

async fn show(config: &Config, message: &str, body: bool) -> anyhow::Result<()> {
    let event = find(config, message).await?;
    let mut shown = to_json(&event);
    if body {
        shown["body"] = read_body(config, message, &event).await?;
    }
    output::print_json(&shown)?;
    Ok(())
}

/// The document, put together from its chunks.
async fn read_body(config: &Config, message: &str, event: &Document) -> anyhow::Result<Json> {
    let mut bytes = event.get_binary_generic("document").cloned().unwrap_or_default();
    for chunk in 1..event.get_i64("chunks").unwrap_or(1) {
        let id = doc! { "pipeline": &config.pipeline, "message": message, "chunk": chunk };
        let found = open(config).await?.find_one(doc! { "_id": id }).await.map_err(DriverError::from)?;
        bytes.extend(found.iter().filter_map(|chunk| chunk.get_binary_generic("document").ok()).flatten());
    }
    let body = Document::from_reader(&bytes[..]).ok();
    Ok(body.map_or(Json::Null, |body| Bson::Document(body).into_relaxed_extjson()))
}

async fn resubmit(config: &Config, message: &str) -> anyhow::Result<()> {
    let rejected = find(config, message).await?;
    if !config.source.is_sequenced() {
        bail!(
            "the source has no sequence, so the place of the event is unknown; insert another event, then discard this one"
        );
    }
    let dependencies = connect::producer_dependencies(config, COMMAND_TIMEOUT).await?;
    let event = read_event(config, &dependencies, &rejected).await?;
    let sequence = event.sequence;
    let applier = CommandApplier::start(config, &dependencies).await?;
    let cursors = CursorReader::new(&applier.views, &config.pipeline);
    let found = cursors.read([&event.aggregate].into_iter()).await?.remove(&cursors.identity(&event.aggregate));
    if found.is_some_and(|cursor| cursor.sequence >= sequence || !cursor.parked.is_empty()) {
        bail!(
            "later events of the aggregate are applied or parked already; run `headwater read-model verify NAME --all --repair`, then discard this one"
        );
    }
    let applied = applier.handle().session_applier().apply(vec![event]).await;
    applier.stop().await?;
    let done = match applied.outcomes.first() {
        Some(ApplyOutcome::Applied | ApplyOutcome::Duplicate) => "is applied",
        Some(ApplyOutcome::Parked | ApplyOutcome::DeadLetter) => "is parked: see `headwater parked list`",
        None => bail!("the event could not be applied ({:?}); try again", applied.end),
    };
    let update = doc! { "$currentDate": { "resubmittedAt": true } };
    let id = rejected.get("_id").cloned();
    open(config).await?.update_one(doc! { "_id": id }, update).await.map_err(DriverError::from)?;
    operator_log::record(config, "rejected resubmit", &format!("message {message}")).await;
    output::print_line(format_args!("resubmitted: the event {done}"))?;
    Ok(())
}

/// The event as the source has it now.
async fn read_event(
    config: &Config,
    dependencies: &ProducerDependencies,
    rejected: &Document,
) -> anyhow::Result<DeliveredEvent> {
    let namespace = rejected.get_str("namespace").unwrap_or_default();
    let known = config.source.namespaces().into_iter().find(|known| known.to_string() == namespace);
    let (Some(known), Some(key)) = (known, rejected.get("key")) else {
        bail!("its collection is not part of the source any more, or its key is unknown");
    };
    let events = dependencies.server.database(&known.database).collection::<RawDocumentBuf>(&known.collection);
    let find = events.find_one(doc! { "_id": { "$eq": key.clone() } }).read_concern(ReadConcern::majority());
    let Some(document) = find.await.map_err(DriverError::from)? else {
        bail!("the source does not have the event any more");
    };
    let event = DeliveredEvent::from_source(&config.source, Some(&known.collection), &document);
    event.map_err(|problem| anyhow::anyhow!("the event still {problem}; correct it in the source first"))
}

async fn discard(config: &Config, message: &str, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let event = find(config, message).await?;
    confirm.require(
        "marks the rejected event as discarded: its changes reach no read model, and `status` does not count it",
    )?;
    let update = doc! { "$currentDate": { "discardedAt": true } };
    let id = event.get("_id").cloned();
    open(config).await?.update_one(doc! { "_id": id }, update).await.map_err(DriverError::from)?;
    operator_log::record(config, "rejected discard", &format!("message {message}")).await;
    output::print_line("discarded: the event is kept in `rejected_events`, and not counted any more")?;
    Ok(())
}

fn to_row(event: &Document) -> [String; 6] {
    let text = |field| event.get_str(field).unwrap_or("-").to_owned();
    [
        message_of(event).to_owned(),
        text("reason"),
        text("namespace"),
        event.get("key").map_or("-".to_owned(), format_bson),
        event.get_datetime("at").map_or("-".to_owned(), |at| format_time(*at)),
        text("detail"),
    ]
}

fn to_json(event: &Document) -> Json {
    let time = |field| event.get_datetime(field).ok().map(|at: &DateTime| format_time(*at));
    json!({
        "message": message_of(event), "reason": event.get_str("reason").ok(), "detail": event.get_str("detail").ok(),
        "collection": event.get_str("namespace").ok(), "key": event.get("key").map(|key| key.clone().into_relaxed_extjson()),
        "term": event.get_i64("term").ok(), "since": time("at"), "discarded": time("discardedAt"),
        "resubmitted": time("resubmittedAt"),
    })
}

fn message_of(event: &Document) -> &str {
    event.get_document("_id").and_then(|id| id.get_str("message")).unwrap_or("-")
}
