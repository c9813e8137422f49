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

use super::group::Told;
use super::plan::Candidate;
use crate::failpoints::Failpoint;

/// So long at most does a group wait beside another: that may be held up itself.
const COMPANY: Duration = Duration::from_millis(25);

/// And so long with nothing beside it, after one of so many statements: then thousands come each second, and it is the throughput that counts.
const BRIEFLY: Duration = Duration::from_millis(15);
const LARGE: usize = 64;

/// Under this a group is never made smaller.
const LEAST_ROOM: usize = 16;

/// Events of one session, which fit into one group; told once all of them are resolved.
pub(super) struct Submission {
    pub(super) candidates: Vec<Candidate>,
    pub(super) answer: oneshot::Sender<Vec<Told>>,
    pub(super) handed_in: Instant,
}

/// Submissions of one transaction.
pub(super) struct Group<'a> {
    pub(super) submissions: Vec<Submission>,
    pub(super) running: Running<'a>,
}

/// A group is under way until this is dropped, however that comes about.
pub(super) struct Running<'a> {
    queue: &'a Queue,
    statements: usize,
    began: Instant,
}

/// What bounds a group, and how many there are side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) statements: NonZeroUsize,
    pub(super) bytes: usize,
    /// One that takes longer is followed by smaller ones.
    pub(super) within: Duration,
    pub(super) groups: NonZeroUsize,
}

pub(super) struct Queue {
    limits: Limits,
    line: Mutex<Line>,
    /// Something was handed in, or a group has ended.
    changed: Notify,
    taken: Notify,
    /// How many statements a group may have just now.
    room: AtomicUsize,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Submission>,
    /// Statements of what waits.
    queued: usize,
    /// And their bytes.
    bytes: usize,
    /// Statements of each group under way.
    running: Vec<usize>,
    /// Of the one that ended last, and when.
    last: Option<(usize, Instant)>,
    closed: bool,
    /// Nothing begins any more.
    given_back: bool,
}

/// When what waits becomes a group.
#[derive(Debug, PartialEq, Eq)]
enum Begins {
    Now,
    /// Unless more comes, or another ends.
    At(Instant),
    /// When something waits.
    Later,
}

impl Queue {
    pub(super) fn new(limits: Limits) -> Self {
        let room = AtomicUsize::new(limits.statements.get());
        Self { limits, line: Mutex::default(), changed: Notify::new(), taken: Notify::new(), room }
    }

    /// Dropped, it tells its session that nobody will answer.
    pub(super) fn submit(&self, submission: Submission) {
        let mut line = self.line();
        if !line.closed && !line.given_back {
            line.queued += submission.statements();
            line.bytes += submission.bytes();
            line.waiting.push_back(submission);
            self.changed.notify_one();
        }
    }

    /// What waits is dropped, and so is what is still handed in: its sessions are told.
    pub(super) fn give_back(&self) {
        let mut line = self.line();
        line.given_back = true;
        (line.queued, line.bytes) = (0, 0);
        // Sessions are woken when nobody holds the line.
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        drop(waiting);
    }

    /// What waits is still taken; nothing more is let in.
    pub(super) fn close(&self) {
        self.line().closed = true;
        self.changed.notify_waiters();
    }

    /// `None` when it is closed and empty.
    pub(super) async fn next(&self) -> Option<Group<'_>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look, so that what comes right after it wakes us.
            changed.as_mut().enable();
            let until = {
                let mut line = self.line();
                match line.begins(self.room(), self.limits.bytes, Instant::now()) {
                    Begins::Now => return Some(self.begin(&mut line)),
                    Begins::At(moment) => Some(moment),
                    Begins::Later if line.closed => return None,
                    Begins::Later => None,
                }
            };
            match until {
                Some(moment) => drop(timeout_at(moment, changed).await),
                None => changed.await,
            }
        }
    }

    fn begin(&self, line: &mut Line) -> Group<'_> {
        let submissions = line.take(self.room(), self.limits.bytes);
        let statements = submissions.iter().map(Submission::statements).sum();
        line.running.push(statements);
        if !line.waiting.is_empty() {
            self.changed.notify_one();
        }
        if self.has_room(line) {
            self.taken.notify_waiters();
        }
        Group { submissions, running: Running { queue: self, statements, began: Instant::now() } }
    }

    /// After a group that took too long the next ones have half its size; it is given back step by step.
    fn ended(&self, statements: usize, took: Duration) {
        let room = self.room();
        let adapted = if took > self.limits.within {
            (statements / 2).max(LEAST_ROOM).min(room)
        } else {
            (room + room / 4 + 1).min(self.limits.statements.get())
        };
        self.room.store(adapted, Relaxed);
        let mut line = self.line();
        line.last = Some((statements, Instant::now()));
        if let Some(at) = line.running.iter().position(|running| *running == statements) {
            line.running.swap_remove(at);
        }
        // Who waited for company need not.
        self.changed.notify_one();
    }

    /// Returns while there is less in hand than the next groups take. Cancel-safe.
    pub(super) async fn wants_more(&self) {
        loop {
            let taken = self.taken.notified();
            tokio::pin!(taken);
            // Before the look, so that what is taken right after it wakes us.
            taken.as_mut().enable();
            if self.has_room(&self.line()) {
                return;
            }
            taken.await;
        }
    }

    /// How many statements a submission may have.
    pub(super) fn room(&self) -> usize {
        self.room.load(Relaxed)
    }

    /// Not when every transaction has its next group waiting already.
    fn has_room(&self, line: &Line) -> bool {
        line.queued < self.limits.statements.get() * self.limits.groups.get()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.queue.ended(self.statements, self.began.elapsed());
    }
}

