//! How pods know each other: each keeps a document in `pods` up to date, and records in `terms` when it was the leader.
//!
//! Both collections are for display. No decision depends on them, so write concern 1 is enough, and the next announcement replaces a failed one. All
//! times are the server's. A pod that stops removes its document; the document of a crashed pod goes silent, and another pod removes it after an hour.

mod announcement;
mod announcer;

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Collection, Database};

pub(crate) use announcement::{AnnouncedPod, Announcement, LastApplied, quantiles, to_seconds};
pub(crate) use announcer::Announcer;

/// Collection of announcements of all pipelines, in the coordination database.
pub(crate) const PODS: &str = "pods";
/// Collection of recorded terms, likewise.
pub(crate) const TERMS: &str = "terms";
/// In every document of both collections.
const FORMAT: i32 = 1;

/// How often a pod announces itself.
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// A pod is silent after this long without an announcement; some may be lost or late.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(10);
/// A pod that was silent for this long is removed.
const REMOVED_AFTER: Duration = Duration::from_secs(3_600);
/// How many recorded terms are kept.
const MAX_TERMS: i64 = 200;

/// A pod of a version without generations is gone after this long without an announcement.
const FENCED_AFTER: Duration = Duration::from_secs(60);

/// Whether the live pods propose the same read models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    Same,
    Different,
}

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
        // As literals, because a name may begin with `$`.
        let update = doc! { "$replaceWith": { "$mergeObjects": [
            { "_id": { "$literal": self.id() } }, { "$literal": fields }, seen,
        ] } };
        self.pods.update_one(doc! { "_id": self.id() }, vec![update]).upsert(true).await?;
        Ok(())
    }

    /// Removes the announcement of this pod.
    pub(crate) async fn remove_announcement(&self) -> Result<(), DriverError> {
        self.pods.delete_one(doc! { "_id": self.id() }).await?;
        Ok(())
    }

    pub(crate) async fn record_term_start(&self, term: u64) -> Result<(), DriverError> {
        let fields =
            doc! { "format": FORMAT, "pod": { "$literal": &self.pod }, "began": { "$ifNull": ["$began", "$$NOW"] } };
        let set = vec![doc! { "$set": fields }];
        self.terms.update_one(doc! { "_id": self.term_id(term) }, set).upsert(true).await?;
        let old = to_bson_int(term) - MAX_TERMS;
        self.terms
            .delete_many(
                doc! { "_id": { "$gte": self.term_id(0), "$lt": { "pipeline": &self.pipeline, "term": old } } },
            )
            .await?;
        Ok(())
    }

    pub(crate) async fn record_term_end(&self, term: u64) -> Result<(), DriverError> {
        let own = doc! { "_id": self.term_id(term), "ended": { "$exists": false } };
        self.terms.update_one(own, doc! { "$currentDate": { "ended": true } }).await?;
        Ok(())
    }

    /// Whether all live pods propose the read models that this pod does.
    pub(crate) async fn agreement(&self) -> Result<Agreement, DriverError> {
        let age = doc! { "$subtract": ["$$NOW", "$seenAt"] };
        let is_younger =
            |limit: Duration| doc! { "$lte": [&age, i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)] };
        let stages = [
            doc! { "$match": { "_id.pipeline": &self.pipeline } },
            doc! { "$project": {
                "generation": 1, "applies": 1, "live": is_younger(SILENT_AFTER), "recent": is_younger(FENCED_AFTER),
            } },
        ];
        let mut found = self.pods.aggregate(stages).await?;
        let mut proposals = vec![];
        while found.advance().await? {
            let pod = found.deserialize_current()?;
            let is = |field: &str| pod.get_bool(field).unwrap_or(false);
            // A version without generations may come back after a pause, and nothing but the fence could stop it.
            if is("recent") && read_u64(pod.get("applies")).is_none() {
                return Ok(Agreement::Different);
            }
            if is("live") {
                proposals.push((pod.get_document("_id").cloned().unwrap_or_default(), pod.get("generation").cloned()));
            }
        }
        let own = proposals.iter().find(|(id, _)| *id == self.id()).map(|(_, proposal)| proposal.clone());
        let same = own.is_some_and(|own| proposals.iter().all(|(_, proposal)| *proposal == own));
        Ok(if same { Agreement::Same } else { Agreement::Different })
    }

    /// Removes pods of this pipeline that crashed long ago.
    pub(crate) async fn remove_dead_pods(&self) -> Result<(), DriverError> {
        let long_ago = doc! { "$subtract": ["$$NOW", i64::try_from(REMOVED_AFTER.as_millis()).unwrap_or(i64::MAX)] };
        let dead = doc! { "_id.pipeline": &self.pipeline, "$expr": { "$lt": ["$seenAt", long_ago] } };
        self.pods.delete_many(dead).await?;
        Ok(())
    }

    fn id(&self) -> Document {
        doc! { "pipeline": &self.pipeline, "pod": &self.pod }
    }

    fn term_id(&self, term: u64) -> Document {
        doc! { "pipeline": &self.pipeline, "term": to_bson_int(term) }
    }
}

/// How many leases a live pod leads, as it announced for one of its pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedLeases {
    pub(crate) pipeline: String,
    pub(crate) pod: String,
    pub(crate) leads: usize,
}

/// What the live pods of these pipelines announced last. Pods of a version that does not count its leases are left out.
pub(crate) async fn read_leases(
    coordination: &Database,
    pipelines: &[String],
) -> Result<Vec<AnnouncedLeases>, DriverError> {
    let limit = i64::try_from(SILENT_AFTER.as_millis()).unwrap_or(i64::MAX);
    let live = doc! { "$expr": { "$lte": [{ "$subtract": ["$$NOW", "$seenAt"] }, limit] } };
    let stages = [
        doc! { "$match": { "_id.pipeline": { "$in": pipelines }, "leads": { "$exists": true } } },
        doc! { "$match": live },
        doc! { "$project": { "leads": 1 } },
    ];
    let mut found = coordination.collection::<Document>(PODS).aggregate(stages).await?;
    let mut announced = vec![];
    while found.advance().await? {
        let pod = found.deserialize_current()?;
        let id = pod.get_document("_id").cloned().unwrap_or_default();
        let text = |field| id.get_str(field).map(str::to_owned).ok();
        let leads = read_u64(pod.get("leads")).and_then(|leads| usize::try_from(leads).ok());
        if let (Some(pipeline), Some(pod), Some(leads)) = (text("pipeline"), text("pod"), leads) {
            announced.push(AnnouncedLeases { pipeline, pod, leads });
        }
    }
    Ok(announced)
}

/// BSON has no unsigned 64-bit integer.
fn to_bson_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// `None` for a negative number or another type.
pub(crate) fn read_u64(value: Option<&Bson>) -> Option<u64> {
    match value? {
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Int32(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
