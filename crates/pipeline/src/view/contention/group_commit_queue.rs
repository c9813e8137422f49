//! Collects the submissions of all sessions into groups, one transaction each.
//!
//! On an idle pod a group starts at once. While another group runs, and for a moment after a large one, a group starts only when it is at
//! least as large: a small transaction costs the server nearly as much as a large one, so it waits for more submissions, or for the other to
//! end. So groups grow under load, up to their limits, and shrink again when it is over.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::event_results::EventResult;
use crate::failpoints::Failpoint;
use crate::view::plan::PendingEvent;

/// How long a group waits while another runs, as that one may itself be delayed.
const MAX_GROUP_WAIT: Duration = Duration::from_millis(25);

/// How long a group waits when none runs, after one of at least [`LARGE_GROUP`] statements: at that rate throughput matters more.
const MAX_LONE_WAIT: Duration = Duration::from_millis(15);
const LARGE_GROUP: usize = 64;

/// The group size is never reduced below this.
const MIN_GROUP_STATEMENTS: usize = 16;

/// Events of one session that fit into one group. The session gets its reply once all of them are resolved.
pub(in crate::view) struct Submission {
    pub(in crate::view) events: Vec<PendingEvent>,
    pub(in crate::view) reply: oneshot::Sender<Vec<EventResult>>,
    pub(in crate::view) submitted_at: Instant,
}

/// The submissions of one transaction.
pub(in crate::view) struct TransactionGroup<'a> {
    pub(in crate::view) submissions: Vec<Submission>,
    pub(in crate::view) running: RunningGroup<'a>,
}

/// Counts a group as running until it is dropped, also by a panic.
pub(in crate::view) struct RunningGroup<'a> {
    queue: &'a GroupCommitQueue,
    statements: usize,
    started: Instant,
}

/// Limits of a group, and the number of concurrent groups.
#[derive(Clone, Copy, Debug)]
pub(in crate::view) struct GroupLimits {
    pub(in crate::view) statements: NonZeroUsize,
    pub(in crate::view) bytes: usize,
    /// After a group that takes longer, the next ones are smaller.
    pub(in crate::view) within: Duration,
    pub(in crate::view) groups: NonZeroUsize,
}

pub(in crate::view) struct GroupCommitQueue {
    limits: GroupLimits,
    state: Mutex<GroupCommitState>,
    /// A submission arrived, or a group ended.
    changed: Notify,
    capacity_freed: Notify,
    /// The current limit of statements per group.
    max_statements: AtomicUsize,
}

#[derive(Default)]
struct GroupCommitState {
    pending: VecDeque<Submission>,
    /// Statements of all pending submissions.
    queued_statements: usize,
    /// Bytes of all pending submissions.
    bytes: usize,
    /// Statements of each running group.
    running: Vec<usize>,
    /// Statements of the last group, and when it ended.
    last: Option<(usize, Instant)>,
    closed: bool,
    /// No group starts any more.
    dropped: bool,
}

/// When the pending submissions become a group.
#[derive(Debug, PartialEq, Eq)]
enum GroupReadiness {
    Now,
    /// Earlier if more is submitted, or another group ends.
    At(Instant),
    /// Nothing is pending.
    WhenSubmitted,
}

impl GroupCommitQueue {
    pub(in crate::view) fn new(limits: GroupLimits) -> Self {
        let max_statements = AtomicUsize::new(limits.statements.get());
        Self { limits, state: Mutex::default(), changed: Notify::new(), capacity_freed: Notify::new(), max_statements }
    }

    /// After [`Self::close`] the submission is dropped, which closes its reply channel.
    pub(in crate::view) fn submit(&self, submission: Submission) {
        let mut state = self.state();
        if !state.closed && !state.dropped {
            state.queued_statements += submission.statements();
            state.bytes += submission.bytes();
            state.pending.push_back(submission);
            self.changed.notify_one();
        }
    }

    /// Drops all pending and later submissions; their sessions see a closed reply channel.
    pub(in crate::view) fn drop_pending(&self) {
        let mut state = self.state();
        state.dropped = true;
        (state.queued_statements, state.bytes) = (0, 0);
        // Dropping wakes the sessions, so release the lock first.
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        drop(pending);
    }

