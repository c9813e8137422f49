//! Events that operators discarded from a read model. They stay discarded when the same definition is built anew.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::PARKED_EVENTS;
use super::delivered_event::DeliveredEvent;
use super::error::{DUPLICATE_KEY, Error};
use super::identity::Identity;
use super::parked::DISCARDED;

/// By name of the version under which they are kept: aggregate and `_id` of each event.
#[derive(Debug, Default)]
pub struct DiscardedEvents {
    by_model: HashMap<String, HashSet<(Identity, Identity)>>,
}

impl DiscardedEvents {
    /// All of these versions.
    pub async fn load(database: &Database, pipeline: &str, models: &[String]) -> Result<Self, Error> {
        let mut by_model: HashMap<String, HashSet<_>> = HashMap::new();
        for document in find(database, pipeline, models).await? {
            let id = document.get_document("_id").ok();
            let model = id.and_then(|id| id.get_str("model").ok());
            let aggregate = id.and_then(|id| id.get("aggregate"));
            if let (Some(model), Some(aggregate), Some(event)) = (model, aggregate, document.get("eventId")) {
                let event = (Identity::of(aggregate), Identity::of(event));
                by_model.entry(model.to_owned()).or_default().insert(event);
            }
        }
        Ok(Self { by_model })
    }

    /// Keeps the discarded events of one version for another one as well. May be repeated.
    pub async fn carry_over(database: &Database, pipeline: &str, from: &str, to: &str) -> Result<(), Error> {
        let events = database.collection::<Document>(PARKED_EVENTS);
        for mut document in find(database, pipeline, &[from.to_owned()]).await? {
            if let Ok(id) = document.get_document_mut("_id") {
                id.insert("model", to);
            }
            match events.insert_one(document).await {
                Err(error) if mongo_error::error_code(&error) != Some(DUPLICATE_KEY) => {
                    return Err(store_error(database, "keep discarded events", error));
                }
                Err(_) | Ok(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn contains(&self, model: &str, event: &DeliveredEvent) -> bool {
        !self.by_model.is_empty()
            && self.by_model.get(model).is_some_and(|events| {
                events.contains(&(Identity::of(event.aggregate.value()), Identity::of(&event.key)))
            })
    }
}

async fn find(database: &Database, pipeline: &str, models: &[String]) -> Result<Vec<Document>, Error> {
    let filter = doc! {
        "_id": { "$gt": { "pipeline": pipeline }, "$lt": { "pipeline": pipeline, "aggregate": Bson::MaxKey } },
        "_id.model": { "$in": models },
        "state": DISCARDED,
    };
    let found = match database.collection::<Document>(PARKED_EVENTS).find(filter).await {
        Ok(found) => found.try_collect().await,
        Err(error) => Err(error),
    };
    found.map_err(|error| store_error(database, "read discarded events", error))
}

fn store_error(database: &Database, action: &'static str, error: mongodb::error::Error) -> Error {
    Error::Store { action, database: database.name().to_owned(), source: error.into() }
}
