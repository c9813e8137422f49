//! The progress of the audit in MongoDB, and the claim that lets one pod audit at a time.
//!
//! Every write of an auditor names its claim, so one that was taken over cannot move the progress. A claim is taken from a holder whose heartbeat
//! counter has stood still; no wall clock decides. All times are those of the server, for display and for the schedule.

use mongo_error::error_code;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Collection, Database};

use super::error::{Error, UnauditableReason};
use super::monitor::WaitReason;
use super::record::{AuditHolder, AuditRecord, AuditTotals, FORMAT, NOW, position_document};
use crate::event::{AggregateId, sha256_hex};
use crate::source_walk::WalkPosition;
use crate::stored::majority_collection;

/// The collection in the coordination database; one document per pipeline.
pub const COLLECTION: &str = "audits";

const DUPLICATE_KEY: i32 = 11000;

#[derive(Clone, Debug)]
pub struct AuditStore {
    audits: Collection<Document>,
    pipeline: String,
}

/// Which claims a new one may replace.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimScope<'a> {
    /// Only a free one.
    Free,
    /// Also that of this holder, if it has shown no sign of life since.
    Silent(&'a AuditHolder),
    /// Any: an operator has asked for it.
    Any,
}

/// The part of the progress that changes within a round.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundProgress {
    pub(super) number: u64,
    pub(super) position: Option<WalkPosition>,
    pub(super) totals: AuditTotals,
    pub(super) waiting: Option<WaitReason>,
    pub(super) suspects: u64,
    pub(super) missing: u64,
}

impl AuditStore {
    pub fn new(coordination: &Database, pipeline: impl Into<String>) -> Self {
        Self { audits: majority_collection(coordination, COLLECTION), pipeline: pipeline.into() }
    }

    /// `None` if the audit was never enabled.
    pub async fn load(&self) -> Result<Option<AuditRecord>, Error> {
        let stages = vec![doc! { "$match": { "_id": &self.pipeline } }, doc! { "$set": { NOW: "$$NOW" } }];
        let mut found = self.audits.aggregate(stages).await.map_err(store_error("read"))?;
        if !found.advance().await.map_err(store_error("read"))? {
            return Ok(None);
        }
        let document = found.deserialize_current().map_err(store_error("read"))?;
        AuditRecord::parse(&document).map(Some)
    }

    /// Records that the audit is enabled, once.
    pub(super) async fn enable(&self, unauditable: Option<UnauditableReason>) -> Result<(), Error> {
        let mut stages = vec![doc! { "$set": {
            "format": { "$ifNull": ["$format", FORMAT] },
            "enabledAt": { "$ifNull": ["$enabledAt", "$$NOW"] },
        } }];
        stages.push(match unauditable {
            Some(reason) => doc! { "$set": { "unauditable": reason.code() } },
            None => doc! { "$unset": "unauditable" },
        });
        let enabled = self.audits.update_one(doc! { "_id": &self.pipeline }, stages).upsert(true).await;
        match enabled {
            // Another pod created it at the same time.
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => Ok(()),
            result => result.map(drop).map_err(store_error("create")),
        }
    }

    /// Returns whether the claim is ours now.
    pub(super) async fn claim(&self, pod: &str, id: &str, scope: ClaimScope<'_>) -> Result<bool, Error> {
        let free = doc! { "holder": { "$exists": false } };
        let mut filter = doc! { "_id": &self.pipeline, "format": FORMAT };
        match scope {
            ClaimScope::Free => filter.extend(free),
            ClaimScope::Silent(AuditHolder { id, beat, .. }) => {
                filter.extend(doc! { "$or": [free, { "holder.id": id, "holder.beat": beat }] });
            }
            ClaimScope::Any => {}
        }
        let update = doc! { "$set": { "holder": { "pod": pod, "id": id, "beat": 0_i64 } } };
        let claimed = self.audits.update_one(filter, update).await.map_err(store_error("claim"))?;
        Ok(claimed.matched_count == 1)
    }

