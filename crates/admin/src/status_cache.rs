//! The last collected status and its history, for the HTTP server to read.
//!
//! The status collector writes with [`StatusCache::store`]; the server only reads. While no client watches, the status is collected rarely, so a
//! request for it waits for the collection that it causes, but not for long: a MongoDB that does not respond delays it by half a second. The
//! response then holds an older status, with its age. Probes and metrics never wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::history::{HistoryPoint, StatusHistory};
use crate::status::PipelineStatus;

/// A dashboard asks every second; after this long without a request no client watches.
const WATCHED_FOR: Duration = Duration::from_secs(10);
/// A status of this age is served as it is: while a client watches, none is older.
const FRESH_FOR: Duration = Duration::from_millis(1_500);
/// How long a request waits for a fresher one.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct StatusCache {
    state: Mutex<CacheState>,
    refresh: Notify,
    stored: Notify,
}

#[derive(Debug, Default)]
struct CacheState {
    latest: Option<(PipelineStatus, Instant)>,
    history: StatusHistory,
    requested_at: Option<Instant>,
}

impl StatusCache {
    /// `collected_at`: when the collection began. What changed after that may be missing.
    pub fn store(&self, status: PipelineStatus, collected_at: Instant) {
        let mut state = self.lock();
        state.history.push(&status);
        state.latest = Some((status, collected_at));
        drop(state);
        self.stored.notify_waiters();
    }

    /// Requests a refresh, and waits for it if the last status is too old to show: a leader may have changed since.
    pub async fn refreshed(&self) -> Option<PipelineStatus> {
        let requested_at = Instant::now();
        self.request_refresh(requested_at);
        let is_fresh = || self.lock().latest.as_ref().is_some_and(|(_, at)| *at + FRESH_FOR >= requested_at);
        let wait = async {
            loop {
                let stored = self.stored.notified();
                let mut stored = std::pin::pin!(stored);
                // Before the check, so that a status stored in between is not missed.
                stored.as_mut().enable();
                if is_fresh() {
                    return;
                }
                stored.await;
            }
        };
        let _ = timeout(REFRESH_TIMEOUT, wait).await;
        self.latest(Instant::now())
    }

    /// The last stored status with its age; `None` before the first.
    pub fn latest(&self, now: Instant) -> Option<PipelineStatus> {
        let state = self.lock();
        let (status, collected_at) = state.latest.as_ref()?;
        let mut status = status.clone();
        status.collected.seconds_ago = now.saturating_duration_since(*collected_at).as_secs_f64();
        Some(status)
    }

    pub fn history(&self) -> Vec<HistoryPoint> {
        self.lock().history.points()
    }

    /// Wakes the status collector.
    pub fn request_refresh(&self, now: Instant) {
        self.lock().requested_at = Some(now);
        self.refresh.notify_one();
    }

    /// Whether the status was requested within the last seconds.
    pub fn is_watched(&self, now: Instant) -> bool {
        self.lock().requested_at.is_some_and(|at| now.saturating_duration_since(at) < WATCHED_FOR)
    }

    /// Waits for a refresh request. Returns at once if there was one since the last call.
    pub async fn refresh_requested(&self) {
        self.refresh.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::CollectionInfo;

    #[test]
    fn the_latest_status_carries_its_age() {
        let (cache, start) = (StatusCache::default(), Instant::now());
        assert_eq!(cache.latest(start), None);
        cache.store(PipelineStatus::unknown("shop", CollectionInfo::default()), start);
        let latest = cache.latest(start + Duration::from_millis(2_500)).unwrap();
        assert_eq!(latest.collected.seconds_ago, 2.5);
        assert_eq!(cache.history().len(), 1);
    }

    #[test]
    fn the_cache_is_watched_for_a_while_after_a_request() {
        let (cache, start) = (StatusCache::default(), Instant::now());
        assert!(!cache.is_watched(start));
        cache.request_refresh(start);
        assert!(cache.is_watched(start + WATCHED_FOR / 2));
        assert!(!cache.is_watched(start + WATCHED_FOR));
    }
}
