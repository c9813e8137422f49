//! `headwater parked`: aggregates that wait behind an event that cannot be applied, and the operator's hand on them.

use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use mongodb::bson::Bson;
use pipeline::event::{AggregateId, Namespace};
use pipeline::source::Kind;
use pipeline::view::{Body, Delivered, Desk, Discard, Error, History, Projection, Waiting};
use serde_json::{Value as Json, json};

use super::run::ConfigArguments;
use super::table::table;
use crate::config::Config;
use crate::exit::Exit;

/// Look at aggregates that wait behind an event that cannot be applied, and let them go on.
///
/// An event that cannot be applied does not stop the others: its aggregate is parked in that one read model, and its later events queue
/// behind it, in order. Mend the cause (a read model's declaration, an index, the document it meets), then `retry`. Only if the events
/// are not wanted in that read model, `discard` them. New events queue behind meanwhile; pods need not be stopped.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what is parked: which aggregate, in which read model, why and since when.
    List {
        #[command(flatten)]
        config: ConfigArguments,
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
        config: ConfigArguments,
        #[command(flatten)]
        which: Which,
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
        config: ConfigArguments,
        #[command(flatten)]
        which: Which,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Leave events out of the read model for good. They are kept, marked as discarded, and never applied.
    ///
    /// Without `--all` only the first, behind which the others wait; `retry` then applies the rest.
    Discard {
        #[command(flatten)]
        config: ConfigArguments,
        #[command(flatten)]
        which: Which,
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

/// Which of those that wait.
#[derive(Debug, Args)]
struct Which {
    /// The aggregate, as `parked list` shows it.
    #[arg(value_name = "AGGREGATE")]
    aggregate: String,
    /// The read model; may be left out where the aggregate waits in one only.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

/// More are parked than anybody looks through one by one.
const MOST: i64 = 100_000;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::List { config, limit, json } => list(&Office::open(&config).await?, limit, json).await,
        Command::Show { config, which, limit, bodies, json } => {
            show(&Office::open(&config).await?, &which, limit, bodies, json).await
        }
        Command::Retry { config, which, json } => retry(&Office::open(&config).await?, &which, json).await,
        Command::Discard { config, which, all, yes, json } => {
            discard(&Office::open(&config).await?, &which, all, yes, json).await
        }
    }
}

/// The desk of one pipeline, and how its source names things.
struct Office {
    desk: Desk,
    config: Config,
}

impl Office {
    async fn open(arguments: &ConfigArguments) -> anyhow::Result<Self> {
        let config = arguments.load()?;
        let places = crate::run::places(&config, None).await?;
        let views = crate::run::client(&config.read_models.uri, "read_models.uri", None).await?;
        let models = config.read_models.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>);
        let history = History::new(&places.server.database(&config.source.database), &config.source);
        let by_collection = config.source.kind == Kind::Documents;
        let database = views.database(&config.read_models.database);
        Ok(Self { desk: Desk::new(database, &config.pipeline, by_collection, models.collect(), history), config })
    }

    fn namespace(&self, waiting: &Waiting) -> Namespace {
        let first = || self.config.source.namespaces().into_iter().next().expect("a source names a collection");
        waiting.collection.as_ref().map_or_else(first, |name| Namespace::new(&self.config.source.database, name))
    }

    async fn find(&self, which: &Which) -> anyhow::Result<Waiting> {
        let list = self.desk.list(MOST).await?;
        let named = |waiting: &Waiting| {
            let model = which.model.as_ref().is_none_or(|model| *model == waiting.model);
            model && (shown(&waiting.aggregate) == which.aggregate || typed(&waiting.aggregate) == which.aggregate)
        };
        let mut found: Vec<_> = list.into_iter().filter(named).collect();
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => bail!("no such aggregate is parked here; `headwater parked list` shows those that are"),
            (Some(one), false) if found.iter().all(|other| typed(&other.aggregate) == typed(&one.aggregate)) => {
                let model = &one.model;
                bail!(Exit::Usage.because(format!(
                    "it waits in several read models: say which, with `--model {model}`, for example"
                )))
            }
            (Some(one), false) => {
                let one = typed(&one.aggregate);
                bail!(
                    Exit::Usage
                        .because(format!("several aggregates look like that: say which by its type, such as `{one}`"))
                )
            }
        }
    }
}

async fn list(office: &Office, limit: i64, as_json: bool) -> anyhow::Result<()> {
    let list = office.desk.list(limit).await?;
    if as_json {
        println!("{:#}", Json::Array(list.iter().map(waiting_json).collect()));
        return Ok(());
    }
    if list.is_empty() {
        println!("nothing is parked in `{}`", office.config.pipeline);
        return Ok(());
    }
    let rows: Vec<_> = list.iter().map(row).collect();
    print!("{}", table(["MODEL", "AGGREGATE", "REASON", "AT", "WAITING", "SINCE", "DETAIL"], &rows));
    println!("\nMend the cause, then: headwater parked retry AGGREGATE --model MODEL");
    Ok(())
}

fn row(waiting: &Waiting) -> [String; 7] {
    let parked = &waiting.parked;
    [
        waiting.model.clone(),
        shown(&waiting.aggregate),
        parked.reason.to_string(),
        parked.sequence.map_or("-".to_owned(), |sequence| sequence.to_string()),
        parked.waiting().to_string(),
        time(parked.since),
        parked.detail.clone(),
    ]
}

