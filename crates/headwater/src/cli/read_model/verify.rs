//! `headwater read-model verify`: compares a read model with a fold of the source.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mongodb::bson::Bson;
use pipeline::checkpoint::{CheckpointPhase, CheckpointStore, MongoCheckpointStore};
use pipeline::event::ResumeToken;
use pipeline::generation::GenerationStore;
use pipeline::source_walk::EventPages;
use pipeline::verify::{
    Comparability, Difference, Finding, SkipReason, Verifier, VerifyDependencies, VerifyScope, VerifySink,
    VerifyTotals, comparability_of,
};
use pipeline::view::{FIRST_GENERATION, Projection, ReadModel, ReadModelDeclaration, SourceEventReader};
use serde_json::{Value as Json, json};

use super::super::shared_args::ConfigArgs;
use super::super::table::plural;
use crate::aggregate_argument;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::parked::format_bson;
use crate::signal::ShutdownSignal;
use crate::verification::{DifferenceCounts, VerificationStore};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater read-model verify order_summary --sample 500
  headwater read-model verify order_summary --all
  headwater read-model verify order_summary --aggregate order-7 --show-values
  headwater read-model verify order_summary --all --repair";

const DEFAULT_SAMPLE: u32 = 1_000;

/// Compare the documents of a read model with a fold of the source, while events keep flowing
///
/// Reads documents and cursors from one snapshot of the read-model database, and folds the events of the source up to each cursor with the declaration in the
/// configuration file: the server itself evaluates it, in a scratch collection. Names what differs, field by field. Parked aggregates are skipped, discarded
/// events stay discarded, and an aggregate whose events the source no longer has is skipped. With `--repair`, a document that differs is replaced by what the
/// fold gives, in a transaction that also writes the cursor, so no event is lost or applied twice.
///
/// A read model with another `key` than the aggregate is compared as a whole, if its clauses do not depend on the order of events: all events are folded. It is not repaired.
///
/// Exits with 0 if everything is equal or repaired, and with 1 if something differs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Name of the read model
    name: String,

    /// Compare so many aggregates at random; the default is 1000
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "aggregate"])]
    sample: Option<u32>,

    /// Compare all aggregates, and look for documents that belong to none
    #[arg(long)]
    all: bool,

    /// Compare only this aggregate; can be repeated
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    aggregate: Vec<String>,

    /// Replace what differs by what the fold gives
    #[arg(long)]
    repair: bool,

    /// Also print expected and stored values, with any personal data in them
    #[arg(long)]
    show_values: bool,

    /// Maximum number of documents to print; all are counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Print JSON when it is done
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let (model, as_whole) = serving_model(&config, &args).await?;
    let verifier = Verifier::open(open_dependencies(&config, model).await?).await?;
    let mut stop = ShutdownSignal::new()?;
    let mut printer = FindingPrinter::new(&args);
    let verified = tokio::select! {
        totals = verify(&verifier, &args, as_whole, &mut printer) => Some(totals),
        // cancel-safe: a repair is one transaction.
        () = stop.recv() => None,
    };
    verifier.close().await;
    printer.end();
    match verified {
        Some(totals) => {
            let totals = totals?;
            record_result(&config, &args, &totals, &printer).await;
            if args.repair && totals.repaired > 0 {
                let detail = format!("{} of `{}`", plural(totals.repaired, "document"), args.name);
                operator_log::record(&config, "read-model verify --repair", &detail).await;
            }
            report(&totals, printer, &args)
        }
        None => bail!(ExitReason::Interrupted.with_message("stopped")),
    }
}

/// The comparison is done: if its result cannot be stored, that is only logged.
async fn record_result(config: &Config, args: &Args, totals: &VerifyTotals, printer: &FindingPrinter) {
    let scope = match (args.all, args.aggregate.len()) {
        (true, _) => "all aggregates".to_owned(),
        (false, 0) => format!("a sample of {}", args.sample.unwrap_or(DEFAULT_SAMPLE)),
        (false, named) => plural(named as u64, "named aggregate"),
    };
    let recorded = async {
        let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
        let store = VerificationStore::new(&coordination, &config.pipeline);
        store.record(&args.name, &operator_log::who(), &scope, totals, &printer.counts).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        tracing::warn!(error = format!("{error:#}"), "failed to record the result in `verifications`");
    }
}

