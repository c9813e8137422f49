//! Finds the event whose handling ends the pod, within a handful of deliveries.
//!
//! A pod writes a mark into the session state before it handles suspect messages, and removes it when the attempt has ended, with whatever result.
//! Messages are suspect if they were delivered often, or for a while after a run of the pod that ended without a stop: a pod that dies closes its
//! connection, and Service Bus does not count that delivery ([`super::pod_runs`]).
//!
//! The first mark covers all messages that are received together, and other sessions have such marks at the same time, as most messages are
//! innocent. If the run that made it crashed, each of the messages gets a mark of its own, while this pod has no other marked attempt: a
//! mark that is left over then names what was handled when the pod ended. A message with three of these is parked. If even that does not end, it is
//! dead-lettered unread.
//!
//! A mark of a run that lives, or that ended by a stop, blames nobody: only the lock was lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mongo_error::DriverError;
use serde::{Deserialize, Serialize};
use servicebus::{ReceivedMessage, SessionHandle};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::pod_runs::{MIN_CAUTION, PodRuns};
use crate::error_chain::error_chain;

/// Earlier deliveries from which on a message is handled with a mark.
const MARK_AT_DELIVERY: u32 = 3;
/// Attempts of one message, with a mark of its own, that may end with the pod.
const MAX_ATTEMPTS: u32 = 3;
const FORMAT: u32 = 2;
/// A session does not wait longer for another marked attempt of the pod; it is accepted again later.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(30);
/// Other attempts wait meanwhile.
const MAX_CLEAR_TIME: Duration = Duration::from_secs(5);

/// The session state during an attempt: bus sequence numbers, both included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptMark {
    format: u32,
    /// The run of the pod that made the attempt.
    run: String,
    first: i64,
    last: i64,
    /// With a mark of its own, this one included; 0 for a mark that other messages may share.
    attempts: u32,
}

/// What is done with the marked messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptAction {
    Apply,
    Park,
    DeadLetter,
}

/// The marks of all sessions of one pod.
pub(super) struct AttemptMarks {
    runs: PodRuns,
}

/// Held while the session state has the mark.
enum AttemptGuard {
    #[expect(dead_code, reason = "held for its drop")]
    Shared(OwnedRwLockReadGuard<()>),
    #[expect(dead_code, reason = "held for its drop")]
    Alone(OwnedRwLockWriteGuard<()>),
}

/// The marks of one held session.
#[derive(Default)]
pub(super) struct SessionMarks {
    /// The mark that a crashed run left, as far as its messages are not handled yet; outer `None`: not read yet.
    left_over: Option<Option<AttemptMark>>,
    /// During a marked attempt, with its last message.
    attempt: Option<(AttemptGuard, i64)>,
}

/// Why an attempt could not be marked.
pub(super) enum MarkError {
    Bus(servicebus::Error),
    Store(DriverError),
    /// Another marked attempt of this pod takes long.
    Busy,
}

impl AttemptMarks {
    pub(super) fn new(runs: PodRuns) -> Self {
        Self { runs }
    }

    /// Begins the run of this pod. Before the first session is accepted.
    pub(super) async fn begin_run(&self) {
        if let Some(caution) = self.runs.begin().await {
            warn!(?caution, "a pod ended without a stop; this one marks its attempts, to find an event that ends pods");
        }
    }

    pub(super) async fn beat(&self, stop: &CancellationToken) {
        self.runs.beat(stop).await;
    }

    /// All attempts of this run have ended.
    pub(super) async fn end_run(&self) {
        self.runs.end().await;
    }

    pub(super) fn needs_mark(&self, message: &ReceivedMessage) -> bool {
        message.delivery_count() >= MARK_AT_DELIVERY || self.runs.state().is_cautious()
    }
}

impl SessionMarks {
    pub(super) fn is_active(&self) -> bool {
        self.attempt.is_some()
    }

    /// Marks the messages from `first` to `last`, or the first one alone.
    pub(super) async fn begin(
        &mut self,
        marks: &AttemptMarks,
        session: &SessionHandle,
        (first, last): (i64, i64),
    ) -> Result<(AttemptMark, AttemptAction), MarkError> {
        if self.left_over.is_none() {
            self.left_over = Some(read_left_over(marks, session).await?);
        }
        let left_over = self.left_over.as_ref().and_then(Option::as_ref);
        let (mark, action) = AttemptMark::next(left_over, marks.runs.run(), first, last);
        let attempts = Arc::clone(&marks.runs.state().attempts);
        // cancel-safe: a dropped lock only loses its place in the queue.
        let guard = timeout(MAX_QUEUE_TIME, async {
            match mark.attempts {
                0 => AttemptGuard::Shared(attempts.read_owned().await),
                _ => AttemptGuard::Alone(attempts.write_owned().await),
            }
        });
        self.attempt = Some((guard.await.map_err(|_| MarkError::Busy)?, mark.last));
        session.set_state(Some(mark.to_state())).await.map_err(MarkError::Bus)?;
        Ok((mark, action))
    }

