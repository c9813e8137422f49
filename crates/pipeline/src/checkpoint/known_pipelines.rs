//! The registry of pipelines that ever had a checkpoint. It tells a deleted checkpoint from one that never existed.
//!
//! A term above the first does not tell: a leader may die before its first claim. The entry is written after the checkpoint, so it never exists
//! without one. It lives in its own collection, so that emptying `checkpoints` does not remove it. See docs/decisions/007.

use mongo_error::error_code;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};

use super::document::stored_number;
use super::mongo::DUPLICATE_KEY;
use super::store::CheckpointClaim;
use crate::stored::majority_collection;

/// The collection in the coordination database.
pub const PIPELINES: &str = "pipelines";

#[derive(Clone, Debug)]
pub(super) struct KnownPipelines(Collection<Document>);

impl KnownPipelines {
    pub(super) fn new(database: &Database) -> Self {
        Self(majority_collection(database, PIPELINES))
    }

    pub(super) async fn contains(&self, pipeline: &str) -> Result<bool, mongodb::error::Error> {
        Ok(self.0.find_one(doc! { "_id": pipeline }).await?.is_some())
    }

    /// Idempotent: the first entry stays.
    pub(super) async fn register(&self, pipeline: &str, claim: &CheckpointClaim) -> Result<(), mongodb::error::Error> {
        let entry = doc! { "term": stored_number(claim.term.get()), "foundedBy": &claim.pod_id };
        let registered = self.0.update_one(doc! { "_id": pipeline }, doc! { "$setOnInsert": entry }).upsert(true);
        match registered.await {
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => Ok(()),
            result => result.map(drop),
        }
    }
}
