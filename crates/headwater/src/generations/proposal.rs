//! The read models of the configuration, as a proposal to the other pods; and the first generation of a pipeline.

use std::collections::BTreeMap;

use mongodb::Database;
use mongodb::bson::{Document, doc};
use pipeline::generation::{Error, Generation, GenerationStore, IncompleteReason, ModelVersion};
use pipeline::view::{CURSORS, ReadModelDeclaration};

use crate::coordination_store::of_pipeline;

/// Declarations and their fingerprints, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelProposal {
    pub(crate) declarations: BTreeMap<String, ReadModelDeclaration>,
    pub(crate) fingerprints: BTreeMap<String, String>,
}

impl ModelProposal {
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&String, &ReadModelDeclaration, &String)> {
        self.declarations
            .iter()
            .filter_map(|(name, declaration)| Some((name, declaration, self.fingerprints.get(name)?)))
    }

    /// One text for the whole proposal.
    pub(crate) fn id(&self) -> String {
        let models: Vec<String> = self.fingerprints.iter().map(|(name, print)| format!("{name}={print}")).collect();
        models.join(",")
    }

    /// The stored generation, with what the configuration may change without a build: the indexes.
    pub(crate) fn with_own_indexes(&self, mut generation: Generation) -> Generation {
        for (name, version) in &mut generation.serving {
            if self.fingerprints.get(name) == Some(&version.fingerprint)
                && let Some(declaration) = self.declarations.get(name)
            {
                version.declaration.indexes.clone_from(&declaration.indexes);
            }
        }
        generation
    }
}

/// What a version without generations recorded about a read model: see the collection `read_models`.
pub(crate) const EARLIER_RECORDS: &str = "read_models";

/// The generation of the pipeline. The first pod stores the read models of its configuration; those that earlier pods did not have, or had otherwise,
/// are left out, so that they are built like any other change.
pub(crate) async fn load_or_create(
    store: &GenerationStore,
    coordination: &Database,
    views: &Database,
    proposal: &ModelProposal,
) -> Result<Generation, Error> {
    if let Some(generation) = store.load().await? {
        return Ok(generation);
    }
    let failed = |source: mongodb::error::Error| Error::Store { action: "read cursors", source: source.into() };
    let cursors = views.collection::<Document>(CURSORS);
    let applied = cursors.find_one(of_pipeline(store.pipeline())).projection(doc! { "_id": 1 });
    let has_applied = applied.await.map_err(failed)?.is_some();
    let records =
        if has_applied { earlier_records(coordination, store.pipeline()).await.map_err(failed)? } else { None };
    let known = proposal.versions().filter(|(name, _, fingerprint)| match &records {
        // Whatever its read models are, they were not declared just now for all we know.
        None => true,
        Some(records) => records.get(*name).is_some_and(|record| record == *fingerprint),
    });
    let version = |(name, declaration, fingerprint): (&String, &ReadModelDeclaration, &String)| {
        (name.clone(), ModelVersion::first(name, declaration.clone(), fingerprint.clone()))
    };
    store.create(Generation::first(known.map(version).collect())).await
}

/// The fingerprints of complete read models that pods of an earlier version recorded; `None` without records.
async fn earlier_records(
    coordination: &Database,
    pipeline: &str,
) -> Result<Option<BTreeMap<String, String>>, mongodb::error::Error> {
    let mut found = coordination.collection::<Document>(EARLIER_RECORDS).find(of_pipeline(pipeline)).await?;
    let (mut records, mut any) = (BTreeMap::new(), false);
    while found.advance().await? {
        let record = found.deserialize_current()?;
        any = true;
        let name = record.get_document("_id").ok().and_then(|id| id.get_str("readModel").ok());
        let is_complete = record.get_document("incomplete").is_err() && record.get_bool("declared").unwrap_or(true);
        if let (Some(name), Ok(fingerprint), true) = (name, record.get_str("fingerprint"), is_complete) {
            records.insert(name.to_owned(), fingerprint.to_owned());
        }
    }
    Ok(any.then_some(records))
}

/// Why a read model that cannot be built lacks events.
pub(super) fn incomplete_reason(generation: &Generation, name: &str) -> IncompleteReason {
    match generation.serving.contains_key(name) || generation.kept.contains_key(name) {
        true => IncompleteReason::Changed,
        false => IncompleteReason::Added,
    }
}
