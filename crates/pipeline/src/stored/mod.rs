//! Data in MongoDB that several stations read or write, so that no station depends on another for it.
//!
//! [`claim_check`]: the publisher writes bodies, consumers read them. [`cursors`]: consumers write cursors, the sweep of capture reads them and raises the
//! epoch floor. [`identity`]: when two keys are equal to MongoDB. Holds names, formats and stores; never decides what an event means. The
//! checkpoint is a station of its own: [`crate::checkpoint`].

pub mod claim_check;
pub mod cursors;
pub mod identity;

use mongodb::bson::Document;
use mongodb::options::{
    Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Collection, Database};

pub use claim_check::ClaimCheckStore;
pub use identity::Identity;

/// A collection with majority read and write concern, read from the primary.
pub(crate) fn majority_collection(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    database.collection_with_options(name, options)
}