    /// Accepts no more submissions; pending ones are still taken.
    pub(in crate::view) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_waiters();
    }

    /// `None` once the queue is closed and empty.
    pub(in crate::view) async fn next(&self) -> Option<TransactionGroup<'_>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enable before the check, so that a change right after it wakes us.
            changed.as_mut().enable();
            let until = {
                let mut state = self.state();
                match state.next_start(self.max_statements(), self.limits.bytes, Instant::now()) {
                    GroupReadiness::Now => return Some(self.start_group(&mut state)),
                    GroupReadiness::At(moment) => Some(moment),
                    GroupReadiness::WhenSubmitted if state.closed => return None,
                    GroupReadiness::WhenSubmitted => None,
                }
            };
            match until {
                Some(moment) => drop(timeout_at(moment, changed).await),
                None => changed.await,
            }
        }
    }

    fn start_group(&self, state: &mut GroupCommitState) -> TransactionGroup<'_> {
        let submissions = state.take_group(self.max_statements(), self.limits.bytes);
        let statements = submissions.iter().map(Submission::statements).sum();
        state.running.push(statements);
        // Wake another worker: one notification may stand for several submissions.
        if !state.pending.is_empty() {
            self.changed.notify_one();
        }
        if self.has_capacity(state) {
            self.capacity_freed.notify_waiters();
        }
        TransactionGroup { submissions, running: RunningGroup { queue: self, statements, started: Instant::now() } }
    }

    /// Halves the limit after a slow group, and raises it again step by step.
    fn record_end(&self, statements: usize, took: Duration) {
        let max_statements = self.max_statements();
        // From its actual size, not from the limit: a small group may be slow, too.
        let adapted = if took > self.limits.within {
            (statements / 2).max(MIN_GROUP_STATEMENTS).min(max_statements)
        } else {
            (max_statements + max_statements / 4 + 1).min(self.limits.statements.get())
        };
        self.max_statements.store(adapted, Relaxed);
        let mut state = self.state();
        state.last = Some((statements, Instant::now()));
        if let Some(at) = state.running.iter().position(|running| *running == statements) {
            state.running.swap_remove(at);
        }
        // A waiting group may start now.
        self.changed.notify_one();
    }

    /// Returns when fewer statements are pending than the next groups take. Cancel-safe.
    pub(in crate::view) async fn wait_for_capacity(&self) {
        loop {
            let capacity_freed = self.capacity_freed.notified();
            tokio::pin!(capacity_freed);
            // Enable before the check, so that a group right after it wakes us.
            capacity_freed.as_mut().enable();
            if self.has_capacity(&self.state()) {
                return;
            }
            capacity_freed.await;
        }
    }

    /// The current limit of statements per submission.
    pub(in crate::view) fn max_statements(&self) -> usize {
        self.max_statements.load(Relaxed)
    }

    /// Whether not every worker has its next full group pending.
    fn has_capacity(&self, state: &GroupCommitState) -> bool {
        state.queued_statements < self.limits.statements.get() * self.limits.groups.get()
    }

    fn state(&self) -> MutexGuard<'_, GroupCommitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningGroup<'_> {
    fn drop(&mut self) {
        self.queue.record_end(self.statements, self.started.elapsed());
    }
}

impl GroupCommitState {
    fn next_start(&self, max_statements: usize, max_bytes: usize, now: Instant) -> GroupReadiness {
        let Some(first) = self.pending.front() else { return GroupReadiness::WhenSubmitted };
        // A group at least as large as the largest running one is worth its transaction.
        let largest = self.running.iter().max().copied().unwrap_or(0).max(self.recent_large_group(first.submitted_at));
        let max_wait = if self.running.is_empty() { MAX_LONE_WAIT } else { MAX_GROUP_WAIT };
        let start_at = first.submitted_at + max_wait;
        let overlapping = Failpoint::OverlappingTransactions.is_enabled();
        let is_full = self.queued_statements >= largest.min(max_statements) || self.bytes >= max_bytes;
        if self.closed || overlapping || is_full || now >= start_at {
            GroupReadiness::Now
        } else {
            GroupReadiness::At(start_at)
        }
    }

    /// Statements of the last group if it was large and has just ended: more will follow.
    fn recent_large_group(&self, moment: Instant) -> usize {
        let is_recent = |ended: Instant| moment.saturating_duration_since(ended) < MAX_GROUP_WAIT;
        self.last
            .map_or(0, |(statements, ended)| if statements >= LARGE_GROUP && is_recent(ended) { statements } else { 0 })
    }

    /// As many submissions as fit, and at least one.
    fn take_group(&mut self, max_statements: usize, max_bytes: usize) -> Vec<Submission> {
        let (mut statements, mut bytes, mut group) = (0, 0, vec![]);
        while let Some(next) = self.pending.front() {
            statements += next.statements();
            bytes += next.bytes();
            let fits = statements <= max_statements && bytes <= max_bytes;
            // With the failpoint, both halves of a batch must not share a transaction: that would be harmless.
            let overlapping = Failpoint::OverlappingTransactions.is_enabled();
            if (!fits || overlapping) && !group.is_empty() {
                break;
            }
            if let Some(next) = self.pending.pop_front() {
                self.queued_statements -= next.statements();
                self.bytes -= next.bytes();
                group.push(next);
            }
        }
        group
    }
}

impl Submission {
    fn statements(&self) -> usize {
        self.events.iter().map(|pending| pending.expected_statements).sum()
    }

