//! `headwater read-model preview`: what the documents of an aggregate would be under the declaration in the file.

use std::collections::HashSet;

use anyhow::bail;
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::event::AggregateId;
use pipeline::verify::{Difference, VerifyDependencies, compare};
use pipeline::view::{FoldError, FoldScratch, Identity, Projection, SnapshotReader};
use serde_json::{Value as Json, json};

use super::super::shared_args::ConfigArgs;
use super::super::table::plural;
use super::verify::{find_model, open_dependencies};
use crate::aggregate_argument;
use crate::exit::ExitReason;
use crate::output;
use crate::parked::format_bson;

const EXAMPLES: &str = "\
Examples:
  headwater read-model preview order_summary --aggregate order-7
  headwater read-model preview order_summary --aggregate order-7 --config new.yaml --json";

/// Show what the documents of an aggregate would be under the declaration in the file, beside what is stored now
///
/// Folds all events of the aggregate that the source has; the server evaluates the declaration in a scratch collection. Changes nothing. Prints documents, with any
/// personal data in them. If several aggregates write a document, the preview shows only what this one writes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Name of the read model
    name: String,

    /// Aggregate id
    #[arg(long, value_name = "ID")]
    aggregate: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let dependencies = open_dependencies(&config, find_model(&config, &args.name)?).await?;
    let scratch = FoldScratch::create(&dependencies.views).await?;
    let preview = fold_first(&scratch, &dependencies, &aggregate_argument::candidates(&args.aggregate)).await;
    scratch.close().await;
    let Some((events, folded)) = preview? else {
        bail!(ExitReason::Failed.with_message("the source has no event of this aggregate"));
    };
    let stored = read_stored(&dependencies, &folded, &args.aggregate).await?;
    show(&args, events, &folded, &stored)
}

/// Of the ids that the argument may mean, the first one that the source has: how many events, and their documents.
async fn fold_first(
    scratch: &FoldScratch,
    dependencies: &VerifyDependencies,
    candidates: &[AggregateId],
) -> anyhow::Result<Option<(u64, Vec<RawDocumentBuf>)>> {
    for aggregate in candidates {
        let (events, folded) = fold(scratch, dependencies, aggregate).await?;
        if events > 0 {
            return Ok(Some((events, folded)));
        }
    }
    Ok(None)
}

async fn fold(
    scratch: &FoldScratch,
    dependencies: &VerifyDependencies,
    aggregate: &AggregateId,
) -> anyhow::Result<(u64, Vec<RawDocumentBuf>)> {
    let VerifyDependencies { pipeline, views, model, pages, token, .. } = dependencies;
    let reader = SnapshotReader::new(views, pipeline, model.name());
    let snapshot = reader.read(std::slice::from_ref(aggregate)).await?.pop();
    let discarded = snapshot.map(|snapshot| snapshot.discarded).unwrap_or_default();
    let (mut fold, mut events, mut from) = (scratch.fold(model), 0, i64::MIN);
    loop {
        let page = pages.read(aggregate, from, i64::MAX, token.as_ref()).await?;
        events += page.sequences.len() as u64;
        for event in page.events.iter().filter(|event| !discarded.contains(&Identity::of(&event.key))) {
            fold.add(event).await.map_err(explain)?;
        }
        match page.next() {
            Some(next) if next < i64::MAX => from = next,
            _ => break,
        }
    }
    Ok((events, fold.finish().await.map_err(explain)?))
}

fn explain(error: FoldError) -> anyhow::Error {
    match error {
        FoldError::Refused(event) => {
            let sequence = event.sequence.map_or_else(String::new, |sequence| format!(" with sequence {sequence}"));
            let kind = event.event_type.as_deref().unwrap_or("without a type");
            let problem = format!("the event{sequence} ({kind}) would be parked: {}", event.detail);
            ExitReason::Failed.with_message(problem).into()
        }
        FoldError::Store(error) => error.into(),
    }
}

/// The documents that are stored under the same ids, or under the id of the aggregate.
async fn read_stored(
    dependencies: &VerifyDependencies,
    folded: &[RawDocumentBuf],
    aggregate: &str,
) -> anyhow::Result<Vec<RawDocumentBuf>> {
    let mut ids: Vec<Bson> = folded.iter().filter_map(id_of).collect();
    ids.extend(aggregate_argument::candidates(aggregate).iter().map(|id| id.value().clone()));
    let collection = dependencies.views.collection::<RawDocumentBuf>(dependencies.model.name());
    let found = async { collection.find(doc! { "_id": { "$in": ids } }).await?.try_collect().await };
    Ok(found.await.map_err(mongo_error::DriverError::from)?)
}

fn show(args: &Args, events: u64, folded: &[RawDocumentBuf], stored: &[RawDocumentBuf]) -> anyhow::Result<()> {
    let pairs = pair_by_id(folded, stored);
    if args.json {
        let shown = pairs.iter().map(|(id, folded, stored)| {
            json!({
                "id": id.clone().into_relaxed_extjson(), "preview": to_json(*folded), "stored": to_json(*stored),
                "differences": compare(folded.map(|it| &**it), stored.map(|it| &**it)).iter().map(difference_json).collect::<Vec<_>>(),
            })
        });
        let documents: Vec<_> = shown.collect();
        output::print_json(&json!({ "model": args.name, "events": events, "documents": documents }))?;
        return Ok(());
    }
    output::print_line(format_args!(
        "{} of the aggregate give {}",
        plural(events, "event"),
        plural(folded.len() as u64, "document")
    ))?;
    for (id, folded, stored) in &pairs {
        output::print_line(format_args!("\n{}", format_bson(id)))?;
        output::print_line(format_args!("preview  {}", to_json(*folded)))?;
        output::print_line(format_args!("stored   {}", to_json(*stored)))?;
        for difference in compare(folded.map(|it| &**it), stored.map(|it| &**it)) {
            let place = if difference.path.is_empty() { String::new() } else { format!("{}: ", difference.path) };
            output::print_line(format_args!("  {place}{}", difference.kind))?;
        }
    }
    Ok(())
}

type DocumentPair<'a> = (Bson, Option<&'a RawDocumentBuf>, Option<&'a RawDocumentBuf>);

fn pair_by_id<'a>(folded: &'a [RawDocumentBuf], stored: &'a [RawDocumentBuf]) -> Vec<DocumentPair<'a>> {
    let same = |id: &Bson, document: &&RawDocumentBuf| {
        id_of(document).is_some_and(|other| Identity::of(&other) == Identity::of(id))
    };
    let mut known = HashSet::new();
    let ids = folded.iter().chain(stored).filter_map(id_of).filter(|id| known.insert(Identity::of(id)));
    let ids: Vec<Bson> = ids.collect();
    let pair = |id: Bson| {
        let (folded, stored) = (folded.iter().find(|it| same(&id, it)), stored.iter().find(|it| same(&id, it)));
        (id, folded, stored)
    };
    ids.into_iter().map(pair).collect()
}

fn id_of(document: &RawDocumentBuf) -> Option<Bson> {
    Bson::try_from(document.get("_id").ok().flatten()?).ok()
}

fn to_json(document: Option<&RawDocumentBuf>) -> Json {
    let document = document.and_then(|document| Document::try_from(&**document).ok());
    document.map_or(Json::Null, |document| Bson::Document(document).into_relaxed_extjson())
}

fn difference_json(difference: &Difference) -> Json {
    json!({ "path": difference.path, "kind": difference.kind.as_str() })
}