async fn verify(
    verifier: &Verifier,
    args: &Args,
    as_whole: bool,
    printer: &mut FindingPrinter,
) -> anyhow::Result<VerifyTotals> {
    if as_whole {
        let not_comparable = || ExitReason::Failed.with_message(format!("`{}` is not comparable now", args.name));
        return verifier.run_whole(printer).await.with_context(not_comparable);
    }
    let scope = match (args.all, &args.aggregate[..]) {
        (true, _) => VerifyScope::All,
        (false, []) => VerifyScope::Sample(args.sample.unwrap_or(DEFAULT_SAMPLE)),
        (false, names) => {
            VerifyScope::Aggregates(names.iter().flat_map(|name| aggregate_argument::candidates(name)).collect())
        }
    };
    Ok(verifier.run(&scope, args.repair, printer).await?)
}

/// The read model of the configuration with this name.
pub(super) fn find_model(config: &Config, name: &str) -> anyhow::Result<Arc<ReadModel>> {
    let found = config.read_models.models.iter().find(|model| model.name() == name);
    let unknown = || {
        let names: Vec<_> = config.read_models.models.iter().map(|model| format!("`{}`", model.name())).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        ExitReason::Usage
            .with_message(format!("no read model has the name `{name}`; the configuration declares {known}"))
    };
    Ok(Arc::clone(found.ok_or_else(unknown)?))
}

/// The version that pods apply; before the first pod, that of the configuration. And whether it can only be compared as a whole.
async fn serving_model(config: &Config, args: &Args) -> anyhow::Result<(Arc<ReadModel>, bool)> {
    let name = &args.name;
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    let generation = GenerationStore::new(&coordination, &config.pipeline).load().await?;
    let Some(version) = generation.as_ref().and_then(|generation| generation.serving.get(name)) else {
        let model = find_model(config, name)?;
        let declaration = config.read_models.declarations.get(name);
        let as_whole = declaration.map(|declaration| check_comparability(config, args, declaration)).transpose()?;
        return Ok((model, as_whole.unwrap_or(false)));
    };
    let as_whole = check_comparability(config, args, &version.declaration)?;
    // A read model that lacks events differs, and that is no news.
    if let Some((reason, _)) = version.incomplete {
        print_error_line(format_args!("`{name}` is recorded as incomplete: {reason}; differences are expected"));
    }
    Ok((Arc::new(version.compile(name)?), as_whole))
}

/// Whether it can only be compared as a whole.
fn check_comparability(config: &Config, args: &Args, declaration: &ReadModelDeclaration) -> anyhow::Result<bool> {
    let name = &args.name;
    match comparability_of(declaration, &config.source) {
        Comparability::ByAggregate => Ok(false),
        Comparability::AsWhole if args.repair => bail!(ExitReason::Usage.with_message(format!(
            "several aggregates write a document of `{name}`, so one document cannot be repaired: build the read model anew"
        ))),
        Comparability::AsWhole if args.sample.is_some() || !args.aggregate.is_empty() => {
            bail!(ExitReason::Usage.with_message(format!(
                "several aggregates write a document of `{name}`: it can only be compared as a whole, with `--all`"
            )))
        }
        Comparability::AsWhole => Ok(true),
        Comparability::NotComparable(reason) => {
            bail!(ExitReason::Failed.with_message(format!("`{name}` is not comparable: {reason}")))
        }
    }
}

