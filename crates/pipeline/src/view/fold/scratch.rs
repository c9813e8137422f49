//! Scratch collections of folds: named, created, dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, RawDocumentBuf, doc};
use mongodb::options::{Hint, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};

use super::Fold;
use crate::view::applier_config::Config;
use crate::view::error::Error;
use crate::view::read_model::ReadModel;
use crate::view::transaction::TransactionStore;

/// Begins the name of every scratch collection; an object id follows, which says when it was made.
const PREFIX: &str = "_headwater_scratch_";
/// A command that was killed leaves its collection. No command takes this long.
const STALE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A scratch collection in the read-model database; several folds may use it at a time.
pub struct FoldScratch {
    pub(super) store: TransactionStore,
    pub(super) collection: Arc<str>,
}

impl FoldScratch {
    /// Creates the collection, and drops those that killed commands left.
    pub async fn create(database: &Database) -> Result<Self, Error> {
        let store = TransactionStore { database: database.clone(), within: Config::default().transaction_within };
        let mut scratch = Self { store, collection: "".into() };
        scratch.drop_stale().await?;
        scratch.collection = scratch.create_collection().await?;
        Ok(scratch)
    }

    /// A fold of this model, without events yet.
    pub fn fold<'a>(&'a self, model: &'a ReadModel) -> Fold<'a> {
        Fold::new(self, model)
    }

    pub fn database(&self) -> &Database {
        &self.store.database
    }

    /// Drops the collection. If that fails, a later command drops it.
    pub async fn close(self) {
        self.drop_collection(&self.collection).await;
    }

    pub(crate) async fn create_collection(&self) -> Result<Arc<str>, Error> {
        let name: Arc<str> = format!("{PREFIX}{}", ObjectId::new()).into();
        // No transaction should have to create it.
        let created = self.store.database.create_collection(&*name).await;
        created.map_err(|error| self.store.store_error("create scratch collection", error))?;
        Ok(name)
    }

    pub(crate) async fn drop_collection(&self, name: &str) {
        let _ = self.store.database.collection::<RawDocumentBuf>(name).drop().await;
    }

    pub(super) async fn read_all(&self, name: &str) -> Result<Vec<RawDocumentBuf>, Error> {
        let collection = self.store.database.collection::<RawDocumentBuf>(name);
        let query = collection.find(doc! {}).read_concern(ReadConcern::majority());
        let read = async {
            let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
            query.selection_criteria(primary).await?.try_collect().await
        };
        read.await.map_err(|error| self.store.store_error("read folded documents", error))
    }

    pub(crate) async fn insert(&self, name: &str, documents: &[RawDocumentBuf]) -> Result<(), Error> {
        if documents.is_empty() {
            return Ok(());
        }
        let majority = WriteConcern::majority();
        let collection = self.store.database.collection::<RawDocumentBuf>(name);
        let inserted = collection.insert_many(documents).write_concern(majority).await;
        inserted.map(drop).map_err(|error| self.store.store_error("copy documents", error))
    }

    /// The documents after this one, in the order of their ids; empty at the end.
    pub(crate) async fn read_chunk(
        &self,
        name: &str,
        after: Option<&Bson>,
        limit: i64,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let collection = self.store.database.collection::<RawDocumentBuf>(name);
        let mut find = collection.find(doc! {}).sort(doc! { "_id": 1 }).hint(Hint::Keys(doc! { "_id": 1 }));
        // `$gt` does not cross BSON types, and `min` includes its bound.
        if let Some(after) = after {
            find = find.min(doc! { "_id": after.clone() }).skip(1);
        }
        let read = async { find.limit(limit).read_concern(ReadConcern::majority()).await?.try_collect().await };
        read.await.map_err(|error| self.store.store_error("read scratch documents", error))
    }

    pub(crate) async fn read_by_ids(&self, name: &str, ids: Vec<Bson>) -> Result<Vec<RawDocumentBuf>, Error> {
        let collection = self.store.database.collection::<RawDocumentBuf>(name);
        let find = collection.find(doc! { "_id": { "$in": ids } }).read_concern(ReadConcern::majority());
        let read = async { find.await?.try_collect().await };
        read.await.map_err(|error| self.store.store_error("read scratch documents", error))
    }

    async fn drop_stale(&self) -> Result<(), Error> {
        let names =
            self.store.database.list_collection_names().filter(doc! { "name": { "$regex": format!("^{PREFIX}") } });
        let names = names.await.map_err(|error| self.store.store_error("list scratch collections", error))?;
        // A wrong clock at worst fails the fold of another command.
        for name in names.iter().filter(|name| is_stale(name, DateTime::now())) {
            self.drop_collection(name).await;
        }
        Ok(())
    }
}

fn is_stale(name: &str, now: DateTime) -> bool {
    let id = name.strip_prefix(PREFIX).and_then(|id| ObjectId::parse_str(id).ok());
    let age = id.map(|id| now.timestamp_millis() - id.timestamp().timestamp_millis());
    age.and_then(|age| u64::try_from(age).ok()).is_some_and(|age| Duration::from_millis(age) > STALE_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_scratch_collections_are_stale() {
        let name = format!("{PREFIX}{}", ObjectId::from_parts(1_000_000, [0; 5], [0; 3]));
        let after = |age: Duration| DateTime::from_millis(1_000_000_000 + age.as_millis() as i64);
        assert!(!is_stale(&name, after(STALE_AFTER)));
        assert!(is_stale(&name, after(STALE_AFTER + Duration::from_secs(1))));
        assert!(!is_stale(&name, DateTime::from_millis(0)), "a clock that is behind drops nothing");
        assert!(!is_stale("orders", after(STALE_AFTER * 2)));
    }
}
