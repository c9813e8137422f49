//! Walks the cursors that do not hold for a generation yet, in the order of their ids.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};

use super::error::{Error, store_error};
use crate::event::{AggregateId, Epoch};
use crate::stored::cursors::{CURSORS, FLOOR_COLLECTION};
use crate::view::PositionKey;

/// An aggregate that a build has to apply.
#[derive(Clone, Debug)]
pub(super) struct UnbuiltCursor {
    pub(super) id: Bson,
    pub(super) aggregate: AggregateId,
    pub(super) collection: Option<String>,
    pub(super) sequence: Option<i64>,
    pub(super) first_sequence: Option<i64>,
    pub(super) position: Option<PositionKey>,
    /// The build has applied events up to this sequence.
    pub(super) built: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct CursorWalk {
    cursors: Collection<Document>,
    pipeline: String,
    generation: i64,
}

impl CursorWalk {
    pub(super) fn new(views: &Database, pipeline: &str, generation: u64) -> Self {
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let generation = i64::try_from(generation).unwrap_or(i64::MAX);
        Self { cursors: views.collection_with_options(CURSORS, options), pipeline: pipeline.to_owned(), generation }
    }

    /// At most `limit` cursors after this id. Unreadable ones count as well: the live applier reports them.
    pub(super) async fn next(&self, after: Option<&Bson>, limit: i64) -> Result<Vec<UnbuiltCursor>, Error> {
        let failed = store_error("read cursors");
        let found = self.cursors.find(self.filter(after)).sort(doc! { "_id": 1 }).limit(limit);
        let found = match found.await {
            Ok(found) => found.try_collect::<Vec<Document>>().await,
            Err(error) => Err(error),
        };
        Ok(found.map_err(failed)?.iter().filter_map(|cursor| self.read(cursor)).collect())
    }

    /// All cursors of the pipeline, about.
    pub(super) async fn count(&self) -> Result<u64, Error> {
        let all = doc! { "_id": self.range(None) };
        self.cursors.count_documents(all).await.map_err(store_error("count cursors"))
    }

    /// Those that are left, about.
    pub(super) async fn count_unbuilt(&self) -> Result<u64, Error> {
        self.cursors.count_documents(self.filter(None)).await.map_err(store_error("count cursors"))
    }

    fn filter(&self, after: Option<&Bson>) -> Document {
        doc! {
            "_id": self.range(after),
            "_id.collection": { "$ne": FLOOR_COLLECTION },
            "holds": { "$not": { "$gte": self.generation } },
        }
    }

    /// Ids are compared field by field, and the pipeline is the first one.
    fn range(&self, after: Option<&Bson>) -> Document {
        let above = after.cloned().unwrap_or_else(|| Bson::Document(doc! { "pipeline": &self.pipeline }));
        doc! { "$gt": above, "$lt": { "pipeline": &self.pipeline, "aggregate": Bson::MaxKey } }
    }

    fn read(&self, cursor: &Document) -> Option<UnbuiltCursor> {
        let id = cursor.get_document("_id").ok()?;
        let build = cursor.get_document("build").ok();
        let build = build.filter(|build| number(build, "generation") == Some(self.generation));
        let epoch = cursor.get_i64("epoch").ok().map(|epoch| Epoch::new(epoch.unsigned_abs()));
        let position = epoch.zip(cursor.get_str("position").ok());
        Some(UnbuiltCursor {
            aggregate: AggregateId::new(id.get("aggregate")?.clone())?,
            collection: id.get_str("collection").ok().map(str::to_owned),
            id: Bson::Document(id.clone()),
            sequence: number(cursor, "sequence"),
            first_sequence: number(cursor, "firstSequence"),
            position: position.map(|(epoch, key)| PositionKey::new(epoch, key)),
            built: build.and_then(|build| number(build, "sequence")),
        })
    }
}

fn number(document: &Document, field: &str) -> Option<i64> {
    match document.get(field)? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some(i64::from(*number)),
        _ => None,
    }
}
