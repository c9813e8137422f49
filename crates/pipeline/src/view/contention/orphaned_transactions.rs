//! Aborts transactions that a dead pod left open.
//!
//! The server keeps the documents of an open transaction locked until its time limit, one minute by default, even if the client is gone; every
//! event on such a document would wait. Our transactions are never idle for long, so an idle one belongs to a dead or paused pod, and any
//! pod may abort it: for a pod that resumes, its transaction failed transiently, and the cursor tells what was applied.
//!
//! Needs no rights beyond writing: a user may list and end its own sessions. If the server refuses, its own time limit applies.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use tokio::time::{Instant, timeout};

use crate::stored::cursors::application_name;

/// Far longer than a live pod pauses between two statements of a transaction.
const IDLE_THRESHOLD: Duration = Duration::from_secs(2);
/// A check makes the server list its operations, so no pod checks more often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A conflict between two live pods ends sooner.
pub(super) const CHECK_AFTER: Duration = Duration::from_millis(700);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for an operation on whole collections, which waits for all open transactions. Aborts orphaned ones if it takes long.
pub(crate) async fn without_orphans<T>(client: &Client, pipeline: &str, operation: impl Future<Output = T>) -> T {
    let orphaned = OrphanedTransactions::new(pipeline);
    tokio::pin!(operation);
    loop {
        match timeout(CHECK_AFTER, &mut operation).await {
            Ok(done) => return done,
            Err(_) => orphaned.abort(client).await,
        }
    }
}

#[derive(Debug)]
pub(super) struct OrphanedTransactions {
    application_name: String,
    last_check: Mutex<Option<Instant>>,
}

impl OrphanedTransactions {
    pub(super) fn new(pipeline: &str) -> Self {
        Self { application_name: application_name(pipeline), last_check: Mutex::default() }
    }

    /// Aborts idle transactions, unless this pod has just checked.
    pub(super) async fn abort(&self, client: &Client) {
        if !self.is_due(Instant::now()) {
            return;
        }
        match timeout(COMMAND_TIMEOUT, self.find_and_kill(client)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(killed)) => tracing::warn!(killed, "aborted orphaned transactions of a dead or paused pod"),
            // Not permitted, not supported, or unavailable: then the server's own time limit ends them.
            Ok(Err(error)) => {
                tracing::debug!(error = %mongo_error::DriverError::from(error), "failed to abort orphaned transactions");
            }
            Err(_) => tracing::debug!("failed to abort orphaned transactions: timed out"),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut last_check = self.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last_check.is_none_or(|last_check| now.duration_since(last_check) >= CHECK_INTERVAL);
        if is_due {
            *last_check = Some(now);
        }
        is_due
    }

    async fn find_and_kill(&self, client: &Client) -> Result<usize, mongodb::error::Error> {
        let admin = client.database("admin");
        let idle_micros = i64::try_from(IDLE_THRESHOLD.as_micros()).expect("seconds");
        let pipeline = [
            doc! { "$currentOp": { "allUsers": false, "idleSessions": true } },
            doc! { "$match": {
                "type": "idleSession",
                "appName": &self.application_name,
                "transaction.timeInactiveMicros": { "$gte": idle_micros },
            } },
            doc! { "$project": { "lsid": 1 } },
        ];
        let found: Vec<Document> = admin.aggregate(pipeline).await?.try_collect().await?;
        let id = |session: &Document| session.get_document("lsid").ok()?.get("id").cloned();
        let sessions: Vec<Bson> = found.iter().filter_map(id).map(|id| Bson::Document(doc! { "id": id })).collect();
        let killed = sessions.len();
        if killed > 0 {
            admin.run_command(doc! { "killSessions": sessions }).await?;
        }
        Ok(killed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_checks_at_most_once_a_second() {
        let orphaned = OrphanedTransactions::new("shop");
        let now = Instant::now();
        assert!(orphaned.is_due(now));
        assert!(!orphaned.is_due(now + CHECK_INTERVAL / 2));
        assert!(orphaned.is_due(now + CHECK_INTERVAL));
    }

    #[test]
    fn a_long_pipeline_name_fits_the_app_name_limit() {
        assert_eq!(application_name("shop"), "headwater shop");
        assert!(application_name(&"🦀".repeat(200)).len() <= 128);
    }
}