fn waiting_json(waiting: &Waiting) -> Json {
    let parked = &waiting.parked;
    json!({
        "model": waiting.model,
        "aggregate": extended(waiting.aggregate.value()),
        "collection": waiting.collection,
        "reason": parked.reason.as_str(),
        "detail": parked.detail,
        "event": extended(&parked.event_id),
        "sequence": parked.sequence,
        "waiting": parked.waiting(),
        "since": time(parked.since),
    })
}

async fn show(office: &Office, which: &Which, limit: i64, bodies: bool, as_json: bool) -> anyhow::Result<()> {
    let waiting = office.find(which).await?;
    let events = office.desk.show(&waiting.aggregate, &office.namespace(&waiting), &waiting.model, limit).await?;
    if as_json {
        let mut shown = waiting_json(&waiting);
        shown["events"] = Json::Array(events.iter().map(|event| event_json(event, bodies)).collect());
        println!("{shown:#}");
        return Ok(());
    }
    println!("read model  {}", waiting.model);
    println!("aggregate   {}", shown(&waiting.aggregate));
    println!("reason      {} ({})", waiting.parked.reason, waiting.parked.detail);
    println!("since       {}", time(waiting.parked.since));
    println!("waiting     {}\n", waiting.parked.waiting());
    let rows: Vec<_> = events.iter().map(event_row).collect();
    print!("{}", table(["SEQUENCE", "TYPE", "EVENT", "TERM", "COMMITTED"], &rows));
    for event in events.iter().filter(|_| bodies) {
        println!("\n{:#}", event_json(event, true));
    }
    Ok(())
}

fn event_row(event: &Delivered) -> [String; 5] {
    [
        event.sequence.map_or("-".to_owned(), |sequence| sequence.to_string()),
        event.event_type.clone().unwrap_or_else(|| "-".to_owned()),
        text(&event.key),
        event.term.to_string(),
        event.committed.map_or("-".to_owned(), time),
    ]
}

fn event_json(event: &Delivered, bodies: bool) -> Json {
    let mut shown = json!({
        "event": extended(&event.key),
        "type": event.event_type,
        "sequence": event.sequence,
        "operation": event.operation.as_str(),
        "term": event.term.get(),
        "committed": event.committed.map(time),
    });
    if bodies {
        shown["body"] = match &event.body {
            Body::Document(document) => {
                mongodb::bson::Document::try_from(&**document).map_or(Json::Null, |document| extended(&document.into()))
            }
            Body::Oversize(id) => json!({ "kept_apart": id }),
            Body::Marker(id) => json!({ "rejected": id }),
        };
    }
    shown
}

async fn retry(office: &Office, which: &Which, as_json: bool) -> anyhow::Result<()> {
    let waiting = office.find(which).await?;
    let Waiting { aggregate, model, .. } = &waiting;
    match office.desk.retry(aggregate, &office.namespace(&waiting), model).await {
        Ok(events) if as_json => {
            println!("{:#}", json!({ "model": model, "aggregate": extended(aggregate.value()), "applied": events }));
        }
        Ok(events) => println!("{events} events were applied to `{model}`; {} goes on", shown(aggregate)),
        Err(error @ Error::NoModel(_)) => {
            return Err(error).context("this configuration does not declare it; retry with the one that pods run with");
        }
        Err(error @ Error::StillRefused { .. }) => {
            return Err(error).context("it stays parked; mend the cause and retry, or `parked discard` the event");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn discard(office: &Office, which: &Which, all: bool, yes: bool, as_json: bool) -> anyhow::Result<()> {
    let waiting = office.find(which).await?;
    let Waiting { aggregate, model, parked, .. } = &waiting;
    let name = shown(aggregate);
    if !yes {
        let events = if all { format!("all {} events that wait", parked.waiting()) } else { "the first event".into() };
        bail!(Exit::Usage.because(format!(
            "this leaves {events} of {name} out of `{model}` for good: the read model will lack what they say; if that is \
             meant, say --yes"
        )));
    }
    let what = if all { Discard::All } else { Discard::First };
    let events = office.desk.discard(aggregate, &office.namespace(&waiting), model, what).await?;
    let left = parked.waiting().saturating_sub(events);
    if as_json {
        let aggregate = extended(aggregate.value());
        println!("{:#}", json!({ "model": model, "aggregate": aggregate, "discarded": events, "waiting": left }));
        return Ok(());
    }
    println!("{events} events of {name} were discarded from `{model}`; they are kept in `parked_events`");
    if left > 0 {
        println!("{left} more wait; apply them with: headwater parked retry {name} --model {model}");
    }
    Ok(())
}

/// As people write it.
fn shown(aggregate: &AggregateId) -> String {
    text(aggregate.value())
}

fn text(value: &Bson) -> String {
    match value {
        Bson::String(text) => text.clone(),
        Bson::ObjectId(id) => id.to_hex(),
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        other => extended(other).to_string(),
    }
}

/// As MongoDB tells its types apart.
fn typed(aggregate: &AggregateId) -> String {
    aggregate.value().clone().into_canonical_extjson().to_string()
}

fn extended(value: &Bson) -> Json {
    value.clone().into_relaxed_extjson()
}

fn time(at: mongodb::bson::DateTime) -> String {
    at.try_to_rfc3339_string().unwrap_or_else(|_| "?".to_owned())
}
