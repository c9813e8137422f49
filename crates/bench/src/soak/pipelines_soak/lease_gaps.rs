//! How long each lease has no holder, by the clock of MongoDB: from the change that releases it to the change that takes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Bson, DateTime, Document};
use mongodb::change_stream::ChangeStream;
use testkit::cluster::TestCluster;
use tokio::task::JoinHandle;

use crate::latency::LatencySummary;
use crate::soak::consumer_soak::Error;

const LEASES: &str = "leader_leases";
const HOLDER: &str = "leaderId";

/// Watches the leases until it is finished.
pub(super) struct LeaseGapWatch {
    gaps: Arc<Mutex<Vec<Duration>>>,
    task: JoinHandle<()>,
}

impl LeaseGapWatch {
    pub(super) async fn start(cluster: &TestCluster) -> Result<Self, Error> {
        let leases = cluster.coordination().collection::<Document>(LEASES);
        let changes = leases.watch().await?.with_type::<Document>();
        let gaps = Arc::<Mutex<Vec<Duration>>>::default();
        let task = tokio::spawn(record(changes, Arc::clone(&gaps)));
        Ok(Self { gaps, task })
    }

    pub(super) fn count(&self) -> usize {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn finish(self) -> LatencySummary {
        self.task.abort();
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

async fn record(mut changes: ChangeStream<Document>, gaps: Arc<Mutex<Vec<Duration>>>) {
    let mut released = HashMap::<String, DateTime>::new();
    while let Some(Ok(change)) = changes.next().await {
        let Some((lease, at)) = lease_and_time(&change) else { continue };
        if is_release(&change) {
            released.insert(lease, at);
        } else if is_acquisition(&change)
            && let Some(since) = released.remove(&lease)
        {
            let gap = at.timestamp_millis().saturating_sub(since.timestamp_millis());
            let gap = Duration::from_millis(u64::try_from(gap).unwrap_or_default());
            gaps.lock().unwrap_or_else(PoisonError::into_inner).push(gap);
        }
    }
}

fn lease_and_time(change: &Document) -> Option<(String, DateTime)> {
    let lease = change.get_document("documentKey").ok()?.get_str("_id").ok()?;
    Some((lease.to_owned(), *change.get_datetime("wallTime").ok()?))
}

fn is_release(change: &Document) -> bool {
    let removed = change.get_document("updateDescription").and_then(|update| update.get_array("removedFields"));
    removed.is_ok_and(|removed| removed.contains(&Bson::from(HOLDER)))
}

fn is_acquisition(change: &Document) -> bool {
    let updated = change.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    updated.or_else(|_| change.get_document("fullDocument")).is_ok_and(|fields| fields.contains_key(HOLDER))
}