/// The databases that a fold of this read model needs.
pub(crate) async fn open_dependencies(config: &Config, model: Arc<ReadModel>) -> anyhow::Result<VerifyDependencies> {
    let views = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
    let (pages, token) = open_source(config).await?;
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    let generation = GenerationStore::new(&coordination, &config.pipeline).load().await?;
    Ok(VerifyDependencies {
        generation: generation.map_or(FIRST_GENERATION, |generation| generation.number),
        pipeline: config.pipeline.clone(),
        views: views.database(&config.read_models.database),
        model,
        pages,
        first_sequence: config.consumer.view.first_sequence,
        token,
    })
}

async fn open_source(config: &Config) -> anyhow::Result<(EventPages, Option<ResumeToken>)> {
    let client = connect::mongo_client(&config.source_uri, "source.uri", COMMAND_TIMEOUT).await?;
    let filter = pipeline::capture::SourceFilter::new(&client, &config.source, &config.producer.capture);
    let Some(history) = SourceEventReader::new(&client.database(&config.source.database), &config.source) else {
        bail!(ExitReason::Failed.with_message("the source has no sequence (`source.sequence`)"));
    };
    let token = match &filter {
        None => None,
        Some(_) => {
            let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
            let store = MongoCheckpointStore::new(&coordination, &config.pipeline, config.source.fingerprint());
            store.load().await?.and_then(|checkpoint| match checkpoint.phase {
                CheckpointPhase::Stream { token } | CheckpointPhase::Snapshot { start: token, .. } => Some(token),
                CheckpointPhase::Unstarted => None,
            })
        }
    };
    Ok((EventPages::new(history, filter), token))
}

fn report(totals: &VerifyTotals, printer: FindingPrinter, args: &Args) -> anyhow::Result<()> {
    if args.json {
        let skipped: serde_json::Map<String, Json> =
            totals.skipped.iter().map(|(reason, count)| (reason.code().to_owned(), json!(count))).collect();
        output::print_json(&json!({
            "model": args.name, "compared": totals.compared, "different": totals.different,
            "repaired": totals.repaired, "skipped": skipped, "findings": printer.findings,
        }))?;
    } else {
        if totals.different > printer.shown as u64 {
            output::print_line(format_args!("… and {} more", totals.different - printer.shown as u64))?;
        }
        output::print_line(summary(totals))?;
    }
    match totals.unrepaired() {
        0 => Ok(()),
        count if args.repair => bail!(
            ExitReason::Failed
                .with_message(format!("{} could not be repaired; run the command again", plural(count, "document")))
        ),
        count => bail!(ExitReason::Failed.with_message(format!(
            "{}; `--repair` replaces what differs by what the source says",
            if count == 1 { "1 document differs".to_owned() } else { format!("{count} documents differ") }
        ))),
    }
}

fn summary(totals: &VerifyTotals) -> String {
    let reasons = SkipReason::ALL.iter().filter_map(|reason| Some((reason, totals.skipped.get(reason)?)));
    let reasons: Vec<_> = reasons.map(|(reason, count)| format!("{count} {reason}")).collect();
    let skipped = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    format!(
        "{} compared, {} skipped{skipped}, {} different, {} repaired",
        plural(totals.compared, "document"),
        totals.skipped(),
        totals.different,
        totals.repaired
    )
}

/// Prints findings as they come, and the progress on stderr.
struct FindingPrinter {
    as_json: bool,
    show_values: bool,
    limit: usize,
    shown: usize,
    findings: Vec<Json>,
    counts: DifferenceCounts,
    is_terminal: bool,
    progress_at: Instant,
    has_progress: bool,
}

const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(5);

impl FindingPrinter {
    fn new(args: &Args) -> Self {
        Self {
            as_json: args.json,
            show_values: args.show_values,
            limit: args.limit,
            shown: 0,
            findings: vec![],
            counts: DifferenceCounts::default(),
            is_terminal: std::io::stderr().is_terminal(),
            progress_at: Instant::now(),
            has_progress: false,
        }
    }

    fn end(&self) {
        if self.is_terminal && self.has_progress {
            print_error_line("");
        }
    }
}

