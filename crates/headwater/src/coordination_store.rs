//! What all stores in the coordination database have in common.

use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, WriteConcern};
use mongodb::{Collection, Database};

/// A collection that reads and writes only what no failover rolls back.
pub(crate) fn majority_collection(coordination: &Database, name: &str) -> Collection<Document> {
    let majority = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::majority())
        .build();
    coordination.collection_with_options(name, majority)
}

/// Matches ids that begin with the name of the pipeline, with the `_id` index.
pub(crate) fn of_pipeline(pipeline: &str) -> Document {
    let above = format!("{pipeline}\0");
    doc! { "_id": { "$gte": { "pipeline": pipeline }, "$lt": { "pipeline": above } } }
}
