//! Removes all copies of one aggregate that this pipeline keeps, and leaves a tombstone.
//!
//! Order matters: the tombstone first, then the generation and the fence (no pod that does not know the tombstone writes a cursor any more), then the copies.
//! Every step may be repeated.

use anyhow::bail;
use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection, Database};
use pipeline::erasure::ErasureStore;
use pipeline::event::AggregateId;
use pipeline::generation::{self, Generation, GenerationStage, GenerationStore, ModelVersion};
use pipeline::publish::rejected;
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::stored::{ClaimCheckStore, Identity, claim_check};
use pipeline::view::{CURSORS, DeliveredEvent, PARKED_EVENTS};

use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::coordination_store::{majority_collection, of_pipeline};
use crate::operator_log;

/// The servers of one pipeline.
pub(crate) struct Eraser<'a> {
    config: &'a Config,
    source: Client,
    views: Database,
    coordination: Database,
}

/// What was removed.
#[derive(Debug, Default)]
pub(crate) struct ErasedCopies {
    /// By collection.
    pub(crate) documents: Vec<(String, u64)>,
    /// Read models with keys of their own: they may hold values of the aggregate.
    pub(crate) other_keys: Vec<String>,
    /// A name of the tombstone, without the id.
    pub(crate) tombstone: String,
}

impl<'a> Eraser<'a> {
    pub(crate) async fn open(config: &'a Config) -> anyhow::Result<Self> {
        let views = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
        Ok(Self {
            config,
            source: connect::mongo_client(&config.source_uri, "source.uri", COMMAND_TIMEOUT).await?,
            views: views.database(&config.read_models.database),
            coordination: connect::coordination_database(config, COMMAND_TIMEOUT).await?,
        })
    }

