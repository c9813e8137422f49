//! How pods know of each other: each keeps a document in `pods` up to date, and writes down in `terms` when it led.
//!
//! Both collections are for people: nothing is decided by them, so one member's word is enough, and a write that fails is tried again with
//! the next. Times are the server's. A pod that stops takes its document along; one that crashed is left, falls silent, and is swept by
//! another after an hour.

mod announcement;
mod announcer;

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Collection, Database};

pub(crate) use announcement::{AnnouncedPod, Announcement, LastApplied, quantiles, seconds};
pub(crate) use announcer::Announcer;

/// Documents of the pods of all pipelines, in the coordination database.
pub(crate) const PODS: &str = "pods";
/// Who led when, likewise.
pub(crate) const TERMS: &str = "terms";
/// Kept in every document of both.
const FORMAT: i32 = 1;

/// How often a pod is heard of.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// After which it is called silent: some announcements may be lost or late.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(10);
/// Silent for so long, a pod is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// How many terms are kept.
const TERMS_KEPT: i64 = 200;

/// The two collections, as one pod writes them.
#[derive(Clone, Debug)]
pub(crate) struct PodRegistry {
    pods: Collection<Document>,
    terms: Collection<Document>,
    pipeline: String,
    pod: String,
}

impl PodRegistry {
    pub(crate) fn new(coordination: &Database, pipeline: impl Into<String>, pod: impl Into<String>) -> Self {
        let one = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
        let options = CollectionOptions::builder().write_concern(one).build();
        Self {
            pods: coordination.collection_with_options(PODS, options.clone()),
            terms: coordination.collection_with_options(TERMS, options),
            pipeline: pipeline.into(),
            pod: pod.into(),
        }
    }

    pub(crate) async fn announce(&self, announcement: &Announcement) -> Result<(), DriverError> {
        let mut fields = announcement.to_document();
        fields.insert("format", FORMAT);
        let seen = doc! { "seenAt": "$$NOW", "startedAt": { "$ifNull": ["$startedAt", "$$NOW"] } };
        // As literals: a name may begin with `$`.
        let update = doc! { "$replaceWith": { "$mergeObjects": [
            { "_id": { "$literal": self.id() } }, { "$literal": fields }, seen,
        ] } };
        self.pods.update_one(doc! { "_id": self.id() }, vec![update]).upsert(true).await?;
        Ok(())
    }

    /// Takes this pod's document away.
    pub(crate) async fn leave(&self) -> Result<(), DriverError> {
        self.pods.delete_one(doc! { "_id": self.id() }).await?;
        Ok(())
    }

    pub(crate) async fn term_began(&self, term: u64) -> Result<(), DriverError> {
        let fields =
            doc! { "format": FORMAT, "pod": { "$literal": &self.pod }, "began": { "$ifNull": ["$began", "$$NOW"] } };
        let set = vec![doc! { "$set": fields }];
        self.terms.update_one(doc! { "_id": self.term_id(term) }, set).upsert(true).await?;
        let old = number(term) - TERMS_KEPT;
        self.terms
            .delete_many(
                doc! { "_id": { "$gte": self.term_id(0), "$lt": { "pipeline": &self.pipeline, "term": old } } },
            )
            .await?;
        Ok(())
    }

    pub(crate) async fn term_ended(&self, term: u64) -> Result<(), DriverError> {
        let own = doc! { "_id": self.term_id(term), "ended": { "$exists": false } };
        self.terms.update_one(own, doc! { "$currentDate": { "ended": true } }).await?;
        Ok(())
    }

    /// Forgets pods of this pipeline that crashed long ago.
    pub(crate) async fn sweep(&self) -> Result<(), DriverError> {
        let long_ago = doc! { "$subtract": ["$$NOW", i64::try_from(FORGOTTEN_AFTER.as_millis()).unwrap_or(i64::MAX)] };
        let forgotten = doc! { "_id.pipeline": &self.pipeline, "$expr": { "$lt": ["$seenAt", long_ago] } };
        self.pods.delete_many(forgotten).await?;
        Ok(())
    }

    fn id(&self) -> Document {
        doc! { "pipeline": &self.pipeline, "pod": &self.pod }
    }

    fn term_id(&self, term: u64) -> Document {
        doc! { "pipeline": &self.pipeline, "term": number(term) }
    }
}

/// BSON has no unsigned 64-bit number.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn natural(value: Option<&Bson>) -> Option<u64> {
    match value? {
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Int32(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
