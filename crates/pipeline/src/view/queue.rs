//! What sessions have handed in, until a transaction takes it.
//!
//! When it is quiet a group begins at once: nobody waits for company. Beside another, one begins that is at least as large, and so it is for
//! a moment after a large one: a small one costs the server nearly as much, so it waits for more to be handed in, or for the other to end.
//! That is how groups grow under load, up to their limits, and vanish when it is over.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::group::EventResult;
use super::plan::PendingEvent;
use crate::failpoints::Failpoint;

/// So long at most does a group wait beside another: that may be held up itself.
const MAX_GROUP_WAIT: Duration = Duration::from_millis(25);

/// And so long with nothing beside it, after one of so many statements: then thousands come each second, and it is the throughput that counts.
const MAX_LONE_WAIT: Duration = Duration::from_millis(15);
const LARGE_GROUP: usize = 64;

/// Under this a group is never made smaller.
const MIN_GROUP_STATEMENTS: usize = 16;

/// Events of one session, which fit into one group; told once all of them are resolved.
pub(super) struct Submission {
    pub(super) candidates: Vec<PendingEvent>,
    pub(super) reply: oneshot::Sender<Vec<EventResult>>,
    pub(super) submitted_at: Instant,
}

/// Submissions of one transaction.
pub(super) struct TransactionGroup<'a> {
    pub(super) submissions: Vec<Submission>,
    pub(super) running: RunningGroup<'a>,
}

/// A group is under way until this is dropped, however that comes about.
pub(super) struct RunningGroup<'a> {
    queue: &'a SubmissionQueue,
    statements: usize,
    started: Instant,
}

/// What bounds a group, and how many there are side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimits {
    pub(super) statements: NonZeroUsize,
    pub(super) bytes: usize,
    /// One that takes longer is followed by smaller ones.
    pub(super) within: Duration,
    pub(super) groups: NonZeroUsize,
}

pub(super) struct SubmissionQueue {
    limits: GroupLimits,
    state: Mutex<QueueState>,
    /// Something was handed in, or a group has ended.
    changed: Notify,
    capacity_freed: Notify,
    /// How many statements a group may have just now.
    max_statements: AtomicUsize,
}

#[derive(Default)]
struct QueueState {
    pending: VecDeque<Submission>,
    /// Statements of what waits.
    queued_statements: usize,
    /// And their bytes.
    bytes: usize,
    /// Statements of each group under way.
    running: Vec<usize>,
    /// Of the one that ended last, and when.
    last: Option<(usize, Instant)>,
    closed: bool,
    /// Nothing begins any more.
    dropped: bool,
}

/// When what waits becomes a group.
#[derive(Debug, PartialEq, Eq)]
enum GroupStart {
    Now,
    /// Unless more comes, or another ends.
    At(Instant),
    /// When something waits.
    WhenSubmitted,
}

impl SubmissionQueue {
    pub(super) fn new(limits: GroupLimits) -> Self {
        let max_statements = AtomicUsize::new(limits.statements.get());
        Self { limits, state: Mutex::default(), changed: Notify::new(), capacity_freed: Notify::new(), max_statements }
    }

    /// Dropped, it tells its session that nobody will answer.
    pub(super) fn submit(&self, submission: Submission) {
        let mut state = self.state();
        if !state.closed && !state.dropped {
            state.queued_statements += submission.statements();
            state.bytes += submission.bytes();
            state.pending.push_back(submission);
            self.changed.notify_one();
        }
    }

    /// What waits is dropped, and so is what is still handed in: its sessions are told.
    pub(super) fn drop_pending(&self) {
        let mut state = self.state();
        state.dropped = true;
        (state.queued_statements, state.bytes) = (0, 0);
        // Sessions are woken when nobody holds the line.
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        drop(pending);
    }

