//! The checkpoint in MongoDB: compare-and-set on the term, so a deposed leader cannot move it.
//!
//! Uses majority read and write concern throughout. A claim first validates the stored document; then one statement decides, writes and returns it. A
//! save is one statement whose filter is the fence; only a refused save needs a second read, to explain the refusal (`refusal.rs`).

use mongo_error::error_code;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{Collation, ReturnDocument};
use mongodb::{Collection, Database};

use super::document::{
    CLUSTER, FORMAT, REPLAY, SESSIONS, SNAPSHOT, STREAM, StoredCheckpoint, UNSTARTED, phase_fields, stored_number,
};
use super::error::Error;
use super::known_pipelines::KnownPipelines;
use super::refusal;
use super::store::{Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, PipelineIdentity, SaveResult};
use crate::event::Epoch;
use crate::failpoints::Failpoint;
use crate::stored::majority_collection;

/// The collection in the coordination database; one document per pipeline.
pub const COLLECTION: &str = "checkpoints";

pub(super) const DUPLICATE_KEY: i32 = 11000;

/// The checkpoint of one pipeline.
#[derive(Clone, Debug)]
pub struct MongoCheckpointStore {
    checkpoints: Collection<Document>,
    registry: KnownPipelines,
    pipeline: String,
    fingerprint: String,
}

impl MongoCheckpointStore {
    /// `fingerprint` identifies the source; a checkpoint with another fingerprint is never written.
    pub fn new(database: &Database, pipeline: impl Into<String>, fingerprint: impl Into<String>) -> Self {
        let registry = KnownPipelines::new(database);
        let checkpoints = majority_collection(database, COLLECTION);
        Self { checkpoints, registry, pipeline: pipeline.into(), fingerprint: fingerprint.into() }
    }

    /// `None` if there is no document and `create` is false.
    async fn submit_claim(
        &self,
        claim: &CheckpointClaim,
        create: bool,
    ) -> Result<Option<Document>, mongodb::error::Error> {
        let request = self.checkpoints.find_one_and_update(doc! { "_id": &self.pipeline }, self.claim_update(claim));
        request.upsert(create).return_document(ReturnDocument::After).collation(byte_order()).await
    }

    /// Decides inside the update, because the filter of an upsert cannot: creates a missing document, raises ours to a higher term, and
    /// leaves any other document unchanged.
    fn claim_update(&self, claim: &CheckpointClaim) -> Vec<Document> {
        let (term, claimant) = (stored_number(claim.term.get()), claim.claimant.to_string());
        let absent = doc! { "$eq": ["$$ROOT", { "_id": literal(&self.pipeline) }] };
        let ours = doc! { "$and": [
            { "$eq": ["$format", FORMAT] },
            { "$eq": ["$fingerprint", literal(&self.fingerprint)] },
            { "$in": [{ "$type": "$term" }, ["int", "long"]] },
        ] };
        let same = doc! { "$and": [{ "$eq": ["$term", term] }, { "$eq": ["$claimedBy", claimant.clone()] }] };
        let higher = doc! { "$or": [{ "$lt": ["$term", term] }, same] };
        let mut fresh = doc! { "_id": literal(&self.pipeline), "format": FORMAT };
        fresh.extend(phase_fields(&CheckpointPhase::Unstarted));
        fresh.extend(doc! {
            "term": term,
            "claimedBy": claimant.clone(),
            "epoch": stored_number(Epoch::FIRST.get()),
            "clusterTime": Bson::Null,
            "savedAt": "$$NOW",
            "savedBy": literal(&claim.pod_id),
            "savedIn": term,
            "fingerprint": literal(&self.fingerprint),
        });
        let raised = doc! { "$mergeObjects": ["$$ROOT", { "term": term, "claimedBy": claimant }] };
        let branches =
            vec![doc! { "case": absent, "then": fresh }, doc! { "case": { "$and": [ours, higher] }, "then": raised }];
        vec![doc! { "$replaceWith": { "$switch": { "branches": branches, "default": "$$ROOT" } } }]
    }