    /// Shows that the holder is alive.
    pub(super) async fn beat(&self, id: &str) -> Result<(), Error> {
        self.update_own(id, doc! { "$inc": { "holder.beat": 1_i64 } }).await
    }

    pub(super) async fn release(&self, id: &str) -> Result<(), Error> {
        self.update_own(id, doc! { "$unset": { "holder": "" } }).await
    }

    pub(super) async fn begin_round(&self, id: &str, number: u64) -> Result<(), Error> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let begun = doc! {
            "$set": { "round.number": number, "round.totals": AuditTotals::default().to_document() },
            "$unset": { "round.position": "", "waiting": "", "suspects": "", "missing": "" },
            "$currentDate": { "round.startedAt": true },
        };
        self.update_own(id, begun).await
    }

    pub(super) async fn save(&self, id: &str, progress: &RoundProgress) -> Result<(), Error> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut set = doc! {
            "round.totals": progress.totals.to_document(),
            "suspects": number(progress.suspects),
            "missing": number(progress.missing),
            "waiting": progress.waiting.map(WaitReason::name),
        };
        if let Some(position) = &progress.position {
            set.insert("round.position", position_document(position));
        }
        self.update_own(id, doc! { "$set": set, "$inc": { "holder.beat": 1_i64 } }).await
    }

    pub(super) async fn end_round(&self, id: &str) -> Result<(), Error> {
        let found =
            doc! { "$add": [{ "$ifNull": ["$foundTotal", 0_i64] }, { "$ifNull": ["$round.totals.found", 0_i64] }] };
        let ended = doc! { "$mergeObjects": ["$round", { "endedAt": "$$NOW" }] };
        let stages = vec![
            doc! { "$set": { "last": ended, "foundTotal": found } },
            doc! { "$unset": ["round", "waiting", "suspects", "missing", "last.position"] },
        ];
        let filter = doc! { "_id": &self.pipeline, "holder.id": id };
        let updated = self.audits.update_one(filter, stages).await.map_err(store_error("save"))?;
        if updated.matched_count == 1 { Ok(()) } else { Err(Error::TakenOver) }
    }

    /// Notes that an aggregate is being healed, and returns how many earlier healings began and did not end: their pods crashed meanwhile.
    pub(super) async fn begin_healing(&self, aggregate: &AggregateId) -> Result<u64, Error> {
        let field = healing_field(aggregate);
        let begun = doc! { "$inc": { &field: 1_i64 } };
        let request = self.audits.find_one_and_update(doc! { "_id": &self.pipeline }, begun);
        let before = request.projection(doc! { &field: 1 }).await.map_err(store_error("save"))?;
        let healing = before.as_ref().and_then(|before| before.get_document("healing").ok());
        let attempts = healing.and_then(|healing| healing.values().next()).and_then(Bson::as_i64);
        Ok(attempts.and_then(|attempts| u64::try_from(attempts).ok()).unwrap_or_default())
    }

    pub(super) async fn end_healing(&self, aggregate: &AggregateId) -> Result<(), Error> {
        let ended = doc! { "$unset": { healing_field(aggregate): "" } };
        self.audits.update_one(doc! { "_id": &self.pipeline }, ended).await.map(drop).map_err(store_error("save"))
    }

    async fn update_own(&self, id: &str, update: Document) -> Result<(), Error> {
        let filter = doc! { "_id": &self.pipeline, "holder.id": id };
        let updated = self.audits.update_one(filter, update).await.map_err(store_error("save"))?;
        if updated.matched_count == 1 { Ok(()) } else { Err(Error::TakenOver) }
    }
}

/// A hash: an id may contain personal data, and characters that a field name must not have.
fn healing_field(aggregate: &AggregateId) -> String {
    format!("healing.{}", sha256_hex(&[aggregate.session_id().as_bytes()]))
}

fn store_error(action: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
    move |source| Error::Store { action, source: source.into() }
}
