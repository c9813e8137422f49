//! The parked aggregates of one pipeline, with ids as operators write them. Used by `headwater parked` and by the dashboard.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use mongodb::Database;
use mongodb::bson::Bson;
use pipeline::event::{AggregateId, Namespace};
use pipeline::generation::{GenerationStage, GenerationStore};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view::{
    DeliveredEvent, DiscardScope, Error, ModelSet, ParkedAggregate, ParkedStore, PausedPage, Projection,
    SourceDocuments, is_version_of,
};

use crate::config::Config;
use crate::exit::ExitReason;
use crate::pauses::PauseStore;

/// The most entries that a search by id reads.
const MAX_SEARCHED: i64 = 100_000;

/// The parked store of one pipeline, and the source that names its collections.
pub(crate) struct ParkedCommands {
    views: Database,
    pipeline: String,
    source: SourceConfig,
    documents: SourceDocuments,
    generations: GenerationStore,
    pauses: PauseStore,
    /// Those of the configuration, before the first pod.
    declared: Vec<Arc<dyn Projection>>,
}

impl ParkedCommands {
    /// Connects lazily. `timeout`: the server selection timeout of MongoDB.
    pub(crate) async fn open(config: &Config, timeout: Duration) -> anyhow::Result<Self> {
        let dependencies = crate::connect::producer_dependencies(config, timeout).await?;
        let views =
            crate::connect::shared_mongo_client(config, &config.read_models.uri, "read_models.uri", timeout).await?;
        let models = config.read_models.models.iter().map(|model| Arc::clone(model) as Arc<dyn Projection>);
        Ok(Self {
            views: views.database(&config.read_models.database),
            pipeline: config.pipeline.clone(),
            documents: SourceDocuments::new(&dependencies.server.database(&config.source.database), &config.source),
            source: config.source.clone(),
            generations: GenerationStore::new(&dependencies.coordination, &config.pipeline),
            pauses: PauseStore::new(&dependencies.coordination, &config.pipeline),
            declared: models.collect(),
        })
    }

    fn store(&self, models: ModelSet) -> ParkedStore {
        let by_collection = self.source.kind == SourceKind::Documents;
        ParkedStore::new(self.views.clone(), &self.pipeline, by_collection, models, Some(self.documents.clone()))
    }

    /// For lists: nothing is applied.
    fn listing(&self) -> ParkedStore {
        self.store(ModelSet::fixed(vec![]))
    }

    /// With the read models that pods apply now.
    async fn current_store(&self) -> anyhow::Result<ParkedStore> {
        let models = match self.generations.load().await? {
            None => ModelSet::fixed(self.declared.clone()),
            Some(generation) if generation.stage == GenerationStage::Switching => {
                bail!("the read models are being switched; try again in a moment")
            }
            Some(generation) => generation.model_set()?,
        };
        Ok(self.store(models))
    }

    /// Entries that only a pause has parked.
    pub(crate) async fn list_paused(&self, after: Option<&Bson>, limit: i64) -> Result<PausedPage, Error> {
        self.listing().list_paused(after, limit).await
    }

    /// For several replays in a row.
    pub(crate) async fn resuming_store(&self) -> anyhow::Result<ParkedStore> {
        self.current_store().await
    }

    /// Applies what a pause has queued.
    pub(crate) async fn resume(&self, store: &ParkedStore, waiting: &ParkedAggregate) -> Result<u64, Error> {
        store.resume(&waiting.aggregate, &self.namespace(waiting), &waiting.model).await
    }

    pub(crate) async fn list(&self, limit: i64) -> Result<Vec<ParkedAggregate>, Error> {
        self.listing().list(limit).await
    }

    /// By its displayed id, or by its typed id. The read model may be omitted if the aggregate is parked in only one.
    pub(crate) async fn find(&self, aggregate: &str, model: Option<&str>) -> anyhow::Result<ParkedAggregate> {
        let list = self.listing().list(MAX_SEARCHED).await?;
        let named = |waiting: &ParkedAggregate| {
            let model = model.is_none_or(|model| is_version_of(&waiting.model, model));
            model && (format_id(&waiting.aggregate) == aggregate || format_typed_id(&waiting.aggregate) == aggregate)
        };
        let mut found: Vec<_> = list.into_iter().filter(named).collect();
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => bail!("this aggregate is not parked; `headwater parked list` shows the parked ones"),
            (Some(one), false)
                if found.iter().all(|other| format_typed_id(&other.aggregate) == format_typed_id(&one.aggregate)) =>
            {
                let model = &one.model;
                bail!(ExitReason::Usage.with_message(format!(
                    "the aggregate is parked in several read models; select one, for example `--model {model}`"
                )))
            }
            (Some(one), false) => {
                let one = format_typed_id(&one.aggregate);
                bail!(ExitReason::Usage.with_message(format!(
                    "several aggregates have this id; select one by its typed id, for example `{one}`"
                )))
            }
        }
    }

    pub(crate) async fn show(&self, waiting: &ParkedAggregate, limit: i64) -> Result<Vec<DeliveredEvent>, Error> {
        self.listing().list_events(&waiting.aggregate, &self.namespace(waiting), &waiting.model, limit).await
    }

    pub(crate) async fn retry(&self, waiting: &ParkedAggregate) -> anyhow::Result<u64> {
        let paused = self.pauses.load().await?.paused_models();
        if let Some(name) = paused.iter().find(|name| is_version_of(&waiting.model, name)) {
            bail!("read model `{name}` is paused; run `headwater resume read-model {name}` first");
        }
        let store = self.current_store().await?;
        Ok(store.retry(&waiting.aggregate, &self.namespace(waiting), &waiting.model).await?)
    }

    pub(crate) async fn discard(&self, waiting: &ParkedAggregate, what: DiscardScope) -> anyhow::Result<u64> {
        let store = self.current_store().await?;
        Ok(store.discard(&waiting.aggregate, &self.namespace(waiting), &waiting.model, what).await?)
    }

    fn namespace(&self, waiting: &ParkedAggregate) -> Namespace {
        let first = || self.source.namespaces().into_iter().next().expect("a source names a collection");
        waiting.collection.as_ref().map_or_else(first, |name| Namespace::new(&self.source.database, name))
    }
}

/// For display.
pub(crate) fn format_id(aggregate: &AggregateId) -> String {
    format_bson(aggregate.value())
}

pub(crate) fn format_bson(value: &Bson) -> String {
    match value {
        Bson::String(text) => text.clone(),
        Bson::ObjectId(id) => id.to_hex(),
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        other => other.clone().into_relaxed_extjson().to_string(),
    }
}

/// Canonical Extended JSON, which distinguishes ids of different types.
pub(crate) fn format_typed_id(aggregate: &AggregateId) -> String {
    aggregate.value().clone().into_canonical_extjson().to_string()
}

pub(crate) fn format_time(at: mongodb::bson::DateTime) -> String {
    at.try_to_rfc3339_string().unwrap_or_else(|_| "?".to_owned())
}