    /// The fence: matches only this document, of this source, in this term.
    fn fence(&self, claim: &CheckpointClaim, epoch: Epoch) -> Document {
        doc! {
            "_id": &self.pipeline,
            "format": FORMAT,
            "fingerprint": &self.fingerprint,
            "term": stored_number(claim.term.get()),
            "claimedBy": claim.claimant.to_string(),
            "epoch": stored_number(epoch.get()),
        }
    }

    /// Moves the checkpoint anywhere, for an operator who has just claimed it. Raises the replay counter. `new_epoch`: tokens of the new
    /// position do not compare with those before. `cluster` now holds the source, if it is known.
    pub async fn move_to(
        &self,
        claim: &CheckpointClaim,
        claimed: &Checkpoint,
        phase: &CheckpointPhase,
        new_epoch: bool,
        cluster: Option<&str>,
    ) -> Result<(), Error> {
        let epoch = if new_epoch { claimed.epoch.next() } else { claimed.epoch };
        // Nothing is published yet; a program that published before used the same message ids, and duplicate detection may compare them.
        let is_new = claimed.phase == CheckpointPhase::Unstarted;
        let replay = if is_new { claimed.replay } else { claimed.replay.next() };
        let mut set = phase_fields(phase);
        set.extend(doc! {
            "epoch": stored_number(epoch.get()),
            REPLAY: stored_number(replay.get()),
            CLUSTER: cluster.or(claimed.identity.cluster.as_deref()),
            "clusterTime": Bson::Null,
        });
        set.extend(saved_by(claim));
        if self.submit(self.fence(claim, claimed.epoch), set).await?.is_some() {
            return Ok(());
        }
        self.explain_refusal(claim).await
    }

    /// Records the identity of the pipeline, in the claimed term.
    pub async fn record_identity(
        &self,
        claim: &CheckpointClaim,
        epoch: Epoch,
        identity: &PipelineIdentity,
    ) -> Result<(), Error> {
        let PipelineIdentity { cluster, sessions } = identity;
        let set = doc! { CLUSTER: cluster.as_deref(), SESSIONS: sessions.as_deref() };
        if self.submit(self.fence(claim, epoch), set).await?.is_some() {
            return Ok(());
        }
        self.explain_refusal(claim).await
    }

    async fn explain_refusal(&self, claim: &CheckpointClaim) -> Result<(), Error> {
        refusal::check_claim(&self.pipeline, &self.load_after_refusal().await?, claim)?;
        Err(Error::Indeterminate { pipeline: self.pipeline.clone(), term: claim.term })
    }

    /// Applies one fenced update; `None` if the fence refuses it.
    async fn submit(&self, filter: Document, set: Document) -> Result<Option<Document>, Error> {
        let update = doc! { "$set": set, "$currentDate": { "savedAt": true } };
        let request = self.checkpoints.find_one_and_update(filter, update).collation(byte_order());
        request.projection(doc! { "_id": 1 }).await.map_err(self.store_error("save"))
    }

    /// The majority-committed document after a refusal.
    async fn load_after_refusal(&self) -> Result<StoredCheckpoint, Error> {
        self.find().await?.ok_or_else(|| Error::Deleted { pipeline: self.pipeline.clone() })
    }

    async fn find(&self) -> Result<Option<StoredCheckpoint>, Error> {
        let found =
            self.checkpoints.find_one(doc! { "_id": &self.pipeline }).await.map_err(self.store_error("read"))?;
        found.map(|document| StoredCheckpoint::parse(&self.pipeline, &self.fingerprint, &document)).transpose()
    }

    fn store_error(&self, operation: &'static str) -> impl FnOnce(mongodb::error::Error) -> Error {
        let pipeline = self.pipeline.clone();
        move |source| Error::Store { operation, pipeline, source: source.into() }
    }
}

