//! What must be in MongoDB before a message may go, or in place of one. Repeated until it is there: until then its event is not acknowledged.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::claim_check::ClaimCheckStore;
use super::handle::Handle;
use super::lanes::LaneId;
use super::prefix::Ordinal;
use super::rejected::{RejectedEvent, RejectedStore};
use crate::error_chain::error_chain;
use crate::event::Term;
use crate::retry::backoff;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Writes under way at once; the rest of the stream waits, as it does when the bus is slow.
const MAX_CONCURRENT: usize = 32;

/// What is stored now.
pub(super) enum CompletedWrite {
    /// The index is there.
    IndexesCreated,
    /// The event may be sent as this message: its body is stored, or it is a marker for what is kept.
    MessageReady { lane: LaneId, ordinal: Ordinal, message: Bytes },
    /// The event is kept, and nothing is sent for it. `lane`: where its place was held.
    EventRejected { lane: Option<LaneId>, ordinal: Ordinal },
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

    /// Stores a body; `message` names it.
    pub(super) fn store_body(&self, lane: LaneId, ordinal: Ordinal, id: String, body: Vec<u8>, message: Bytes) {
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

    /// Keeps an event that cannot go. `place`: its lane, and the marker that takes its place, if one can.
    pub(super) fn reject(&self, ordinal: Ordinal, rejection: RejectedEvent, place: Option<(LaneId, Option<Bytes>)>) {
        let (rejected, term, handle) = (self.rejected.clone(), self.term, self.handle.clone());
        handle.counters().rejected.fetch_add(1, Relaxed);
        let (reason, message_id) = (rejection.reason.code(), &rejection.message_id);
        tracing::error!(reason, message_id, "an event cannot be a message: kept in rejected_events");
        self.in_flight.push(Box::pin(async move {
            let mut retry = WriteRetry::new(handle);
            while let Err(error) = rejected.insert(&rejection, term).await {
                retry.back_off(&error).await;
            }
            match place {
                Some((lane, Some(message))) => CompletedWrite::MessageReady { lane, ordinal, message },
                Some((lane, None)) => CompletedWrite::EventRejected { lane: Some(lane), ordinal },
                None => CompletedWrite::EventRejected { lane: None, ordinal },
            }
        }));
    }

    /// The next that is stored. Cancel-safe.
    pub(super) async fn next(&mut self) -> CompletedWrite {
        match self.in_flight.next().await {
            Some(stored) => stored,
            None => std::future::pending().await,
        }
    }
}

/// A write that is repeated.
struct WriteRetry {
    handle: Handle,
    failures: u32,
}

impl WriteRetry {
    fn new(handle: Handle) -> Self {
        Self { handle, failures: 0 }
    }

    /// The pause before the next try.
    fn back_off(&mut self, error: &dyn std::error::Error) -> tokio::time::Sleep {
        self.handle.counters().store_errors.fetch_add(1, Relaxed);
        tracing::warn!(error = %error_chain(error), "write to the coordination database");
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(backoff(self.failures - 1, FIRST_BACKOFF, MAX_BACKOFF))
    }
}