impl VerifySink for FindingPrinter {
    fn finding(&mut self, finding: &Finding) {
        self.counts.add(finding);
        if self.shown >= self.limit {
            return;
        }
        self.shown += 1;
        if self.as_json {
            self.findings.push(to_json(finding, self.show_values));
        } else {
            output::try_print(to_text(finding, self.show_values));
        }
    }

    fn progress(&mut self, totals: &VerifyTotals) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if self.progress_at.elapsed() < interval {
            return;
        }
        (self.progress_at, self.has_progress) = (Instant::now(), true);
        let line = format!("{} compared, {} different", plural(totals.compared, "document"), totals.different);
        let line = if self.is_terminal { format!("\r{line}\x1b[K") } else { format!("{line}\n") };
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn to_text(finding: &Finding, show_values: bool) -> String {
    let upto = finding.sequence.map_or_else(String::new, |sequence| format!(", up to sequence {sequence}"));
    let repaired = if finding.repaired { ", repaired" } else { "" };
    let detail = finding.detail.as_ref().map_or_else(String::new, |detail| format!(": {detail}"));
    let mut text = format!("{}{upto}{repaired}{detail}\n", format_bson(&finding.id));
    for difference in &finding.differences {
        let place = if difference.path.is_empty() { String::new() } else { format!("{}: ", difference.path) };
        text.push_str(&format!("  {place}{}{}\n", difference.kind, values_text(difference, show_values)));
    }
    text
}

fn values_text(difference: &Difference, show_values: bool) -> String {
    if !show_values {
        return String::new();
    }
    let shown =
        |value: &Option<Bson>| value.as_ref().map_or("nothing".to_owned(), |value| to_extended_json(value).to_string());
    format!(" (expected {}, found {})", shown(&difference.expected), shown(&difference.stored))
}

fn to_json(finding: &Finding, show_values: bool) -> Json {
    let difference = |difference: &Difference| {
        let mut shown = json!({ "path": difference.path, "kind": difference.kind.as_str() });
        if show_values {
            shown["expected"] = difference.expected.as_ref().map_or(Json::Null, to_extended_json);
            shown["stored"] = difference.stored.as_ref().map_or(Json::Null, to_extended_json);
        }
        shown
    };
    json!({
        "id": to_extended_json(&finding.id),
        "sequence": finding.sequence,
        "repaired": finding.repaired,
        "detail": finding.detail,
        "differences": finding.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}

fn to_extended_json(value: &Bson) -> Json {
    value.clone().into_relaxed_extjson()
}

/// Stderr may be closed.
fn print_error_line(line: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use pipeline::verify::DifferenceKind;

    use super::*;

    fn finding() -> Finding {
        let difference =
            |path: &str, kind, expected, stored| Difference { path: path.to_owned(), kind, expected, stored };
        Finding {
            id: "order-7".into(),
            sequence: Some(12),
            differences: vec![
                difference("total", DifferenceKind::DifferentValue, Some(1.into()), Some(2.into())),
                difference("items.2", DifferenceKind::ExtraField, None, Some("rope".into())),
            ],
            detail: None,
            repaired: true,
        }
    }

    #[test]
    fn a_finding_shows_values_only_on_request() {
        let text = to_text(&finding(), false);
        assert_eq!(text, "order-7, up to sequence 12, repaired\n  total: different value\n  items.2: extra\n");
        assert!(!to_json(&finding(), false).to_string().contains("rope"));
        let text = to_text(&finding(), true);
        assert!(text.contains("total: different value (expected 1, found 2)"), "{text}");
        assert!(text.contains("items.2: extra (expected nothing, found \"rope\")"), "{text}");
    }

    #[test]
    fn the_summary_counts_what_was_skipped() {
        let skipped = [(SkipReason::Parked, 2), (SkipReason::Regressed, 1)].into();
        let totals = VerifyTotals { compared: 10, different: 3, repaired: 0, skipped };
        let expected = "10 documents compared, 3 skipped (2 parked, 1 changed in the source), 3 different, 0 repaired";
        assert_eq!(summary(&totals), expected);
    }
}
