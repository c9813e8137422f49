//! The parked aggregates of one pipeline, with ids as operators write them. Used by `headwater parked` and by the dashboard.

use std::time::Duration;

use anyhow::bail;
use mongodb::bson::Bson;
use pipeline::event::{AggregateId, Namespace};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view::{DeliveredEvent, DiscardScope, Error, ParkedAggregate, ParkedStore, SourceDocuments};

use crate::config::Config;
use crate::exit::ExitReason;

/// The most entries that a search by id reads.
const MAX_SEARCHED: i64 = 100_000;

/// The parked store of one pipeline, and the source that names its collections.
pub(crate) struct ParkedCommands {
    store: ParkedStore,
    source: SourceConfig,
}

impl ParkedCommands {
    /// `timeout`: the server selection timeout of MongoDB.
    pub(crate) async fn open(config: &Config, timeout: Duration) -> anyhow::Result<Self> {
        let dependencies = crate::connect::producer_dependencies(config, timeout).await?;
        let views = crate::connect::mongo_client(&config.read_models.uri, "read_models.uri", timeout).await?;
        let models = crate::connect::model_set(config, &dependencies.coordination).await?;
        let source = SourceDocuments::new(&dependencies.server.database(&config.source.database), &config.source);
        let by_collection = config.source.kind == SourceKind::Documents;
        let database = views.database(&config.read_models.database);
        let store = ParkedStore::new(database, &config.pipeline, by_collection, models, Some(source));
        Ok(Self { store, source: config.source.clone() })
    }

    pub(crate) async fn list(&self, limit: i64) -> Result<Vec<ParkedAggregate>, Error> {
        self.store.list(limit).await
    }

    /// By its displayed id, or by its typed id. The read model may be omitted if the aggregate is parked in only one.
    pub(crate) async fn find(&self, aggregate: &str, model: Option<&str>) -> anyhow::Result<ParkedAggregate> {
        let list = self.store.list(MAX_SEARCHED).await?;
        let named = |waiting: &ParkedAggregate| {
            let model = model.is_none_or(|model| names_model(model, &waiting.model));
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
        self.store.list_events(&waiting.aggregate, &self.namespace(waiting), &waiting.model, limit).await
    }

    pub(crate) async fn retry(&self, waiting: &ParkedAggregate) -> Result<u64, Error> {
        self.store.retry(&waiting.aggregate, &self.namespace(waiting), &waiting.model).await
    }

    pub(crate) async fn discard(&self, waiting: &ParkedAggregate, what: DiscardScope) -> Result<u64, Error> {
        self.store.discard(&waiting.aggregate, &self.namespace(waiting), &waiting.model, what).await
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

/// A later version of a read model parks under `NAME@GENERATION`.
fn names_model(given: &str, parked: &str) -> bool {
    let version = parked.strip_prefix(given).and_then(|rest| rest.strip_prefix('@'));
    given == parked || version.is_some_and(|number| number.parse::<u64>().is_ok())
}