impl Line {
    fn begins(&self, room: usize, most_bytes: usize, now: Instant) -> Begins {
        let Some(first) = self.waiting.front() else { return Begins::Later };
        let largest = self.running.iter().max().copied().unwrap_or(0).max(self.last_as_of(first.handed_in));
        let patience = if self.running.is_empty() { BRIEFLY } else { COMPANY };
        let alone_at = first.handed_in + patience;
        let overlapping = Failpoint::OverlappingTransactions.is_enabled();
        let is_full = self.queued >= largest.min(room) || self.bytes >= most_bytes;
        if self.closed || overlapping || is_full || now >= alone_at { Begins::Now } else { Begins::At(alone_at) }
    }

    /// What the last group had, if it was large and has only just ended: there is more to come, then.
    fn last_as_of(&self, moment: Instant) -> usize {
        let is_recent = |ended: Instant| moment.saturating_duration_since(ended) < COMPANY;
        self.last.map_or(0, |(statements, ended)| if statements >= LARGE && is_recent(ended) { statements } else { 0 })
    }

    /// As many as fit; one always does.
    fn take(&mut self, room: usize, most_bytes: usize) -> Vec<Submission> {
        let (mut statements, mut bytes, mut group) = (0, 0, vec![]);
        while let Some(next) = self.waiting.front() {
            statements += next.statements();
            bytes += next.bytes();
            let fits = statements <= room && bytes <= most_bytes;
            // The defect would be harmless if both halves of a batch came into one transaction.
            let overlapping = Failpoint::OverlappingTransactions.is_enabled();
            if (!fits || overlapping) && !group.is_empty() {
                break;
            }
            if let Some(next) = self.waiting.pop_front() {
                self.queued -= next.statements();
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

    fn line(queued: usize, running: &[usize], handed_in: Instant) -> Line {
        let (answer, _) = oneshot::channel();
        let submission = Submission { candidates: vec![], answer, handed_in };
        Line { waiting: [submission].into(), queued, running: running.to_vec(), ..Line::default() }
    }

    const MOST_BYTES: usize = 100;

    #[test]
    fn alone_a_group_begins_at_once_and_beside_another_when_it_is_as_large_or_has_waited() {
        let now = Instant::now();
        let begins = |line: Line, room, at| line.begins(room, MOST_BYTES, at);
        let queued = |queued, running: &[usize]| begins(line(queued, running, now), 1_000, now);
        assert_eq!(queued(1, &[]), Begins::Now);
        assert_eq!(queued(1, &[1]), Begins::Now, "when it is quiet nobody waits");
        assert_eq!(queued(99, &[100, 20]), Begins::At(now + COMPANY));
        assert_eq!(queued(100, &[100, 20]), Begins::Now);
        assert_eq!(begins(line(50, &[1_000], now), 50, now), Begins::Now, "it can grow no further");
        let heavy = Line { bytes: MOST_BYTES, ..line(1, &[1_000], now) };
        assert_eq!(begins(heavy, 1_000, now), Begins::Now, "nor in bytes");
        assert_eq!(begins(line(1, &[1_000], now), 1_000, now + COMPANY), Begins::Now);
        assert_eq!(begins(Line::default(), 1_000, now), Begins::Later);
        let after = |statements, at| Line { last: Some((statements, at)), ..line(50, &[], now) };
        assert_eq!(begins(after(100, now), 1_000, now), Begins::At(now + BRIEFLY), "more is to come");
        assert_eq!(begins(after(50, now), 1_000, now), Begins::Now);
        assert_eq!(begins(after(LARGE - 1, now), 1_000, now), Begins::Now);
        assert_eq!(begins(after(100, now - COMPANY), 1_000, now), Begins::Now, "that is long over");
        assert_eq!(begins(Line { closed: true, ..line(1, &[100], now) }, 1_000, now), Begins::Now);
    }

    fn queue() -> Queue {
        let few = NonZeroUsize::new(10).expect("some");
        Queue::new(Limits { statements: few, bytes: MOST_BYTES, within: Duration::from_secs(2), groups: few })
    }

    fn submission(handed_in: Instant) -> Submission {
        Submission { candidates: vec![], answer: oneshot::channel().0, handed_in }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_company_begins_when_the_other_ends_even_by_a_panic_or_when_its_time_is_up() {
        let queue = queue();
        queue.submit(submission(Instant::now()));
        let mut first = queue.next().await.expect("it is open");
        // As if it had been a large one.
        (first.running.statements, queue.line().running[0]) = (5, 5);
        queue.submit(submission(Instant::now()));
        let mut next = Box::pin(queue.next());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(first);
        let second = next.await.expect("it is open");
        assert_eq!(queue.line().running.len(), 1, "nobody is left behind");

        queue.line().running[0] = 5;
        queue.submit(submission(Instant::now()));
        let began = Instant::now();
        let third = queue.next().await.expect("it is open");
        assert_eq!(began.elapsed(), COMPANY, "the other did not end");
        drop((second, third));
    }

    #[tokio::test]
    async fn what_is_given_back_is_not_taken_and_its_session_is_told() {
        let queue = queue();
        let (answer, told) = oneshot::channel();
        queue.submit(Submission { answer, ..submission(Instant::now()) });
        queue.give_back();
        assert!(told.await.is_err(), "nobody will answer");
        let (answer, told) = oneshot::channel();
        queue.submit(Submission { answer, ..submission(Instant::now()) });
        assert!(told.await.is_err(), "nor this one");
        queue.close();
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn what_was_let_in_before_the_end_is_taken() {
        let queue = queue();
        queue.submit(submission(Instant::now()));
        queue.close();
        queue.submit(submission(Instant::now()));
        assert_eq!(queue.next().await.expect("one").submissions.len(), 1);
        assert!(queue.next().await.is_none());
    }
}