    /// What waits is still taken; nothing more is let in.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_waiters();
    }

    /// `None` when it is closed and empty.
    pub(super) async fn next(&self) -> Option<TransactionGroup<'_>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look, so that what comes right after it wakes us.
            changed.as_mut().enable();
            let until = {
                let mut state = self.state();
                match state.next_start(self.max_statements(), self.limits.bytes, Instant::now()) {
                    GroupStart::Now => return Some(self.start_group(&mut state)),
                    GroupStart::At(moment) => Some(moment),
                    GroupStart::WhenSubmitted if state.closed => return None,
                    GroupStart::WhenSubmitted => None,
                }
            };
            match until {
                Some(moment) => drop(timeout_at(moment, changed).await),
                None => changed.await,
            }
        }
    }

    fn start_group(&self, state: &mut QueueState) -> TransactionGroup<'_> {
        let submissions = state.take_group(self.max_statements(), self.limits.bytes);
        let statements = submissions.iter().map(Submission::statements).sum();
        state.running.push(statements);
        if !state.pending.is_empty() {
            self.changed.notify_one();
        }
        if self.has_capacity(state) {
            self.capacity_freed.notify_waiters();
        }
        TransactionGroup { submissions, running: RunningGroup { queue: self, statements, started: Instant::now() } }
    }

    /// After a group that took too long the next ones have half its size; it is given back step by step.
    fn record_end(&self, statements: usize, took: Duration) {
        let max_statements = self.max_statements();
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
        // Who waited for company need not.
        self.changed.notify_one();
    }

    /// Returns while there is less in hand than the next groups take. Cancel-safe.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let capacity_freed = self.capacity_freed.notified();
            tokio::pin!(capacity_freed);
            // Before the look, so that what is taken right after it wakes us.
            capacity_freed.as_mut().enable();
            if self.has_capacity(&self.state()) {
                return;
            }
            capacity_freed.await;
        }
    }

    /// How many statements a submission may have.
    pub(super) fn max_statements(&self) -> usize {
        self.max_statements.load(Relaxed)
    }

    /// Not when every transaction has its next group waiting already.
    fn has_capacity(&self, state: &QueueState) -> bool {
        state.queued_statements < self.limits.statements.get() * self.limits.groups.get()
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningGroup<'_> {
    fn drop(&mut self) {
        self.queue.record_end(self.statements, self.started.elapsed());
    }
}

impl QueueState {
    fn next_start(&self, max_statements: usize, most_bytes: usize, now: Instant) -> GroupStart {
        let Some(first) = self.pending.front() else { return GroupStart::WhenSubmitted };
        let largest = self.running.iter().max().copied().unwrap_or(0).max(self.recent_large_group(first.submitted_at));
        let max_wait = if self.running.is_empty() { MAX_LONE_WAIT } else { MAX_GROUP_WAIT };
        let start_at = first.submitted_at + max_wait;
        let overlapping = Failpoint::OverlappingTransactions.is_enabled();
        let is_full = self.queued_statements >= largest.min(max_statements) || self.bytes >= most_bytes;
        if self.closed || overlapping || is_full || now >= start_at {
            GroupStart::Now
        } else {
            GroupStart::At(start_at)
        }
    }

    /// What the last group had, if it was large and has only just ended: there is more to come, then.
    fn recent_large_group(&self, moment: Instant) -> usize {
        let is_recent = |ended: Instant| moment.saturating_duration_since(ended) < MAX_GROUP_WAIT;
        self.last
            .map_or(0, |(statements, ended)| if statements >= LARGE_GROUP && is_recent(ended) { statements } else { 0 })
    }