    /// Whether the source still has an event of the aggregate, or its document.
    pub(crate) async fn is_in_source(&self, aggregate: &AggregateId) -> anyhow::Result<bool> {
        let SourceConfig { kind, aggregate_id, .. } = &self.config.source;
        let path = if *kind == SourceKind::Documents { "_id" } else { aggregate_id };
        for namespace in self.config.source.namespaces() {
            let events = self.source.database(&namespace.database).collection::<Document>(&namespace.collection);
            let found =
                events.find_one(doc! { path: { "$eq": aggregate.value().clone() } }).projection(doc! { "_id": 1 });
            let found = found.read_concern(ReadConcern::majority());
            let found = found.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
            if found.await.map_err(DriverError::from)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether pods have applied or parked an event of it.
    pub(crate) async fn has_cursor(&self, aggregate: &AggregateId) -> anyhow::Result<bool> {
        let cursors: Collection<Document> = majority_collection(&self.views, CURSORS);
        let of_aggregate = doc! { "_id.aggregate": { "$eq": aggregate.value().clone() } };
        let filter = doc! { "$and": [of_pipeline(&self.config.pipeline), of_aggregate] };
        Ok(cursors.find_one(filter).await.map_err(DriverError::from)?.is_some())
    }

    pub(crate) async fn erase(&self, aggregate: &AggregateId) -> anyhow::Result<ErasedCopies> {
        let store = GenerationStore::new(&self.coordination, &self.config.pipeline);
        check_stage(store.load().await?.as_ref())?;
        let tombstone = self.insert_tombstones(aggregate).await?;
        let generation = raise_generation(&store, &self.views).await?;
        let mut erased = ErasedCopies { tombstone, ..ErasedCopies::default() };
        // The cursor first: without it no replay of parked events finds anything to apply, and cannot bring a document back.
        for collection in [CURSORS, PARKED_EVENTS] {
            let deleted = self.erase_by_id(collection, aggregate).await?;
            erased.documents.push((collection.to_owned(), deleted));
        }
        if let Some(generation) = &generation {
            self.erase_documents(generation, aggregate, &mut erased).await?;
        }
        let rejected = self.erase_rejected(aggregate).await?;
        erased.documents.push((rejected::COLLECTION.to_owned(), rejected));
        let oversize = self.erase_oversize(aggregate).await?;
        erased.documents.push((claim_check::COLLECTION.to_owned(), oversize));
        let shown = crate::parked::format_id(aggregate);
        let redacted = operator_log::redact(&self.coordination, &self.config.pipeline, &shown).await?;
        erased.documents.push((operator_log::COLLECTION.to_owned(), redacted));
        Ok(erased)
    }

    /// In a source of documents, a key may be in each collection.
    async fn insert_tombstones(&self, aggregate: &AggregateId) -> anyhow::Result<String> {
        let store = ErasureStore::new(&self.views, &self.coordination, &self.config.pipeline);
        match self.config.source.kind {
            SourceKind::Events => Ok(store.insert(None, aggregate).await?),
            SourceKind::Documents => {
                let mut name = String::new();
                for namespace in self.config.source.namespaces() {
                    name = store.insert(Some(&namespace.collection), aggregate).await?;
                }
                Ok(name)
            }
        }
    }

    /// Serving, building and kept collections.
    async fn erase_documents(
        &self,
        generation: &Generation,
        aggregate: &AggregateId,
        erased: &mut ErasedCopies,
    ) -> anyhow::Result<()> {
        let versions = generation.serving.iter().chain(&generation.next).chain(&generation.kept);
        for (name, version) in versions {
            if !is_keyed_by_aggregate(version, &self.config.source) {
                if !erased.other_keys.contains(name) {
                    erased.other_keys.push(name.clone());
                }
                continue;
            }
            let documents: Collection<Document> = majority_collection(&self.views, &version.collection);
            let deleted = documents.delete_one(doc! { "_id": { "$eq": aggregate.value().clone() } }).await;
            let deleted = deleted.map_err(DriverError::from)?.deleted_count;
            erased.documents.push((version.collection.clone(), deleted));
        }
        Ok(())
    }

    /// Ids that begin with pipeline and aggregate.
    async fn erase_by_id(&self, collection: &str, aggregate: &AggregateId) -> anyhow::Result<u64> {
        let documents: Collection<Document> = majority_collection(&self.views, collection);
        let of_aggregate = doc! { "_id.aggregate": { "$eq": aggregate.value().clone() } };
        // Ids begin with the pipeline; MongoDB finds the aggregate within that range.
        let filter = doc! { "$and": [of_pipeline(&self.config.pipeline), of_aggregate] };
        Ok(documents.delete_many(filter).await.map_err(DriverError::from)?.deleted_count)
    }

    async fn erase_rejected(&self, aggregate: &AggregateId) -> anyhow::Result<u64> {
        let events: Collection<Document> = majority_collection(&self.coordination, rejected::COLLECTION);
        let mut found = events.find(of_pipeline(&self.config.pipeline)).await.map_err(DriverError::from)?;
        let mut bodies: std::collections::BTreeMap<String, Vec<(i64, Vec<u8>)>> = Default::default();
        while let Some(chunk) = found.try_next().await.map_err(DriverError::from)? {
            let Ok(id) = chunk.get_document("_id") else { continue };
            let Ok(message) = id.get_str("message") else { continue };
            let bytes = chunk.get_binary_generic("document").cloned().unwrap_or_default();
            bodies.entry(message.to_owned()).or_default().push((id.get_i64("chunk").unwrap_or(0), bytes));
        }
        let mut deleted = 0;
        for (message, mut chunks) in bodies {
            chunks.sort_by_key(|(chunk, _)| *chunk);
            let body: Vec<u8> = chunks.into_iter().flat_map(|(_, bytes)| bytes).collect();
            if self.is_of_aggregate(body, aggregate) {
                let filter = doc! { "_id.pipeline": &self.config.pipeline, "_id.message": &message };
                let of_message = doc! { "$and": [of_pipeline(&self.config.pipeline), filter] };
                deleted += events.delete_many(of_message).await.map_err(DriverError::from)?.deleted_count;
            }
        }
        Ok(deleted)
    }

    /// The bodies are stored by message id, so each must be read.
    async fn erase_oversize(&self, aggregate: &AggregateId) -> anyhow::Result<u64> {
        let chunks: Collection<Document> = majority_collection(&self.coordination, claim_check::COLLECTION);
        let first = chunks.find(doc! { "_id.chunk": 0_i64 }).projection(doc! { "_id": 1 }).await;
        let ids: Vec<Document> = first.map_err(DriverError::from)?.try_collect().await.map_err(DriverError::from)?;
        let store = ClaimCheckStore::new(&self.coordination, std::time::Duration::ZERO);
        let mut deleted = 0;
        for id in &ids {
            let Some(message) = id.get_document("_id").ok().and_then(|id| id.get_str("message").ok()) else { continue };
            let body = match store.read(message).await {
                Ok(body) => body,
                // It expires just now.
                Err(claim_check::Error::Missing { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if self.is_of_aggregate(body, aggregate) {
                let of_message = doc! { "_id.message": message };
                deleted += chunks.delete_many(of_message).await.map_err(DriverError::from)?.deleted_count;
            }
        }
        Ok(deleted)
    }

    fn is_of_aggregate(&self, body: Vec<u8>, aggregate: &AggregateId) -> bool {
        let Some(document) = parse_body(body) else { return false };
        let wanted = Identity::of(aggregate.value());
        match self.config.source.kind {
            SourceKind::Documents => {
                let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
                id.is_some_and(|id| Identity::of(&id) == wanted)
            }
            // Without its sequence: a rejected event may lack it.
            SourceKind::Events => {
                let source = SourceConfig { sequence: None, ..self.config.source.clone() };
                let event = DeliveredEvent::from_source(&source, None, &document);
                event.is_ok_and(|event| Identity::of(event.aggregate.value()) == wanted)
            }
        }
    }
}

/// BSON, or relaxed Extended JSON with `producer.body: json`.
fn parse_body(body: Vec<u8>) -> Option<RawDocumentBuf> {
    if let Ok(json) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&body) {
        return RawDocumentBuf::try_from(&Document::try_from(json).ok()?).ok();
    }
    RawDocumentBuf::from_bytes(body).ok()
}

fn check_stage(generation: Option<&Generation>) -> anyhow::Result<()> {
    if generation.is_some_and(|generation| generation.stage != GenerationStage::Active) {
        bail!(
            "read models are being built or switched; erase when that is done, or cancel it with `headwater read-model cancel`"
        );
    }
    Ok(())
}

/// From the fence on, only pods that have read this generation, and the tombstones before it, can move a cursor. `None`: no pod ever ran.
async fn raise_generation(store: &GenerationStore, views: &Database) -> anyhow::Result<Option<Generation>> {
    loop {
        let Some(present) = store.load().await? else { return Ok(None) };
        check_stage(Some(&present))?;
        if let Some(raised) = store.replace(Generation { number: present.number + 1, ..present }).await? {
            generation::raise_fence(views, store.pipeline(), raised.number).await?;
            return Ok(Some(raised));
        }
    }
}

/// A copy of a document of the source has its id, too.
fn is_keyed_by_aggregate(version: &ModelVersion, source: &SourceConfig) -> bool {
    match &version.declaration.key {
        None => true,
        Some(Bson::String(path)) => *path == format!("$$event.{}", source.aggregate_id),
        Some(_) => false,
    }
}
