//! The state and counters of capture, for `/api/status`, metrics and readiness.

use std::sync::{Arc, Mutex, MutexGuard};

use mongodb::bson::Timestamp;
use tokio::time::Instant;

use crate::counters::MetricSample;
use crate::event::ResumeToken;

/// Cheap to clone; outlives its term.
#[derive(Clone, Debug)]
pub struct Handle {
    status: Arc<Mutex<CaptureStatus>>,
}

/// Counters only rise, also across the terms of a pod.
#[derive(Clone, Debug)]
pub struct CaptureStatus {
    pub state: CaptureState,
    /// The last token handed on.
    pub token: Option<ResumeToken>,
    /// Cluster time of the last item handed on.
    pub cluster_time: Option<Timestamp>,
    /// Events handed on, from the stream and from snapshots.
    pub events: u64,
    /// Updates, replaces and deletes seen in a source of kind `events`.
    pub non_inserts: u64,
    /// Drops and renames of collections of the source.
    pub collection_drops: u64,
    /// How often the stream was reopened.
    pub reopens: u64,
    /// Time of the last reply of the server. Does not move in [`CaptureState::Full`], nor while the server skips unrelated oplog entries.
    pub last_response_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// Not started.
    Idle,
    Opening,
    Scanning {
        scanned: u64,
    },
    Reading,
    /// The queue is full: the publisher does not keep up.
    Full,
    /// Failed, and waits for the next attempt.
    Waiting,
    Ended,
}

impl CaptureStatus {
    /// The status before anything is read.
    pub fn initial(last_response_at: Instant) -> Self {
        Self {
            state: CaptureState::Idle,
            token: None,
            cluster_time: None,
            events: 0,
            non_inserts: 0,
            collection_drops: 0,
            reopens: 0,
            last_response_at,
        }
    }

    pub fn samples(&self) -> Vec<MetricSample> {
        let sample = |name, help, value| MetricSample { name, help, label: None, value };
        vec![
            sample("headwater_events_captured_total", "Events read from the source.", self.events),
            sample(
                "headwater_changes_ignored_total",
                "Changes to a source of kind `events` that are not inserts; they are not published.",
                self.non_inserts,
            ),
            sample("headwater_capture_reopened_total", "Times the change stream was reopened.", self.reopens),
        ]
    }
}

impl Handle {
    pub(super) fn new() -> Self {
        Self::with_status(CaptureStatus::initial(Instant::now()))
    }

    /// A new handle that keeps the counters of `before`.
    pub(super) fn continuing(before: &CaptureStatus) -> Self {
        let CaptureStatus { events, non_inserts, collection_drops, reopens, .. } = *before;
        Self::with_status(CaptureStatus {
            events,
            non_inserts,
            collection_drops,
            reopens,
            ..CaptureStatus::initial(Instant::now())
        })
    }

    fn with_status(status: CaptureStatus) -> Self {
        Self { status: Arc::new(Mutex::new(status)) }
    }

    pub fn status(&self) -> CaptureStatus {
        self.lock().clone()
    }

    pub(super) fn set_state(&self, state: CaptureState) {
        self.lock().state = state;
    }

    pub(super) fn record_response(&self, state: CaptureState) {
        let mut status = self.lock();
        (status.state, status.last_response_at) = (state, Instant::now());
    }

    pub(super) fn record_captured(&self, events: usize, token: Option<&ResumeToken>, cluster_time: Option<Timestamp>) {
        let mut status = self.lock();
        status.events += events as u64;
        if let Some(token) = token {
            status.token = Some(token.clone());
        }
        status.cluster_time = cluster_time.or(status.cluster_time);
    }

    pub(super) fn record_ignored(&self, non_inserts: u64, collection_drops: u64) {
        let mut status = self.lock();
        status.non_inserts += non_inserts;
        status.collection_drops += collection_drops;
    }

    pub(super) fn record_reopen(&self) {
        self.lock().reopens += 1;
    }

    fn lock(&self) -> MutexGuard<'_, CaptureStatus> {
        self.status.lock().expect("no thread panics while it holds the lock")
    }
}