    /// As many as fit; one always does.
    fn take_group(&mut self, max_statements: usize, most_bytes: usize) -> Vec<Submission> {
        let (mut statements, mut bytes, mut group) = (0, 0, vec![]);
        while let Some(next) = self.pending.front() {
            statements += next.statements();
            bytes += next.bytes();
            let fits = statements <= max_statements && bytes <= most_bytes;
            // The defect would be harmless if both halves of a batch came into one transaction.
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
        self.candidates.iter().map(|candidate| candidate.weight).sum()
    }

    fn bytes(&self) -> usize {
        self.candidates.iter().map(|candidate| candidate.event.body.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(queued_statements: usize, running: &[usize], submitted_at: Instant) -> QueueState {
        let (reply, _) = oneshot::channel();
        let submission = Submission { candidates: vec![], reply, submitted_at };
        QueueState {
            pending: [submission].into(),
            queued_statements,
            running: running.to_vec(),
            ..QueueState::default()
        }
    }

    const MOST_BYTES: usize = 100;

    #[test]
    fn a_group_starts_when_idle_when_large_enough_or_after_a_wait() {
        let now = Instant::now();
        let next_start = |state: QueueState, max_statements, at| state.next_start(max_statements, MOST_BYTES, at);
        let queued_statements =
            |queued_statements, running: &[usize]| next_start(state(queued_statements, running, now), 1_000, now);
        assert_eq!(queued_statements(1, &[]), GroupStart::Now);
        assert_eq!(queued_statements(1, &[1]), GroupStart::Now, "when it is quiet nobody waits");
        assert_eq!(queued_statements(99, &[100, 20]), GroupStart::At(now + MAX_GROUP_WAIT));
        assert_eq!(queued_statements(100, &[100, 20]), GroupStart::Now);
        assert_eq!(next_start(state(50, &[1_000], now), 50, now), GroupStart::Now, "it can grow no further");
        let heavy = QueueState { bytes: MOST_BYTES, ..state(1, &[1_000], now) };
        assert_eq!(next_start(heavy, 1_000, now), GroupStart::Now, "nor in bytes");
        assert_eq!(next_start(state(1, &[1_000], now), 1_000, now + MAX_GROUP_WAIT), GroupStart::Now);
        assert_eq!(next_start(QueueState::default(), 1_000, now), GroupStart::WhenSubmitted);
        let after = |statements, at| QueueState { last: Some((statements, at)), ..state(50, &[], now) };
        assert_eq!(next_start(after(100, now), 1_000, now), GroupStart::At(now + MAX_LONE_WAIT), "more is to come");
        assert_eq!(next_start(after(50, now), 1_000, now), GroupStart::Now);
        assert_eq!(next_start(after(LARGE_GROUP - 1, now), 1_000, now), GroupStart::Now);
        assert_eq!(next_start(after(100, now - MAX_GROUP_WAIT), 1_000, now), GroupStart::Now, "that is long over");
        assert_eq!(next_start(QueueState { closed: true, ..state(1, &[100], now) }, 1_000, now), GroupStart::Now);
    }

    fn queue() -> SubmissionQueue {
        let few = NonZeroUsize::new(10).expect("some");
        SubmissionQueue::new(GroupLimits {
            statements: few,
            bytes: MOST_BYTES,
            within: Duration::from_secs(2),
            groups: few,
        })
    }

    fn submission(submitted_at: Instant) -> Submission {
        Submission { candidates: vec![], reply: oneshot::channel().0, submitted_at }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_group_starts_when_another_ends_or_time_is_up() {
        let queue = queue();
        queue.submit(submission(Instant::now()));
        let mut first = queue.next().await.expect("it is open");
        // As if it had been a large one.
        (first.running.statements, queue.state().running[0]) = (5, 5);
        queue.submit(submission(Instant::now()));
        let mut next = Box::pin(queue.next());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(first);
        let second = next.await.expect("it is open");
        assert_eq!(queue.state().running.len(), 1, "nobody is left behind");

        queue.state().running[0] = 5;
        queue.submit(submission(Instant::now()));
        let started = Instant::now();
        let third = queue.next().await.expect("it is open");
        assert_eq!(started.elapsed(), MAX_GROUP_WAIT, "the other did not end");
        drop((second, third));
    }

    #[tokio::test]
    async fn dropped_submissions_are_reported_to_their_sessions() {
        let queue = queue();
        let (reply, results) = oneshot::channel();
        queue.submit(Submission { reply, ..submission(Instant::now()) });
        queue.drop_pending();
        assert!(results.await.is_err(), "nobody will answer");
        let (reply, results) = oneshot::channel();
        queue.submit(Submission { reply, ..submission(Instant::now()) });
        assert!(results.await.is_err(), "nor this one");
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
