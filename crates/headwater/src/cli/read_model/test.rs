//! `headwater read-model test`: given events, expected documents.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use mongod::{Environment, MongoSource, ParentDeathSignal, ProgressStyle, SingleNodeReplicaSet};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, RawDocumentBuf};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::verify::{Difference, compare_values};
use pipeline::view::{DeliveredEvent, FoldError, FoldScratch, Projection, ReadModel};

use super::super::shared_args::ConfigArgs;
use super::super::table::plural;
use super::junit;
use super::test_file::{self, TestCase};
use crate::config::Config;
use crate::exit::ExitReason;
use crate::output;
use crate::parked::format_bson;

const EXAMPLES: &str = "\
Examples:
  headwater read-model test order_summary.test.yaml
  headwater read-model test tests/*.yaml --junit report.xml

A test file:
  tests:
    - name: a placed order
      events:
        - { aggregateId: order-1, version: 1, type: OrderPlaced, payload: { customer: ada } }
      expect:
        order_summary:
          - { _id: order-1, status: placed, customer: ada }";

/// mongod flushes and ends in well under a second; a busy disk gets more.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Test read models: given these events, expect these documents
///
/// Each test gives events as the source stores them, in order, and the documents of one or more read models of the configuration after them. A real mongod
/// evaluates the declarations: `--mongodb-uri`, or one that is found or downloaded and started for this command, as `headwater dev` does. Nothing else runs, and the
/// databases of the configuration are not used. Numbers are compared by value, and the order of fields does not count. The capture filter is not applied.
///
/// Exits with 0 if all tests pass, and with 1 if one fails.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Test files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Also write the results to this file, in the JUnit format of CI systems
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Use this MongoDB (a replica set) instead of starting one
    #[arg(long, value_name = "URI", env = "HEADWATER_MONGODB_URI", hide_env_values = true)]
    mongodb_uri: Option<String>,
}

/// The result of one test.
pub(super) struct TestResult {
    pub(super) file: String,
    pub(super) name: String,
    /// Empty: it passed.
    pub(super) failures: Vec<String>,
    pub(super) seconds: f64,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    if config.source.kind == SourceKind::Documents {
        bail!(ExitReason::Failed.with_message("`read-model test` needs a source of events; this one has documents"));
    }
    let mut cases = vec![];
    for file in &args.files {
        cases.extend(load(file, &config)?.into_iter().map(|case| (file.display().to_string(), case)));
    }
    let mongo = TestMongo::start(args.mongodb_uri.clone()).await?;
    let results = run_cases(&mongo, &config, cases).await;
    mongo.stop().await?;
    report(&results?, args.junit.as_deref())
}

fn load(file: &Path, config: &Config) -> anyhow::Result<Vec<TestCase>> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .with_context(|| ExitReason::Usage.with_message(format!("failed to read test file `{name}`")))?;
    let invalid = |problem| ExitReason::Usage.with_message(format!("test file `{name}`: {problem}"));
    let cases = test_file::parse(&text).map_err(invalid)?;
    for (case, model) in cases.iter().flat_map(|case| case.expected.iter().map(move |(model, _)| (case, model))) {
        if !config.read_models.models.iter().any(|known| known.name() == model) {
            let problem = format!(
                "test `{}` expects documents of `{model}`, which the configuration does not declare",
                case.name
            );
            bail!(invalid(problem));
        }
    }
    Ok(cases)
}

async fn run_cases(
    mongo: &TestMongo,
    config: &Config,
    cases: Vec<(String, TestCase)>,
) -> anyhow::Result<Vec<TestResult>> {
    let database = mongo.client.database(&format!("headwater_test_{}", ObjectId::new()));
    let scratch = FoldScratch::create(&database).await?;
    let mut results = vec![];
    for (file, case) in cases {
        let started = std::time::Instant::now();
        let failures = run_case(&scratch, config, &case).await?;
        results.push(TestResult { file, name: case.name, failures, seconds: started.elapsed().as_secs_f64() });
    }
    scratch.close().await;
    database.drop().await.map_err(mongo_error::DriverError::from)?;
    Ok(results)
}

/// What is wrong; empty if the test passes.
async fn run_case(scratch: &FoldScratch, config: &Config, case: &TestCase) -> anyhow::Result<Vec<String>> {
    let events = case.events.iter().zip(1..).map(|(event, at)| to_event(event, at, &config.source));
    let events: Vec<DeliveredEvent> = match events.collect::<Result<_, _>>() {
        Ok(events) => events,
        Err(problem) => return Ok(vec![problem]),
    };
    let mut failures = vec![];
    for (name, expected) in &case.expected {
        let Some(model) = config.read_models.models.iter().find(|model| model.name() == name) else { continue };
        match fold(scratch, model, &events).await {
            Ok(documents) => failures.extend(differences(name, expected, documents)),
            Err(FoldError::Refused(event)) => {
                let kind = event.event_type.as_deref().unwrap_or("without a type");
                failures.push(format!(
                    "{name}: event {} ({kind}) cannot be applied and would be parked: {}",
                    event.number, event.detail
                ));
            }
            Err(FoldError::Store(error)) => return Err(error.into()),
        }
    }
    Ok(failures)
}

fn to_event(document: &Document, number: usize, source: &SourceConfig) -> Result<DeliveredEvent, String> {
    let mut document = document.clone();
    if !document.contains_key("_id") {
        document.insert("_id", ObjectId::new());
    }
    let raw = RawDocumentBuf::try_from(&document).map_err(|_| format!("event {number} cannot be written as BSON"))?;
    DeliveredEvent::from_source(source, None, &raw).map_err(|problem| format!("event {number} {problem}"))
}

async fn fold(
    scratch: &FoldScratch,
    model: &Arc<ReadModel>,
    events: &[DeliveredEvent],
) -> Result<Vec<Document>, FoldError> {
    let mut fold = scratch.fold(model);
    for event in events {
        fold.add(event).await?;
    }
    let documents = fold.finish().await?;
    Ok(documents.iter().filter_map(|document| Document::try_from(&**document).ok()).collect())
}

fn differences(model: &str, expected: &[Document], mut found: Vec<Document>) -> Vec<String> {
    let mut lines = vec![];
    for expected in expected {
        let id = expected.get("_id").cloned().unwrap_or(Bson::Null);
        let at = found
            .iter()
            .position(|document| document.get("_id").is_some_and(|other| test_file::is_same_id(other, &id)));
        match at.map(|at| found.swap_remove(at)) {
            Some(found) => {
                let differences = compare_values(expected, &found);
                lines.extend(differences.iter().map(|difference| describe(model, &id, difference)));
            }
            None => lines.push(format!("{model}: expected a document with `_id` {}, found none", format_bson(&id))),
        }
    }
    for extra in found {
        let shown = Bson::Document(extra).into_relaxed_extjson();
        lines.push(format!("{model}: expected no such document, found {shown}"));
    }
    lines
}

fn describe(model: &str, id: &Bson, difference: &Difference) -> String {
    let shown = |value: &Option<Bson>| {
        value.as_ref().map_or_else(|| "nothing".to_owned(), |value| value.clone().into_relaxed_extjson().to_string())
    };
    let (expected, found) = (shown(&difference.expected), shown(&difference.stored));
    format!("{model}, {}, {}: expected {expected}, found {found}", format_bson(id), difference.path)
}

fn report(results: &[TestResult], junit: Option<&Path>) -> anyhow::Result<()> {
    for result in results {
        let word = if result.failures.is_empty() { "ok    " } else { "FAILED" };
        output::print_line(format_args!("{word} {}: {}", result.file, result.name))?;
        for failure in &result.failures {
            output::print_line(format_args!("         {failure}"))?;
        }
    }
    if let Some(file) = junit {
        let name = file.display();
        std::fs::write(file, junit::render(results)).with_context(|| format!("failed to write `{name}`"))?;
    }
    let failed = results.iter().filter(|result| !result.failures.is_empty()).count();
    output::print_line(format_args!("{}, {failed} failed", plural(results.len() as u64, "test")))?;
    if failed > 0 {
        bail!(ExitReason::Failed.with_message(format!("{} failed", plural(failed as u64, "test"))));
    }
    Ok(())
}

/// The server that evaluates the declarations.
struct TestMongo {
    client: mongodb::Client,
    /// Of a server that this command started.
    owned: Option<(Box<SingleNodeReplicaSet>, PathBuf)>,
}

impl TestMongo {
    async fn start(uri: Option<String>) -> anyhow::Result<Self> {
        let find = move || mongod::provide(uri.as_deref(), &Environment::from_process(), ProgressStyle::to_stderr());
        match tokio::task::spawn_blocking(find).await?? {
            MongoSource::Uri(uri) => Ok(Self { client: connect(&uri).await?, owned: None }),
            MongoSource::ProgramPaths(binaries) => {
                let folder = std::env::temp_dir().join(format!("headwater-test-{}", ObjectId::new()));
                let mut config = SingleNodeReplicaSet::config(folder.clone());
                config.parent_death_signal = ParentDeathSignal::Terminate;
                let node = Box::new(SingleNodeReplicaSet::start(&binaries, config).await?);
                Ok(Self { client: connect(&node.uri()).await?, owned: Some((node, folder)) })
            }
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        if let Some((mut node, folder)) = self.owned {
            node.stop(STOP_TIMEOUT).await?;
            // What remains is in the folder for temporary files.
            let _ = std::fs::remove_dir_all(folder);
        }
        Ok(())
    }
}

async fn connect(uri: &str) -> anyhow::Result<mongodb::Client> {
    // The driver's error may quote the URI, and with it a password.
    let client = mongodb::Client::with_uri_str(uri).await;
    client.map_err(|_| ExitReason::Usage.with_message("`--mongodb-uri` is not a MongoDB URI").into())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn a_failed_test_names_paths_and_values() {
        let expected = [doc! { "_id": "a", "n": 1, "list": [1, 2] }, doc! { "_id": "b" }];
        let found = vec![doc! { "_id": "c" }, doc! { "list": [1_i64, 3], "n": 1.0, "_id": "a" }];
        assert_eq!(
            differences("orders", &expected, found),
            [
                "orders, a, list.1: expected 2, found 3",
                "orders: expected a document with `_id` b, found none",
                "orders: expected no such document, found {\"_id\":\"c\"}",
            ]
        );
    }
}
