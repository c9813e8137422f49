//! Saves the checkpoint as the acknowledged prefix advances: one save at a time, concurrent with sending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::acknowledged_prefix::{AcknowledgedPrefix, CheckpointPosition};
use super::config::CheckpointInterval;
use super::publisher::PublishClaim;
use crate::checkpoint::{CheckpointStore, Error, SaveResult};
use crate::error_chain::error_chain;
use crate::retry::backoff;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

pub(super) struct CheckpointSaver<S> {
    store: Arc<S>,
    term: PublishClaim,
    interval: CheckpointInterval,
    /// A save is due after this many events.
    after_events: u64,
    in_flight: Option<BoxFuture<'static, Result<SaveResult, Error>>>,
    /// The position to save, and the number of events since the last saved one.
    pending: Option<(CheckpointPosition, u64)>,
    last: Instant,
    failures: u32,
    not_before: Option<Instant>,
}

impl<S: CheckpointStore + 'static> CheckpointSaver<S> {
    pub(super) fn new(
        store: Arc<S>,
        term: &PublishClaim,
        interval: CheckpointInterval,
        after_events: u64,
        now: Instant,
    ) -> Self {
        Self {
            store,
            term: term.clone(),
            interval,
            after_events,
            in_flight: None,
            pending: None,
            last: now,
            failures: 0,
            not_before: None,
        }
    }

    /// Starts a save if one is due. `immediately` ignores the interval.
    pub(super) fn start_if_due(&mut self, prefix: &mut AcknowledgedPrefix, now: Instant, immediately: bool) {
        let due = self.next_due(prefix, now, immediately).is_some_and(|at| at <= now);
        if self.in_flight.is_some() || !due {
            return;
        }
        if let Some((position, events)) = prefix.take() {
            let before = self.pending.take().map_or(0, |(_, events)| events);
            self.pending = Some((position, before + events));
        }
        let Some((position, _)) = self.pending.clone() else { return };
        let (store, PublishClaim { claim, epoch, .. }) = (Arc::clone(&self.store), self.term.clone());
        self.last = now;
        self.in_flight =
            Some(Box::pin(async move { store.save(&claim, epoch, &position.phase, position.cluster_time).await }));
    }

    /// When the next save is due; `None` if there is nothing to save, or a save is in flight.
    pub(super) fn next_due(&self, prefix: &AcknowledgedPrefix, now: Instant, immediately: bool) -> Option<Instant> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Some(at) = self.not_before {
            return Some(at);
        }
        let moved = prefix.advanced_by()?;
        match self.interval {
            CheckpointInterval::Each => Some(now),
            CheckpointInterval::Every(_) if immediately || moved >= self.after_events => Some(now),
            CheckpointInterval::Every(span) => Some(self.last + span),
        }
    }

    /// Whether nothing is left to save.
    pub(super) fn is_idle(&self, prefix: &AcknowledgedPrefix) -> bool {
        self.in_flight.is_none() && self.pending.is_none() && prefix.advanced_by().is_none()
    }

    /// The result of the save in flight. Cancel-safe: the next call continues it.
    pub(super) async fn finished(&mut self) -> Result<SaveResult, Error> {
        match &mut self.in_flight {
            Some(saving) => saving.await,
            None => std::future::pending().await,
        }
    }

    /// The saved position and its number of events; `None` if the save is retried. Errors are permanent.
    pub(super) fn record_result(
        &mut self,
        result: Result<SaveResult, Error>,
        now: Instant,
    ) -> Result<Option<(CheckpointPosition, u64)>, Error> {
        self.in_flight = None;
        match result {
            Ok(SaveResult::Saved | SaveResult::AlreadyAhead) => {
                self.failures = 0;
                self.not_before = None;
                Ok(self.pending.take())
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error_chain(&error), "failed to save checkpoint; retrying");
                self.not_before = Some(now + backoff(self.failures, FIRST_BACKOFF, MAX_BACKOFF));
                self.failures = self.failures.saturating_add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
