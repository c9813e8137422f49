//! An operator's request that the leader gives its term up: a document in the coordination database, which the leader looks at.
//!
//! Names the term that is to end, so that a late request ends nobody else's. What ends it is the leader itself, in its own order: what was
//! read is sent, the checkpoint saved, the lease given back.

use std::future::IntoFuture;
use std::time::Duration;

use anyhow::bail;
use lease::mongo::MongoLeaseStore;
use lease::{LeaseDocument, Term};
use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, WriteConcern};
use mongodb::{Collection, Database};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::LoopHeartbeat;

pub(crate) const COLLECTION: &str = "step_down";
const FORMAT: i64 = 1;
/// How often a leader looks. Whoever asks waits this long.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A server that answers answers sooner; one that does not is asked again.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Who is asked to give which term up.
#[derive(Clone, Debug)]
pub(crate) struct StepDownRequest {
    pub(crate) leader: String,
    pub(crate) term: Term,
}

/// The request for one pipeline.
pub(crate) struct StepDownStore {
    requests: Collection<Document>,
    pipeline: String,
}

impl StepDownStore {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        let majority = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::majority())
            .build();
        Self { requests: coordination.collection_with_options(COLLECTION, majority), pipeline: pipeline.to_owned() }
    }

    /// Asks whoever leads now; an error also where nobody does.
    pub(crate) async fn request_from_leader(
        &self,
        lease: &MongoLeaseStore,
        by: &str,
    ) -> anyhow::Result<StepDownRequest> {
        let Some(LeaseDocument { leader_id: Some(leader), term, .. }) = lease.read_document().await? else {
            bail!("nobody leads `{}` just now, so there is nobody to step down", self.pipeline);
        };
        self.save_request(term, by).await?;
        Ok(StepDownRequest { leader, term })
    }

    /// Asks whoever leads in this term to give it up.
    async fn save_request(&self, term: Term, by: &str) -> anyhow::Result<()> {
        let term = i64::try_from(term.get())?;
        let update = doc! { "$set": { "format": FORMAT, "term": term, "by": by }, "$currentDate": { "at": true } };
        let asked = self.requests.update_one(doc! { "_id": &self.pipeline }, update).upsert(true).await;
        asked.map(drop).map_err(|error| anyhow::Error::new(DriverError::from(error)).context("ask for a step-down"))
    }

    /// A pod's part, until `stop`: looks while it leads, and does what is asked.
    pub(crate) async fn watch(self, lease: lease::Handle, heartbeat: LoopHeartbeat, stop: CancellationToken) {
        let round = async || {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.poll(&lease).await;
            heartbeat.beat().await;
        };
        // cancel-safe: it only looks
        while stop.run_until_cancelled(round()).await.is_some() {}
        heartbeat.set_idle();
    }

    async fn poll(&self, lease: &lease::Handle) {
        let Some(term) = lease.term() else { return };
        let request = self.requests.find_one(doc! { "_id": &self.pipeline, "format": FORMAT });
        // Out of reach: looked at again; so is one of a version that knows more.
        let Ok(Ok(Some(request))) = timeout(READ_TIMEOUT, request.into_future()).await else { return };
        if request.get_i64("term").ok().and_then(|asked| u64::try_from(asked).ok()) == Some(term.get()) {
            let by = request.get_str("by").unwrap_or("?");
            tracing::info!(pipeline = self.pipeline, %term, by, "asked to step down");
            lease.step_down();
        }
    }
}
