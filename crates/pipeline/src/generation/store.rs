//! The generation of one pipeline, in the coordination database. Every write compares the revision, so two pods cannot both change it.

use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use mongodb::{Collection, Database};

use super::document::Generation;
use super::error::{Error, store_error};

/// The collection, in the coordination database.
pub const GENERATIONS: &str = "read_model_generations";
const DUPLICATE_KEY: i32 = 11000;

#[derive(Clone, Debug)]
pub struct GenerationStore {
    generations: Collection<Document>,
    pipeline: String,
}

impl GenerationStore {
    pub fn new(coordination: &Database, pipeline: impl Into<String>) -> Self {
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        Self { generations: coordination.collection_with_options(GENERATIONS, options), pipeline: pipeline.into() }
    }

    pub fn pipeline(&self) -> &str {
        &self.pipeline
    }

    pub async fn load(&self) -> Result<Option<Generation>, Error> {
        let found = self.generations.find_one(doc! { "_id": &self.pipeline }).await;
        found.map_err(store_error("read the generation"))?.as_ref().map(Generation::read).transpose()
    }

    /// Stores the first generation, unless there is one. Returns the stored one.
    pub async fn create(&self, first: Generation) -> Result<Generation, Error> {
        match self.generations.insert_one(first.to_document(&self.pipeline)).await {
            Ok(_) => Ok(first),
            Err(error) if mongo_error::error_code(&error) == Some(DUPLICATE_KEY) => {
                self.load().await?.ok_or(Error::Unreadable("_id"))
            }
            Err(error) => Err(store_error("store the first generation")(error)),
        }
    }

    /// Replaces the document, if nobody else has since `next` was derived from it. `None`: somebody has.
    pub async fn replace(&self, next: Generation) -> Result<Option<Generation>, Error> {
        let expected = doc! { "_id": &self.pipeline, "revision": next.revision };
        let next = Generation { revision: next.revision + 1, ..next };
        let replaced = self.generations.replace_one(expected, next.to_document(&self.pipeline)).await;
        let replaced = replaced.map_err(store_error("store the generation"))?;
        Ok((replaced.matched_count == 1).then_some(next))
    }

    /// Stores the progress of the build of this generation, and no other.
    pub async fn save_build(&self, number: u64, progress: Document) -> Result<(), Error> {
        let building = doc! { "_id": &self.pipeline, "number": i64::try_from(number).unwrap_or(i64::MAX) };
        let saved = self.generations.update_one(building, doc! { "$set": { "build": progress } }).await;
        saved.map(drop).map_err(store_error("store the progress of the build"))
    }
}
