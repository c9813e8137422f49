//! The checkpoint follows the prefix: one save at a time, beside the sending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::config::CheckpointInterval;
use super::prefix::{AcknowledgedPrefix, CheckpointPosition};
use crate::checkpoint::{CheckpointStore, Claim, Error, SaveResult};
use crate::error_chain::error_chain;
use crate::event::Epoch;
use crate::retry::backoff;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// Decides when to save, and saves.
pub(super) struct CheckpointSaver<S> {
    store: Arc<S>,
    claim: Claim,
    epoch: Epoch,
    rule: CheckpointInterval,
    /// A save is due after so many events, however soon.
    after: u64,
    under_way: Option<BoxFuture<'static, Result<SaveResult, Error>>>,
    /// What is being saved, or could not be yet, and how many events it lies further than the last.
    in_hand: Option<(CheckpointPosition, u64)>,
    last: Instant,
    failures: u32,
    not_before: Option<Instant>,
}

impl<S: CheckpointStore + 'static> CheckpointSaver<S> {
    pub(super) fn new(
        store: Arc<S>,
        (claim, epoch): (Claim, Epoch),
        rule: CheckpointInterval,
        after: u64,
        now: Instant,
    ) -> Self {
        Self {
            store,
            claim,
            epoch,
            rule,
            after,
            under_way: None,
            in_hand: None,
            last: now,
            failures: 0,
            not_before: None,
        }
    }

    /// Begins a save if it is time for one. `at_once`: however soon after the last.
    pub(super) fn begin(&mut self, prefix: &mut AcknowledgedPrefix, now: Instant, at_once: bool) {
        let due = self.next(prefix, now, at_once).is_some_and(|at| at <= now);
        if self.under_way.is_some() || !due {
            return;
        }
        if let Some((stand, events)) = prefix.take() {
            let before = self.in_hand.take().map_or(0, |(_, events)| events);
            self.in_hand = Some((stand, before + events));
        }
        let Some((stand, _)) = self.in_hand.clone() else { return };
        let (store, claim, epoch) = (Arc::clone(&self.store), self.claim.clone(), self.epoch);
        self.last = now;
        self.under_way =
            Some(Box::pin(async move { store.save(&claim, epoch, &stand.phase, stand.cluster_time).await }));
    }

    /// When the next save is due; `None` if there is nothing to save, or a save is under way.
    pub(super) fn next(&self, prefix: &AcknowledgedPrefix, now: Instant, at_once: bool) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        if let Some(at) = self.not_before {
            return Some(at);
        }
        let moved = prefix.moved()?;
        match self.rule {
            CheckpointInterval::Each => Some(now),
            CheckpointInterval::Every(_) if at_once || moved >= self.after => Some(now),
            CheckpointInterval::Every(span) => Some(self.last + span),
        }
    }

    /// Whether nothing is left to save.
    pub(super) fn is_done(&self, prefix: &AcknowledgedPrefix) -> bool {
        self.under_way.is_none() && self.in_hand.is_none() && prefix.moved().is_none()
    }

    /// What became of the save under way. Cancel-safe: it goes on when asked again.
    pub(super) async fn ended(&mut self) -> Result<SaveResult, Error> {
        match &mut self.under_way {
            Some(saving) => saving.await,
            None => std::future::pending().await,
        }
    }

    /// The stand that is saved now, and by how many events it moved; `None` if the save must be repeated. An error is for good.
    pub(super) fn note(
        &mut self,
        result: Result<SaveResult, Error>,
        now: Instant,
    ) -> Result<Option<(CheckpointPosition, u64)>, Error> {
        self.under_way = None;
        match result {
            Ok(SaveResult::Saved | SaveResult::AlreadyAhead) => {
                self.failures = 0;
                self.not_before = None;
                Ok(self.in_hand.take())
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error_chain(&error), "save the checkpoint");
                self.not_before = Some(now + backoff(self.failures, FIRST_RETRY, LONGEST_RETRY));
                self.failures = self.failures.saturating_add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
