//! Step-down requests: an operator asks the leader to end its term. The request is a document in the coordination database, which the leader polls.
//!
//! A request names the term to end, so that a late request cannot end the term of another leader. The leader stops in its usual order: it publishes
//! what it has read, saves the checkpoint and releases the lease.

use std::future::IntoFuture;
use std::time::Duration;

use anyhow::bail;
use lease::mongo::MongoLeaseStore;
use lease::{LeaseDocument, Term};
use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::LoopHeartbeat;
use crate::coordination_store::majority_collection;

pub(crate) const COLLECTION: &str = "step_down";
const FORMAT: i64 = 1;
/// How often a leader polls: the longest delay of a request.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A read that takes longer is abandoned, and the next poll tries again.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The leader and the term that a request is for.
#[derive(Clone, Debug)]
pub(crate) struct StepDownRequest {
    pub(crate) leader: String,
    pub(crate) term: Term,
}

/// The step-down request of one pipeline.
pub(crate) struct StepDownStore {
    requests: Collection<Document>,
    pipeline: String,
}

impl StepDownStore {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        // A request that is rolled back after a failover must not end a term.
        Self { requests: majority_collection(coordination, COLLECTION), pipeline: pipeline.to_owned() }
    }

    /// Requests that the current leader steps down. Fails if there is no leader.
    pub(crate) async fn request_from_leader(
        &self,
        lease: &MongoLeaseStore,
        by: &str,
    ) -> anyhow::Result<StepDownRequest> {
        let Some(LeaseDocument { leader_id: Some(leader), term, .. }) = lease.read_document().await? else {
            bail!("`{}` has no leader at the moment, so no pod can step down", self.pipeline);
        };
        self.save_request(term, by).await?;
        Ok(StepDownRequest { leader, term })
    }

    /// Stores the request for this term.
    async fn save_request(&self, term: Term, by: &str) -> anyhow::Result<()> {
        let term = i64::try_from(term.get())?;
        let update = doc! { "$set": { "format": FORMAT, "term": term, "by": by }, "$currentDate": { "at": true } };
        let stored = self.requests.update_one(doc! { "_id": &self.pipeline }, update).upsert(true).await;
        stored.map(drop).map_err(|error| {
            anyhow::Error::new(DriverError::from(error)).context("failed to store the step-down request")
        })
    }

    /// Runs in every pod until `stop`. While the pod leads, it polls for a request for its term and steps down.
    pub(crate) async fn watch(self, lease: lease::Handle, heartbeat: LoopHeartbeat, stop: CancellationToken) {
        let round = async || {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.poll(&lease).await;
            heartbeat.beat().await;
        };
        // cancel-safe: it only reads
        while stop.run_until_cancelled(round()).await.is_some() {}
        heartbeat.set_idle();
    }

    async fn poll(&self, lease: &lease::Handle) {
        let Some(term) = lease.term() else { return };
        let request = self.requests.find_one(doc! { "_id": &self.pipeline, "format": FORMAT });
        // Unreachable, or written by a newer version: try again at the next poll.
        let Ok(Ok(Some(request))) = timeout(READ_TIMEOUT, request.into_future()).await else { return };
        // A request for an earlier term is obsolete: that term has ended already.
        if request.get_i64("term").ok().and_then(|requested| u64::try_from(requested).ok()) == Some(term.get()) {
            let by = request.get_str("by").unwrap_or("?");
            tracing::info!(pipeline = self.pipeline, %term, by, "step-down requested");
            lease.step_down();
        }
    }
}
