//! Writes to MongoDB that must finish before a message may be sent, or in place of a message. Retried until they succeed: until then the
//! event does not count as acknowledged.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::acknowledged_prefix::CaptureOrdinal;
use super::lanes::LaneId;
use super::monitor::Handle;
use super::rejected::{RejectedEvent, RejectedStore};
use crate::error_chain::error_chain;
use crate::event::Term;
use crate::retry::backoff;
use crate::stored::ClaimCheckStore;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Writes in flight; further events wait, as they do when Service Bus is slow.
const MAX_CONCURRENT: usize = 32;

/// A finished write.
pub(super) enum CompletedWrite {
    IndexesCreated,
    /// The event may be sent as this message: its body is stored, or the message is a marker of a rejected event.
    MessageReady {
        lane: LaneId,
        ordinal: CaptureOrdinal,
        message: Bytes,
    },
    /// The event is stored as rejected, and nothing is sent for it. `lane` holds its reserved slot, if any.
    EventRejected {
        lane: Option<LaneId>,
        ordinal: CaptureOrdinal,
    },
}

/// The slot that a rejected event holds in its lane, and the marker that replaces it, if one fits.
pub(super) struct RejectedEventSlot {
    pub(super) lane: LaneId,
    pub(super) marker: Option<Bytes>,
}

pub(super) struct PendingWrites {
    claim_checks: ClaimCheckStore,
    rejected: RejectedStore,
    term: Term,
    handle: Handle,
    in_flight: FuturesUnordered<BoxFuture<'static, CompletedWrite>>,
}

impl PendingWrites {
    pub(super) fn new(claim_checks: ClaimCheckStore, rejected: RejectedStore, term: Term, handle: Handle) -> Self {
        Self { claim_checks, rejected, term, handle, in_flight: FuturesUnordered::new() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < MAX_CONCURRENT
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn create_indexes(&self) {
        let (claim_checks, handle) = (self.claim_checks.clone(), self.handle.clone());
        self.in_flight.push(Box::pin(async move {
            let mut retry = WriteRetry::new(handle);
            while let Err(error) = claim_checks.create_indexes().await {
                retry.back_off(&error).await;
            }
            CompletedWrite::IndexesCreated
        }));
    }

    /// Stores a body, then releases the `message` that refers to it.
    pub(super) fn store_body(&self, lane: LaneId, ordinal: CaptureOrdinal, id: String, body: Vec<u8>, message: Bytes) {
        let (claim_checks, handle) = (self.claim_checks.clone(), self.handle.clone());
        handle.counters().oversize.fetch_add(1, Relaxed);
        self.in_flight.push(Box::pin(async move {
            let mut retry = WriteRetry::new(handle);
            while let Err(error) = claim_checks.store(&id, &body).await {
                retry.back_off(&error).await;
            }
            CompletedWrite::MessageReady { lane, ordinal, message }
        }));
    }

    /// Stores a rejected event.
    pub(super) fn reject(&self, ordinal: CaptureOrdinal, rejection: RejectedEvent, slot: Option<RejectedEventSlot>) {
        let (rejected, term, handle) = (self.rejected.clone(), self.term, self.handle.clone());
        handle.counters().rejected.fetch_add(1, Relaxed);
        let (reason, message_id) = (rejection.reason.code(), &rejection.message_id);
        tracing::error!(reason, message_id, "event rejected; storing it in rejected_events");
        self.in_flight.push(Box::pin(async move {
            let mut retry = WriteRetry::new(handle);
            while let Err(error) = rejected.insert(&rejection, term).await {
                retry.back_off(&error).await;
            }
            match slot {
                Some(RejectedEventSlot { lane, marker: Some(message) }) => {
                    CompletedWrite::MessageReady { lane, ordinal, message }
                }
                Some(RejectedEventSlot { lane, marker: None }) => {
                    CompletedWrite::EventRejected { lane: Some(lane), ordinal }
                }
                None => CompletedWrite::EventRejected { lane: None, ordinal },
            }
        }));
    }

    /// The next finished write. Cancel-safe.
    pub(super) async fn next(&mut self) -> CompletedWrite {
        match self.in_flight.next().await {
            Some(stored) => stored,
            None => std::future::pending().await,
        }
    }
}

/// Retries of one write.
struct WriteRetry {
    handle: Handle,
    failures: u32,
}

impl WriteRetry {
    fn new(handle: Handle) -> Self {
        Self { handle, failures: 0 }
    }

    /// Logs the error and returns the backoff before the next attempt.
    fn back_off(&mut self, error: &dyn std::error::Error) -> tokio::time::Sleep {
        self.handle.counters().store_errors.fetch_add(1, Relaxed);
        tracing::warn!(error = %error_chain(error), "failed to store an oversize body or a rejected event; retrying");
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(backoff(self.failures - 1, FIRST_BACKOFF, MAX_BACKOFF))
    }
}
