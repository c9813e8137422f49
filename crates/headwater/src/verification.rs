//! The last comparison of each read model with the source: who made it, when, and what differed, by count and kind. Never a value, never an id.
//!
//! Kept in `verifications` of the coordination database, one document per read model. `read-model verify` and the dashboard write it; `status` shows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use admin::WallTime;
use admin::status::VerificationStatus;
use anyhow::bail;
use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};
use pipeline::generation::GenerationStore;
use pipeline::verify::{Comparability, Finding, Verifier, VerifyScope, VerifySink, VerifyTotals, comparability_of};
use tokio::time::timeout;

use crate::cli::read_model::verify::open_dependencies;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::coordination_store::{majority_collection, of_pipeline};

pub(crate) const COLLECTION: &str = "verifications";
const FORMAT: i64 = 1;
/// A request of the dashboard waits so long.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts differences by kind.
#[derive(Debug, Default)]
pub(crate) struct DifferenceCounts(pub(crate) BTreeMap<&'static str, u64>);

impl DifferenceCounts {
    pub(crate) fn add(&mut self, finding: &Finding) {
        for difference in &finding.differences {
            *self.0.entry(difference.kind.as_str()).or_default() += 1;
        }
    }
}

impl VerifySink for DifferenceCounts {
    fn finding(&mut self, finding: &Finding) {
        self.add(finding);
    }

    fn progress(&mut self, _: &VerifyTotals) {}
}

/// The results of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct VerificationStore {
    results: Collection<Document>,
    pipeline: String,
}

impl VerificationStore {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        Self { results: majority_collection(coordination, COLLECTION), pipeline: pipeline.to_owned() }
    }

    /// Replaces the last result of this read model. The time is the server's.
    pub(crate) async fn record(
        &self,
        model: &str,
        by: &str,
        scope: &str,
        totals: &VerifyTotals,
        counts: &DifferenceCounts,
    ) -> Result<(), DriverError> {
        let number = |count: u64| Bson::from(i64::try_from(count).unwrap_or(i64::MAX));
        let kinds: Vec<Bson> =
            counts.0.iter().map(|(kind, count)| Bson::from(doc! { "kind": *kind, "count": number(*count) })).collect();
        let fields = doc! {
            "format": FORMAT, "by": by, "scope": scope,
            "compared": number(totals.compared), "different": number(totals.different),
            "repaired": number(totals.repaired), "skipped": number(totals.skipped()), "kinds": kinds,
        };
        let id = doc! { "pipeline": &self.pipeline, "readModel": model };
        let update = vec![
            doc! { "$replaceWith": { "_id": "$_id", "at": "$$NOW" } },
            // As literals, because a name may begin with `$`.
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "$literal": fields }] } },
        ];
        self.results.update_one(doc! { "_id": id }, update).upsert(true).await?;
        Ok(())
    }

    /// The last result of each read model.
    pub(crate) async fn load(&self) -> Result<BTreeMap<String, VerificationStatus>, DriverError> {
        let stages = [doc! { "$match": of_pipeline(&self.pipeline) }, doc! { "$set": { "now": "$$NOW" } }];
        let documents: Vec<Document> = self.results.aggregate(stages).await?.try_collect().await?;
        Ok(documents.iter().filter_map(read_result).collect())
    }
}

/// `None` for a document of a later format.
fn read_result(document: &Document) -> Option<(String, VerificationStatus)> {
    (document.get_i64("format").ok()? == FORMAT).then_some(())?;
    let text = |field| document.get_str(field).ok().map(str::to_owned);
    let count = |document: &Document, field| document.get_i64(field).ok().and_then(|count| u64::try_from(count).ok());
    let (at, now) = (*document.get_datetime("at").ok()?, *document.get_datetime("now").ok()?);
    let kinds = document.get_array("kinds").ok()?.iter().filter_map(|kind| {
        let kind = kind.as_document()?;
        Some((kind.get_str("kind").ok()?.to_owned(), count(kind, "count")?))
    });
    let model = document.get_document("_id").ok()?.get_str("readModel").ok()?.to_owned();
    let status = VerificationStatus {
        at: to_wall_time(at),
        seconds_ago: (now.timestamp_millis() - at.timestamp_millis()).max(0) as f64 / 1_000.0,
        by: text("by")?,
        scope: text("scope")?,
        compared: count(document, "compared")?,
        different: count(document, "different")?,
        repaired: count(document, "repaired")?,
        skipped: count(document, "skipped")?,
        kinds: kinds.collect(),
    };
    Some((model, status))
}

fn to_wall_time(time: DateTime) -> WallTime {
    WallTime::from_millis(time.timestamp_millis())
}

/// Compares some aggregates of a read model with the source, at random, and records the result. Repairs nothing.
pub(crate) async fn verify_sample(config: &Config, model: &str, sample: u32, by: &str) -> anyhow::Result<VerifyTotals> {
    let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
    let generation = GenerationStore::new(&coordination, &config.pipeline).load().await?;
    let Some(version) = generation.as_ref().and_then(|generation| generation.serving.get(model)) else {
        bail!("no read model has the name `{model}`");
    };
    match comparability_of(&version.declaration, &config.source) {
        Comparability::ByAggregate => {}
        Comparability::AsWhole => bail!(
            "several aggregates write a document of `{model}`: it can only be compared as a whole, with `headwater read-model verify {model} --all`"
        ),
        Comparability::NotComparable(reason) => bail!("`{model}` is not comparable: {reason}"),
    }
    let verifier = Verifier::open(open_dependencies(config, Arc::new(version.compile(model)?)).await?).await?;
    let mut counts = DifferenceCounts::default();
    let compared = timeout(SAMPLE_TIMEOUT, verifier.run(&VerifyScope::Sample(sample), false, &mut counts)).await;
    verifier.close().await;
    let Ok(totals) = compared else {
        bail!(
            "the comparison took longer than {} s; run `headwater read-model verify {model}`",
            SAMPLE_TIMEOUT.as_secs()
        )
    };
    let totals = totals?;
    let store = VerificationStore::new(&coordination, &config.pipeline);
    store.record(model, by, &format!("a sample of {sample}"), &totals, &counts).await?;
    Ok(totals)
}
