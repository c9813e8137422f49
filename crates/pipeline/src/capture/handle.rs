//! What capture is doing, for whoever asks: `/api/status`, metrics, readiness.

use std::sync::{Arc, Mutex, MutexGuard};

use mongodb::bson::Timestamp;
use tokio::time::Instant;

use crate::event::ResumeToken;

/// Cheap to clone; outlives the term it was made in.
#[derive(Clone, Debug)]
pub struct Handle {
    status: Arc<Mutex<CaptureStatus>>,
}

/// What is counted only rises, from one capture of a pod to its next.
#[derive(Clone, Debug)]
pub struct CaptureStatus {
    pub state: CaptureState,
    /// The last token handed on.
    pub token: Option<ResumeToken>,
    /// How far the source has been read, in its own time.
    pub cluster_time: Option<Timestamp>,
    /// Events handed on, of the stream and of a snapshot.
    pub events: u64,
    /// Updates, replaces and deletes seen in a source of kind `events`.
    pub non_inserts: u64,
    /// How often a collection of the source was dropped or renamed.
    pub collection_drops: u64,
    /// How often the stream was opened again.
    pub reopens: u64,
    /// When the server last answered. Stands still while the state is [`CaptureState::Full`], and for as long as a server skips foreign
    /// oplog entries without an answer.
    pub last_response_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// Not asked to read yet.
    Idle,
    Opening,
    Scanning {
        scanned: u64,
    },
    Reading,
    /// Nobody takes what was read.
    Full,
    /// Failed, and waits before the next try.
    Waiting,
    Ended,
}

impl CaptureStatus {
    /// Nothing was read yet.
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
}

impl Handle {
    pub(super) fn new() -> Self {
        Self::with_status(CaptureStatus::initial(Instant::now()))
    }

    /// Nothing read yet, and counted on.
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

    /// The server answered.
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
        self.status.lock().expect("nobody panics while holding it")
    }
}
