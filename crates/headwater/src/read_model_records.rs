//! Which declaration each read model has, and since when its documents lack events.
//!
//! A pod applies an event to the read models of its own configuration, and the cursor moves on for all of them. A read model that is declared later
//! never sees the events before, and documents of a changed one partly follow the earlier declaration. Pods record the declarations when they
//! start, so that such a read model is known to be incomplete and `status` says so.
//!
//! Pods of a version without these records are not known: the first records are taken as they are.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};
use pipeline::view::CURSORS;

use crate::coordination_store::{majority_collection, of_pipeline};

pub(crate) const COLLECTION: &str = "read_models";
const FORMAT: i64 = 1;
/// MongoDB elects a primary within seconds.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Why a read model lacks events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncompleteReason {
    /// Declared after events had been applied.
    Added,
    /// Its declaration changed after events had been applied.
    Changed,
    /// A pod ran without it for a while.
    LeftOut,
}

impl IncompleteReason {
    const ALL: [Self; 3] = [Self::Added, Self::Changed, Self::LeftOut];

    const fn code(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::LeftOut => "left_out",
        }
    }

    fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for IncompleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added after events had been applied",
            Self::Changed => "changed after events had been applied",
            Self::LeftOut => "left out by a pod while events were applied",
        })
    }
}

/// One read model as recorded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReadModelRecord {
    fingerprint: String,
    /// `false`: the pod that started last does not declare it.
    declared: bool,
    pub(crate) incomplete: Option<(IncompleteReason, DateTime)>,
}

/// The records of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct ReadModelRecordStore {
    records: Collection<Document>,
    pipeline: String,
}

