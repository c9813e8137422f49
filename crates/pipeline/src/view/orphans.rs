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

/// Far longer than a live pod lets a transaction wait for its next statement.
const QUIET: Duration = Duration::from_secs(2);
/// A look costs the server a list of its operations: no pod looks more often.
const EVERY: Duration = Duration::from_secs(1);
/// A conflict that is over sooner is two live pods meeting.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the read-model connections of a pipeline's pods call themselves (`appName`): by that they know each other's transactions.
pub fn application(pipeline: &str) -> String {
    // The server takes 128 bytes.
    let pipeline: String = pipeline.chars().take(24).collect();
    format!("headwater {pipeline}")
}

#[derive(Debug)]
pub(super) struct Orphans {
    application: String,
    looked: Mutex<Option<Instant>>,
}

impl Orphans {
    pub(super) fn of(pipeline: &str) -> Self {
        Self { application: application(pipeline), looked: Mutex::default() }
    }

    /// Ends what is quiet, unless somebody of this pod has just looked.
    pub(super) async fn end(&self, client: &Client) {
        if !self.is_time(Instant::now()) {
            return;
        }
        match timeout(ANSWER_WITHIN, self.look_and_end(client)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(ended)) => tracing::warn!(ended, "ended transactions that a dead or paused pod had left open"),
            // Not allowed, not known to this server, or not just now: then the server's own limit ends them.
            Ok(Err(error)) => {
                tracing::debug!(error = %mongo_error::DriverError::from(error), "cannot end transactions left open");
            }
            Err(_) => tracing::debug!("cannot end transactions left open: no answer in time"),
        }
    }

    fn is_time(&self, now: Instant) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = looked.is_none_or(|looked| now.duration_since(looked) >= EVERY);
        if is_time {
            *looked = Some(now);
        }
        is_time
    }

    async fn look_and_end(&self, client: &Client) -> Result<usize, mongodb::error::Error> {
        let admin = client.database("admin");
        let quiet = i64::try_from(QUIET.as_micros()).expect("seconds");
        let pipeline = [
            doc! { "$currentOp": { "allUsers": false, "idleSessions": true } },
            doc! { "$match": {
                "type": "idleSession",
                "appName": &self.application,
                "transaction.timeInactiveMicros": { "$gte": quiet },
            } },
            doc! { "$project": { "lsid": 1 } },
        ];
        let found: Vec<Document> = admin.aggregate(pipeline).await?.try_collect().await?;
        let id = |session: &Document| session.get_document("lsid").ok()?.get("id").cloned();
        let sessions: Vec<Bson> = found.iter().filter_map(id).map(|id| Bson::Document(doc! { "id": id })).collect();
        let ended = sessions.len();
        if ended > 0 {
            admin.run_command(doc! { "killSessions": sessions }).await?;
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_looks_once_a_second_at_most() {
        let orphans = Orphans::of("shop");
        let now = Instant::now();
        assert!(orphans.is_time(now));
        assert!(!orphans.is_time(now + EVERY / 2));
        assert!(orphans.is_time(now + EVERY));
    }

    #[test]
    fn a_long_name_still_fits() {
        assert_eq!(application("shop"), "headwater shop");
        assert!(application(&"🦀".repeat(200)).len() <= 128);
    }
}
