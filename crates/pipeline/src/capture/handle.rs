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
    pub foreign: u64,
    /// How often a collection of the source was dropped or renamed.
    pub dropped: u64,
    /// How often the stream was opened again.
    pub reopened: u64,
    /// When the server last answered. Stands still while the state is [`CaptureState::Full`], and for as long as a server skips foreign
    /// oplog entries without an answer.
    pub alive_at: Instant,
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
    pub fn before_anything(alive_at: Instant) -> Self {
        Self {
            state: CaptureState::Idle,
            token: None,
            cluster_time: None,
            events: 0,
            foreign: 0,
            dropped: 0,
            reopened: 0,
            alive_at,
        }
    }
}

impl Handle {
    pub(super) fn new() -> Self {
        Self::of(CaptureStatus::before_anything(Instant::now()))
    }

    /// Nothing read yet, and counted on.
    pub(super) fn after(before: &CaptureStatus) -> Self {
        let CaptureStatus { events, foreign, dropped, reopened, .. } = *before;
        Self::of(CaptureStatus { events, foreign, dropped, reopened, ..CaptureStatus::before_anything(Instant::now()) })
    }

    fn of(status: CaptureStatus) -> Self {
        Self { status: Arc::new(Mutex::new(status)) }
    }

    pub fn status(&self) -> CaptureStatus {
        self.lock().clone()
    }

    pub(super) fn enter(&self, state: CaptureState) {
        self.lock().state = state;
    }

    /// The server answered.
    pub(super) fn alive(&self, state: CaptureState) {
        let mut status = self.lock();
        (status.state, status.alive_at) = (state, Instant::now());
    }

    pub(super) fn handed_on(&self, events: usize, token: Option<&ResumeToken>, cluster_time: Option<Timestamp>) {
        let mut status = self.lock();
        status.events += events as u64;
        if let Some(token) = token {
            status.token = Some(token.clone());
        }
        status.cluster_time = cluster_time.or(status.cluster_time);
    }

    pub(super) fn counted(&self, foreign: u64, dropped: u64) {
        let mut status = self.lock();
        status.foreign += foreign;
        status.dropped += dropped;
    }

    pub(super) fn reopened(&self) {
        self.lock().reopened += 1;
    }

    fn lock(&self) -> MutexGuard<'_, CaptureStatus> {
        self.status.lock().expect("nobody panics while holding it")
    }
}