impl CheckpointStore for MongoCheckpointStore {
    async fn claim(&self, claim: &CheckpointClaim) -> Result<Checkpoint, Error> {
        // Read the registry first: a registered pipeline has had a checkpoint, so a missing document is an error.
        let is_registered = self.registry.contains(&self.pipeline).await.map_err(self.store_error("claim"))?;
        // Fails on an unreadable document before the claim writes a term into it.
        self.find().await?;
        let claimed = match self.submit_claim(claim, !is_registered).await {
            // Two upserts raced. The document exists now, so the second attempt is an update.
            Err(error) if error_code(&error) == Some(DUPLICATE_KEY) => self.submit_claim(claim, !is_registered).await,
            result => result,
        };
        let claimed = claimed.map_err(self.store_error("claim"))?;
        let document = claimed.ok_or_else(|| Error::Missing { pipeline: self.pipeline.clone(), term: claim.term })?;
        let StoredCheckpoint { checkpoint, claimant } =
            StoredCheckpoint::parse(&self.pipeline, &self.fingerprint, &document)?;
        if !is_registered {
            self.registry.register(&self.pipeline, claim).await.map_err(self.store_error("claim"))?;
        }
        if checkpoint.term == claim.term && claimant == claim.claimant.to_string() {
            return Ok(checkpoint);
        }
        Err(Error::TermBehind { pipeline: self.pipeline.clone(), term: claim.term, stored: checkpoint.term })
    }

    async fn save(
        &self,
        claim: &CheckpointClaim,
        epoch: Epoch,
        phase: &CheckpointPhase,
        cluster_time: Option<Timestamp>,
    ) -> Result<SaveResult, Error> {
        let mut filter = self.fence(claim, epoch);
        filter.extend(not_behind(phase));
        if Failpoint::NoFence.is_enabled() {
            filter = doc! { "_id": &self.pipeline };
        }
        let mut set = phase_fields(phase);
        set.extend(doc! { "clusterTime": cluster_time });
        set.extend(saved_by(claim));
        if self.submit(filter, set).await?.is_some() {
            return Ok(SaveResult::Saved);
        }
        refusal::explain_save(&self.pipeline, &self.load_after_refusal().await?, claim, epoch, phase)
    }

    async fn begin_epoch(
        &self,
        claim: &CheckpointClaim,
        ended: Epoch,
        phase: &CheckpointPhase,
    ) -> Result<Epoch, Error> {
        let begun = ended.next();
        let mut set = phase_fields(phase);
        set.extend(doc! { "epoch": stored_number(begun.get()), "clusterTime": Bson::Null });
        set.extend(saved_by(claim));
        if self.submit(self.fence(claim, ended), set).await?.is_some() {
            return Ok(begun);
        }
        refusal::explain_begin_epoch(&self.pipeline, &self.load_after_refusal().await?, claim, ended, phase)
    }

    async fn load(&self) -> Result<Option<Checkpoint>, Error> {
        Ok(self.find().await?.map(|stored| stored.checkpoint))
    }
}

/// Who saved, for operators and for tests of the fence. `term` holds the last claim instead.
fn saved_by(claim: &CheckpointClaim) -> Document {
    doc! { "savedBy": &claim.pod_id, "savedIn": stored_number(claim.term.get()) }
}

/// Matches a stored phase that is not ahead of `phase`. `refusal.rs` implements the same order in Rust.
fn not_behind(phase: &CheckpointPhase) -> Document {
    match phase {
        CheckpointPhase::Unstarted => doc! { "phase": UNSTARTED },
        CheckpointPhase::Snapshot { start, progress } => {
            let same_run = doc! {
                "phase": SNAPSHOT,
                "position": start.key(),
                "snapshot.run": &progress.run,
                "snapshot.scanned": { "$lte": stored_number(progress.scanned) },
            };
            doc! { "$or": [{ "phase": UNSTARTED }, same_run] }
        }
        CheckpointPhase::Stream { token } => {
            doc! { "phase": { "$in": [UNSTARTED, SNAPSHOT, STREAM] }, "position": { "$lte": token.key() } }
        }
    }
}

/// Tokens are ordered byte by byte, whatever the collation of the collection.
fn byte_order() -> Collation {
    Collation::builder().locale("simple").build()
}

/// Keeps a name that starts with `$` from being read as an expression.
fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}
