//! Which pipelines ever had a checkpoint, so that one that is gone is told from one that never was.
//!
//! A term above the first is no sign of it: a leader may have died before its first claim. Entered after the checkpoint was
//! made, hence never without one; kept in a collection of its own, so that whatever empties `checkpoints` does not take
//! it along. See docs/decisions/007.

use mongo_error::error_code;
use mongodb::bson::{Document, doc};
use mongodb::options::CollectionOptions;
use mongodb::{Collection, Database};

use super::document::stored_number;
use super::mongo::DUPLICATE_KEY;
use super::store::Claim;

/// The collection of the coordination database that names all pipelines that ever began.
pub const PIPELINES: &str = "pipelines";

#[derive(Clone, Debug)]
pub(super) struct PipelineRegistry(Collection<Document>);

impl PipelineRegistry {
    pub(super) fn new(database: &Database, options: CollectionOptions) -> Self {
        Self(database.collection_with_options(PIPELINES, options))
    }

    pub(super) async fn contains(&self, pipeline: &str) -> Result<bool, mongodb::error::Error> {
        Ok(self.0.find_one(doc! { "_id": pipeline }).await?.is_some())
    }

    /// Enters it once; the first entry stays.
    pub(super) async fn register(&self, pipeline: &str, claim: &Claim) -> Result<(), mongodb::error::Error> {
        let founding = doc! { "term": stored_number(claim.term.get()), "foundedBy": &claim.pod_id };
        let entered = self.0.update_one(doc! { "_id": pipeline }, doc! { "$setOnInsert": founding }).upsert(true);
        match entered.await {
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