    /// The attempt has ended, with whatever result: the pod lives.
    pub(super) async fn end(&mut self, session: &SessionHandle) {
        let Some((_guard, last)) = self.attempt.take() else { return };
        let rest = self.left_over.take().flatten().and_then(|left_over| left_over.after(last));
        let state = rest.as_ref().map(AttemptMark::to_state);
        self.left_over = Some(rest);
        // If the lock is lost, the mark stays. It blames nobody: this run has not crashed.
        match timeout(MAX_CLEAR_TIME, session.set_state(state)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(error = error_chain(&error), "failed to clear session state"),
            Err(_) => debug!("failed to clear session state: timed out"),
        }
    }
}

/// The mark in the session state, if it was left by a run that crashed.
async fn read_left_over(marks: &AttemptMarks, session: &SessionHandle) -> Result<Option<AttemptMark>, MarkError> {
    let state = session.state().await.map_err(MarkError::Bus)?;
    let Some(mark) = state.and_then(|state| AttemptMark::read(&state)) else { return Ok(None) };
    let crashed = marks.runs.has_crashed(&mark.run).await.map_err(MarkError::Store)?;
    if crashed {
        // Other sessions, too: else a crash by one of their messages would count against this one.
        marks.runs.state().mark_attempts_for(MIN_CAUTION);
    }
    Ok(crashed.then_some(mark))
}

impl AttemptMark {
    /// `None` for a state that is not ours: nobody else should use it, and it must not stop the session.
    pub(super) fn read(state: &[u8]) -> Option<Self> {
        serde_json::from_slice(state).ok().filter(|mark: &Self| mark.format == FORMAT)
    }

    pub(super) fn to_state(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The mark of the next attempt, which covers the first of these messages or more. `left_over`: the mark that a crashed run left.
    pub(super) fn next(left_over: Option<&Self>, run: &str, first: i64, last: i64) -> (Self, AttemptAction) {
        let (last, attempts, action) = match left_over.filter(|mark| (mark.first..=mark.last).contains(&first)) {
            None => (last, 0, AttemptAction::Apply),
            Some(mark) => {
                let action = match mark.attempts {
                    ..MAX_ATTEMPTS => AttemptAction::Apply,
                    MAX_ATTEMPTS => AttemptAction::Park,
                    _ => AttemptAction::DeadLetter,
                };
                (first, mark.attempts.saturating_add(1), action)
            }
        };
        (Self { format: FORMAT, run: run.to_owned(), first, last, attempts }, action)
    }

    /// The part of a mark behind this message. The next holder of the session must handle these one by one, too.
    fn after(mut self, last: i64) -> Option<Self> {
        self.first = self.first.max(last.saturating_add(1));
        (self.first <= self.last).then_some(self)
    }

    pub(super) fn covers(&self, message: &ReceivedMessage) -> bool {
        (self.first..=self.last).contains(&message.sequence_number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_attempts_that_did_not_end_park_a_message() {
        let mut left_over = None;
        let mut actions = vec![];
        for _ in 0..6 {
            let (mark, action) = AttemptMark::next(left_over.as_ref(), "run", 7, 7);
            actions.push(action);
            left_over = AttemptMark::read(&mark.to_state());
        }
        // The first one has a mark that says nothing about one message.
        assert_eq!(actions[..4], [AttemptAction::Apply; 4]);
        assert_eq!(actions[4..], [AttemptAction::Park, AttemptAction::DeadLetter]);
    }

    #[test]
    fn a_left_over_mark_of_many_messages_blames_none() {
        let (many, _) = AttemptMark::next(None, "run", 5, 9);
        let (alone, action) = AttemptMark::next(Some(&many), "run", 6, 9);
        assert_eq!((alone.first, alone.last, alone.attempts, action), (6, 6, 1, AttemptAction::Apply));
        let rest = many.clone().after(6).expect("three are left");
        assert_eq!((rest.first, rest.last, rest.attempts), (7, 9, 0));
        assert_eq!((rest.after(9), alone.after(6)), (None, None));
        let (others, _) = AttemptMark::next(Some(&many), "run", 10, 12);
        assert_eq!((others.first, others.last, others.attempts), (10, 12, 0));
    }

    #[test]
    fn a_foreign_session_state_is_no_mark() {
        assert_eq!(AttemptMark::read(b"theirs"), None);
        assert_eq!(AttemptMark::read(br#"{"format":3,"run":"x","first":1,"last":1,"attempts":9}"#), None);
    }
}
