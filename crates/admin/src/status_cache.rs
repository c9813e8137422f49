//! What was last collected about the pipeline, for whoever asks; and whether anybody does.
//!
//! Somebody gathers in the background and [posts](StatusCache::post); the server only reads, so that a MongoDB that does not answer cannot hold
//! up an answer here: what is shown then is older, and says so.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::history::{HistoryPoint, StatusHistory};
use crate::status::PipelineStatus;

/// After the last question, how long somebody is taken to be looking: a dashboard asks every second.
const ATTENTION: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct StatusCache {
    inner: Mutex<Inner>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    latest: Option<(PipelineStatus, Instant)>,
    history: StatusHistory,
    asked_at: Option<Instant>,
}

impl StatusCache {
    pub fn post(&self, status: PipelineStatus, now: Instant) {
        let mut inner = self.lock();
        inner.history.push(&status);
        inner.latest = Some((status, now));
    }

    /// The last one posted, with its age; `None` before the first.
    pub fn read(&self, now: Instant) -> Option<PipelineStatus> {
        let inner = self.lock();
        let (status, posted) = inner.latest.as_ref()?;
        let mut status = status.clone();
        status.collected.seconds_ago = now.saturating_duration_since(*posted).as_secs_f64();
        Some(status)
    }

    pub fn history(&self) -> Vec<HistoryPoint> {
        self.lock().history.points()
    }

    /// Somebody asks, and wants it fresh.
    pub fn ask(&self, now: Instant) {
        self.lock().asked_at = Some(now);
        self.asked.notify_one();
    }

    /// Whether somebody is looking.
    pub fn is_watched(&self, now: Instant) -> bool {
        self.lock().asked_at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTION)
    }

    /// Returns when somebody asks, or at once if somebody has since the last call.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::CollectionInfo;

    #[test]
    fn what_is_read_says_how_old_it_is() {
        let (status_cache, start) = (StatusCache::default(), Instant::now());
        assert_eq!(status_cache.read(start), None);
        status_cache.post(PipelineStatus::unknown("shop", CollectionInfo::default()), start);
        let read = status_cache.read(start + Duration::from_millis(2_500)).unwrap();
        assert_eq!(read.collected.seconds_ago, 2.5);
        assert_eq!(status_cache.history().len(), 1);
    }

    #[test]
    fn attention_lasts_a_while_after_the_last_question() {
        let (status_cache, start) = (StatusCache::default(), Instant::now());
        assert!(!status_cache.is_watched(start));
        status_cache.ask(start);
        assert!(status_cache.is_watched(start + ATTENTION / 2));
        assert!(!status_cache.is_watched(start + ATTENTION));
    }
}
