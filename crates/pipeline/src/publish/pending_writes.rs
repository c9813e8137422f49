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

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// Writes under way at once; the rest of the stream waits, as it does when the bus is slow.
const MOST: usize = 32;

/// What is stored now.
pub(super) enum CompletedWrite {
    /// The index is there.
    Prepared,
    /// The event may be sent as this message: its body is stored, or it is a marker for what is kept.
    Message { lane: LaneId, ordinal: Ordinal, message: Bytes },
    /// The event is kept, and nothing is sent for it. `lane`: where its place was held.
    Kept { lane: Option<LaneId>, ordinal: Ordinal },
}

pub(super) struct PendingWrites {
    oversize: ClaimCheckStore,
    rejected: RejectedStore,
    term: Term,
    handle: Handle,
    under_way: FuturesUnordered<BoxFuture<'static, CompletedWrite>>,
}

impl PendingWrites {
    pub(super) fn new(oversize: ClaimCheckStore, rejected: RejectedStore, term: Term, handle: Handle) -> Self {
        Self { oversize, rejected, term, handle, under_way: FuturesUnordered::new() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < MOST
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) fn prepare(&self) {
        let (oversize, handle) = (self.oversize.clone(), self.handle.clone());
        self.under_way.push(Box::pin(async move {
            let mut tries = WriteRetry::of(handle);
            while let Err(error) = oversize.prepare().await {
                tries.failed(&error).await;
            }
            CompletedWrite::Prepared
        }));
    }

    /// Stores a body; `message` names it.
    pub(super) fn put_aside(&self, lane: LaneId, ordinal: Ordinal, id: String, body: Vec<u8>, message: Bytes) {
        let (oversize, handle) = (self.oversize.clone(), self.handle.clone());
        handle.counters().oversize.fetch_add(1, Relaxed);
        self.under_way.push(Box::pin(async move {
            let mut tries = WriteRetry::of(handle);
            while let Err(error) = oversize.store(&id, &body).await {
                tries.failed(&error).await;
            }
            CompletedWrite::Message { lane, ordinal, message }
        }));
    }

    /// Keeps an event that cannot go. `place`: its lane, and the marker that takes its place, if one can.
    pub(super) fn reject(&self, ordinal: Ordinal, rejection: RejectedEvent, place: Option<(LaneId, Option<Bytes>)>) {
        let (rejected, term, handle) = (self.rejected.clone(), self.term, self.handle.clone());
        handle.counters().rejected.fetch_add(1, Relaxed);
        let (reason, message_id) = (rejection.reason.code(), &rejection.message_id);
        tracing::error!(reason, message_id, "an event cannot be a message: kept in rejected_events");
        self.under_way.push(Box::pin(async move {
            let mut tries = WriteRetry::of(handle);
            while let Err(error) = rejected.keep(&rejection, term).await {
                tries.failed(&error).await;
            }
            match place {
                Some((lane, Some(message))) => CompletedWrite::Message { lane, ordinal, message },
                Some((lane, None)) => CompletedWrite::Kept { lane: Some(lane), ordinal },
                None => CompletedWrite::Kept { lane: None, ordinal },
            }
        }));
    }

    /// The next that is stored. Cancel-safe.
    pub(super) async fn next(&mut self) -> CompletedWrite {
        match self.under_way.next().await {
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
    fn of(handle: Handle) -> Self {
        Self { handle, failures: 0 }
    }

    /// The pause before the next try.
    fn failed(&mut self, error: &dyn std::error::Error) -> tokio::time::Sleep {
        self.handle.counters().store_errors.fetch_add(1, Relaxed);
        tracing::warn!(error = %error_chain(error), "write to the coordination database");
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(backoff(self.failures - 1, FIRST_RETRY, LONGEST_RETRY))
    }
}