    fn bytes(&self) -> usize {
        self.events.iter().map(|pending| pending.event.body.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(queued_statements: usize, running: &[usize], submitted_at: Instant) -> GroupCommitState {
        let (reply, _) = oneshot::channel();
        let submission = Submission { events: vec![], reply, submitted_at };
        GroupCommitState {
            pending: [submission].into(),
            queued_statements,
            running: running.to_vec(),
            ..GroupCommitState::default()
        }
    }

    const MAX_BYTES: usize = 100;

    #[test]
    fn a_group_starts_when_idle_when_large_enough_or_after_a_wait() {
        let now = Instant::now();
        let next_start = |state: GroupCommitState, max_statements, at| state.next_start(max_statements, MAX_BYTES, at);
        let queued_statements =
            |queued_statements, running: &[usize]| next_start(state(queued_statements, running, now), 1_000, now);
        assert_eq!(queued_statements(1, &[]), GroupReadiness::Now);
        assert_eq!(queued_statements(1, &[1]), GroupReadiness::Now, "an idle pod does not wait");
        assert_eq!(queued_statements(99, &[100, 20]), GroupReadiness::At(now + MAX_GROUP_WAIT));
        assert_eq!(queued_statements(100, &[100, 20]), GroupReadiness::Now);
        assert_eq!(next_start(state(50, &[1_000], now), 50, now), GroupReadiness::Now, "it cannot grow further");
        let heavy = GroupCommitState { bytes: MAX_BYTES, ..state(1, &[1_000], now) };
        assert_eq!(next_start(heavy, 1_000, now), GroupReadiness::Now, "nor in bytes");
        assert_eq!(next_start(state(1, &[1_000], now), 1_000, now + MAX_GROUP_WAIT), GroupReadiness::Now);
        assert_eq!(next_start(GroupCommitState::default(), 1_000, now), GroupReadiness::WhenSubmitted);
        let after = |statements, at| GroupCommitState { last: Some((statements, at)), ..state(50, &[], now) };
        assert_eq!(
            next_start(after(100, now), 1_000, now),
            GroupReadiness::At(now + MAX_LONE_WAIT),
            "more will follow"
        );
        assert_eq!(next_start(after(50, now), 1_000, now), GroupReadiness::Now);
        assert_eq!(next_start(after(LARGE_GROUP - 1, now), 1_000, now), GroupReadiness::Now);
        assert_eq!(
            next_start(after(100, now - MAX_GROUP_WAIT), 1_000, now),
            GroupReadiness::Now,
            "the large group ended long ago"
        );
        assert_eq!(
            next_start(GroupCommitState { closed: true, ..state(1, &[100], now) }, 1_000, now),
            GroupReadiness::Now
        );
    }

    fn queue() -> GroupCommitQueue {
        let few = NonZeroUsize::new(10).expect("some");
        GroupCommitQueue::new(GroupLimits {
            statements: few,
            bytes: MAX_BYTES,
            within: Duration::from_secs(2),
            groups: few,
        })
    }

    fn submission(submitted_at: Instant) -> Submission {
        Submission { events: vec![], reply: oneshot::channel().0, submitted_at }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_group_starts_when_another_ends_or_time_is_up() {
        let queue = queue();
        queue.submit(submission(Instant::now()));
        let mut first = queue.next().await.expect("the queue is open");
        // Pretend that it was larger than the next.
        (first.running.statements, queue.state().running[0]) = (5, 5);
        queue.submit(submission(Instant::now()));
        let mut next = Box::pin(queue.next());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(first);
        let second = next.await.expect("the queue is open");
        assert_eq!(queue.state().running.len(), 1, "the first group is no longer counted");

        queue.state().running[0] = 5;
        queue.submit(submission(Instant::now()));
        let started = Instant::now();
        let third = queue.next().await.expect("the queue is open");
        assert_eq!(started.elapsed(), MAX_GROUP_WAIT, "it waited for the maximum");
        drop((second, third));
    }

    #[tokio::test]
    async fn dropped_submissions_are_reported_to_their_sessions() {
        let queue = queue();
        let (reply, results) = oneshot::channel();
        queue.submit(Submission { reply, ..submission(Instant::now()) });
        queue.drop_pending();
        assert!(results.await.is_err(), "the reply channel is closed");
        let (reply, results) = oneshot::channel();
        queue.submit(Submission { reply, ..submission(Instant::now()) });
        assert!(results.await.is_err(), "for later submissions, too");
        queue.close();
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn submissions_before_the_close_are_still_taken() {
        let queue = queue();
        queue.submit(submission(Instant::now()));
        queue.close();
        queue.submit(submission(Instant::now()));
        assert_eq!(queue.next().await.expect("one").submissions.len(), 1);
        assert!(queue.next().await.is_none());
    }
}