impl ReadModelRecordStore {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        Self { records: majority_collection(coordination, COLLECTION), pipeline: pipeline.to_owned() }
    }

    pub(crate) async fn load(&self) -> Result<BTreeMap<String, ReadModelRecord>, DriverError> {
        let mut found = self.records.find(of_pipeline(&self.pipeline)).await?;
        let mut records = BTreeMap::new();
        while let Some(document) = found.try_next().await? {
            records.extend(read_record(&document));
        }
        Ok(records)
    }

    /// Records the declarations of a pod before it applies an event. `fingerprints`: of each declared read model.
    pub(crate) async fn record_until_ok(&self, views: &Database, fingerprints: &BTreeMap<String, String>) {
        while let Err(error) = self.record(views, fingerprints).await {
            tracing::warn!(%error, "failed to record the declarations of the read models; trying again");
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn record(&self, views: &Database, fingerprints: &BTreeMap<String, String>) -> Result<(), DriverError> {
        let known = self.load().await?;
        let has_applied = self.has_applied(views).await?;
        for (model, record) in changed_records(&known, fingerprints, has_applied, DateTime::now()) {
            if let Some((reason, _)) = record.incomplete.filter(|_| record.declared) {
                tracing::warn!(read_model = model, "the read model is incomplete: {reason}");
            }
            self.store(&model, &record).await?;
        }
        Ok(())
    }

    /// Records that the read model is complete. `false`: there is no such record.
    pub(crate) async fn accept(&self, model: &str) -> Result<bool, DriverError> {
        let accepted = doc! { "$set": { "incomplete": Bson::Null, "acceptedAt": DateTime::now() } };
        let updated = self.records.update_one(doc! { "_id": self.id(model) }, accepted).await?;
        Ok(updated.matched_count > 0)
    }

    async fn store(&self, model: &str, record: &ReadModelRecord) -> Result<(), DriverError> {
        let incomplete = record.incomplete.map(|(reason, since)| doc! { "reason": reason.code(), "since": since });
        let fields = doc! {
            "format": FORMAT,
            "fingerprint": &record.fingerprint,
            "declared": record.declared,
            "incomplete": incomplete,
        };
        self.records.update_one(doc! { "_id": self.id(model) }, doc! { "$set": fields }).upsert(true).await?;
        Ok(())
    }

    fn id(&self, model: &str) -> Document {
        doc! { "pipeline": &self.pipeline, "readModel": model }
    }

    async fn has_applied(&self, views: &Database) -> Result<bool, DriverError> {
        let cursors = views.collection::<Document>(CURSORS);
        Ok(cursors.find_one(of_pipeline(&self.pipeline)).projection(doc! { "_id": 1 }).await?.is_some())
    }
}

/// `None` for a document of a later format.
fn read_record(document: &Document) -> Option<(String, ReadModelRecord)> {
    let model = document.get_document("_id").ok()?.get_str("readModel").ok()?;
    if document.get_i64("format").ok()? != FORMAT {
        return None;
    }
    let incomplete = document.get_document("incomplete").ok();
    let incomplete = incomplete.and_then(|incomplete| {
        let reason = IncompleteReason::parse(incomplete.get_str("reason").ok()?)?;
        Some((reason, *incomplete.get_datetime("since").ok()?))
    });
    let record = ReadModelRecord {
        fingerprint: document.get_str("fingerprint").ok()?.to_owned(),
        declared: document.get_bool("declared").unwrap_or(true),
        incomplete,
    };
    Some((model.to_owned(), record))
}

/// The records that a pod with these declarations changes. `has_applied`: the pipeline has applied events, with whatever read models.
fn changed_records(
    known: &BTreeMap<String, ReadModelRecord>,
    fingerprints: &BTreeMap<String, String>,
    has_applied: bool,
    now: DateTime,
) -> Vec<(String, ReadModelRecord)> {
    let incomplete_if = |reason| has_applied.then_some((reason, now));
    let declared = fingerprints.iter().map(|(model, fingerprint)| {
        let incomplete = match known.get(model) {
            // The first pod with records: whatever its read models are, they were not declared just now for all we know.
            None if known.is_empty() => None,
            None => incomplete_if(IncompleteReason::Added),
            // What is incomplete stays so, also when an earlier declaration comes back.
            Some(record) if record.incomplete.is_some() => record.incomplete,
            Some(record) if record.fingerprint != *fingerprint => incomplete_if(IncompleteReason::Changed),
            Some(record) if !record.declared => incomplete_if(IncompleteReason::LeftOut),
            Some(_) => None,
        };
        (model.clone(), ReadModelRecord { fingerprint: fingerprint.clone(), declared: true, incomplete })
    });
    let left_out = known.iter().filter(|(model, _)| !fingerprints.contains_key(*model));
    let left_out =
        left_out.map(|(model, record)| (model.clone(), ReadModelRecord { declared: false, ..record.clone() }));
    declared.chain(left_out).filter(|(model, record)| known.get(model) != Some(record)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read models with their fingerprints, by pod in the order of their start.
    type PodDeclarations<'a> = &'a [&'a [(&'a str, &'a str)]];

    fn fingerprints(models: &[(&str, &str)]) -> BTreeMap<String, String> {
        models.iter().map(|(name, fingerprint)| ((*name).to_owned(), (*fingerprint).to_owned())).collect()
    }

    /// The reasons after pods with these declarations have started, one after the other.
    fn reasons_after(pods: PodDeclarations<'_>, has_applied: bool) -> Vec<(String, Option<IncompleteReason>)> {
        let mut records = BTreeMap::new();
        for pod in pods {
            let changed = changed_records(&records, &fingerprints(pod), has_applied, DateTime::from_millis(7));
            records.extend(changed);
        }
        records.into_iter().map(|(model, record)| (model, record.incomplete.map(|(reason, _)| reason))).collect()
    }

    #[test]
    fn a_later_declaration_makes_a_read_model_incomplete() {
        use IncompleteReason::{Added, Changed, LeftOut};
        let cases: [(PodDeclarations<'_>, Option<IncompleteReason>); 6] = [
            (&[&[("a", "1")], &[("a", "1")]], None),
            (&[&[("b", "1")], &[("a", "1"), ("b", "1")]], Some(Added)),
            (&[&[("a", "1")], &[("a", "2")]], Some(Changed)),
            (&[&[("a", "1")], &[("a", "2")], &[("a", "1")]], Some(Changed)),
            (&[&[("a", "1"), ("b", "1")], &[("b", "1")], &[("a", "1"), ("b", "1")]], Some(LeftOut)),
            (&[&[("a", "1")], &[("a", "1"), ("b", "1")]], None),
        ];
        for (pods, expected) in cases {
            let reasons = reasons_after(pods, true);
            assert_eq!(reasons[0], ("a".to_owned(), expected), "{pods:?}");
            assert!(
                reasons_after(pods, false).iter().all(|(_, reason)| reason.is_none()),
                "nothing was applied: {pods:?}"
            );
        }
    }

    #[test]
    fn unchanged_declarations_write_nothing() {
        let records: BTreeMap<_, _> =
            changed_records(&BTreeMap::new(), &fingerprints(&[("a", "1")]), true, DateTime::now())
                .into_iter()
                .collect();
        assert_eq!(changed_records(&records, &fingerprints(&[("a", "1")]), true, DateTime::now()), []);
    }
}
