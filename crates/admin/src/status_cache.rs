//! The last collected status and its history, for the HTTP server to read.
//!
//! The status collector writes with [`StatusCache::store`]; the server only reads. So a MongoDB that does not respond cannot delay an HTTP
//! response: the response then holds an older status, with its age.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::history::{HistoryPoint, StatusHistory};
use crate::status::PipelineStatus;

/// A dashboard asks every second; after this long without a request no client watches.
const WATCHED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct StatusCache {
    state: Mutex<CacheState>,
    refresh: Notify,
}

#[derive(Debug, Default)]
struct CacheState {
    latest: Option<(PipelineStatus, Instant)>,
    history: StatusHistory,
    requested_at: Option<Instant>,
}

impl StatusCache {
    pub fn store(&self, status: PipelineStatus, now: Instant) {
        let mut state = self.lock();
        state.history.push(&status);
        state.latest = Some((status, now));
    }

    /// The last stored status with its age; `None` before the first.
    pub fn latest(&self, now: Instant) -> Option<PipelineStatus> {
        let state = self.lock();
        let (status, stored_at) = state.latest.as_ref()?;
        let mut status = status.clone();
        status.collected.seconds_ago = now.saturating_duration_since(*stored_at).as_secs_f64();
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
