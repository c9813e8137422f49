//! Transactions whose pod died in the middle.
//!
//! The server keeps what they had written locked until their time is over, a minute as it comes, whether or not anybody is left at the other
//! end; every event that touches the same document would wait for that. A transaction of ours is never quiet for long, so one that is
//! belongs to a pod that is dead or paused, and may be ended by any other: for a pod that wakes, it failed in passing, and the cursor knows
//! what became of its events.
//!
//! Needs no more rights than writing does: a user may see and end what is his own. Where the server does not let us, its own limit holds.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use tokio::time::{Instant, timeout};

use crate::stored::cursors::application_name;

/// Far longer than a live pod lets a transaction wait for its next statement.
const IDLE_THRESHOLD: Duration = Duration::from_secs(2);
/// A look costs the server a list of its operations: no pod looks more often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A conflict that is over sooner is two live pods meeting.
pub(super) const CHECK_AFTER: Duration = Duration::from_millis(700);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct OrphanedTransactions {
    application_name: String,
    last_check: Mutex<Option<Instant>>,
}

impl OrphanedTransactions {
    pub(super) fn new(pipeline: &str) -> Self {
        Self { application_name: application_name(pipeline), last_check: Mutex::default() }
    }

    /// Ends what is quiet, unless somebody of this pod has just looked.
    pub(super) async fn abort(&self, client: &Client) {
        if !self.is_due(Instant::now()) {
            return;
        }
        match timeout(COMMAND_TIMEOUT, self.find_and_kill(client)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(killed)) => tracing::warn!(killed, "ended transactions that a dead or paused pod had left open"),
            // Not allowed, not known to this server, or not just now: then the server's own limit ends them.
            Ok(Err(error)) => {
                tracing::debug!(error = %mongo_error::DriverError::from(error), "cannot end transactions left open");
            }
            Err(_) => tracing::debug!("cannot end transactions left open: no answer in time"),
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
