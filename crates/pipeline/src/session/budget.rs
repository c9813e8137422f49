//! One budget of bytes, which the credit of all sessions comes from.
//!
//! A session is charged for what it may hold: its credit, at the size of its messages. A busy one may take a part of what is free;
//! none is left without credit for one message, so the budget can be exceeded by one message for each session. Sizes are known when
//! messages are there: a session begins at the size that is usual, and one whose messages are larger exceeds its share for one window,
//! until it is charged anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Budget {
    total: usize,
    taken: AtomicUsize,
    given_back: Notify,
    usual: AtomicUsize,
}

/// One session's part; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

/// A session may take so much of what is free: the first to come must not leave nothing for the others.
const PART: usize = 4;
/// What a message is expected to have before one was seen.
const EXPECTED: usize = 4 << 10;

impl Budget {
    pub(super) fn new(total: usize) -> Arc<Self> {
        let (taken, usual) = (AtomicUsize::new(0), AtomicUsize::new(EXPECTED));
        Arc::new(Self { total, taken, given_back: Notify::new(), usual })
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(SeqCst)
    }

    /// Returns when there is something left. Cancel-safe.
    pub(super) async fn room(&self) {
        loop {
            let given_back = self.given_back.notified();
            tokio::pin!(given_back);
            // Before the look, so that what is given back right after it wakes us.
            given_back.as_mut().enable();
            if self.taken() < self.total {
                return;
            }
            given_back.await;
        }
    }

    /// For a session that begins with this credit.
    pub(super) fn share(self: &Arc<Self>, credit: u32) -> Share {
        let bytes = self.usual().saturating_mul(credit as usize);
        self.taken.fetch_add(bytes, SeqCst);
        Share { budget: Arc::clone(self), bytes }
    }

    /// What messages have of late: grows at once, and shrinks slowly.
    pub(super) fn usual(&self) -> usize {
        self.usual.load(Relaxed)
    }

    pub(super) fn saw(&self, size: usize) {
        let usual = self.usual();
        let now = if size >= usual { size } else { usual - (usual - size).div_ceil(8) };
        if now != usual {
            self.usual.store(now, Relaxed);
        }
    }
}

impl Share {
    /// Credit for messages of this size: as much as is wanted and to be had, no less than its bytes are good for, and never none.
    pub(super) fn resize(&mut self, want: u32, size: usize) -> u32 {
        let (size, total, own) = (size.max(1), self.budget.total, self.bytes);
        let mut credit = 1;
        self.charge(|others| {
            let free = total.saturating_sub(others);
            let most = u32::try_from((free / PART).max(own.min(free)) / size).unwrap_or(u32::MAX);
            credit = want.min(most).max(1);
            size.saturating_mul(credit as usize)
        });
        credit
    }

    /// Changes what it is charged for, given what the others are.
    fn charge(&mut self, mut bytes: impl FnMut(usize) -> usize) {
        let (before, mut after) = (self.bytes, 0);
        let changed = self.budget.taken.fetch_update(SeqCst, SeqCst, |taken| {
            let others = taken.saturating_sub(before);
            after = bytes(others);
            Some(others.saturating_add(after))
        });
        debug_assert!(changed.is_ok(), "the change is never refused");
        self.bytes = after;
        if after < before {
            self.budget.given_back.notify_waiters();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.charge(|_| 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Budget {
        fn of(self: &Arc<Self>, credit: u32, size: usize) -> Share {
            self.usual.store(size, Relaxed);
            self.share(credit)
        }
    }

    #[test]
    fn a_share_is_kept_when_nothing_else_is_left() {
        let budget = Budget::new(64_000);
        let mut shares: Vec<_> = (0..4).map(|_| budget.of(16, 1_000)).collect();
        assert_eq!(shares[0].resize(1_000, 500), 32, "its bytes are good for more of a smaller size");
        assert_eq!(shares[1].resize(1_000, 2_000), 8, "and for fewer of a larger one");
        assert_eq!(budget.taken(), 64_000);
    }

    #[test]
    fn the_usual_size_follows_what_is_seen() {
        let budget = Budget::new(1 << 20);
        budget.saw(10_000);
        assert_eq!(budget.usual(), 10_000);
        (0..100).for_each(|_| budget.saw(500));
        assert_eq!(budget.usual(), 500);
    }

    #[test]
    fn a_session_gets_what_it_wants_while_there_is_room() {
        let budget = Budget::new(1 << 20);
        let mut share = budget.of(16, 1_000);
        assert_eq!(budget.taken(), 16_000);
        assert_eq!(share.resize(100, 1_000), 100);
        assert_eq!(budget.taken(), 100_000);
        drop(share);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn large_messages_mean_little_credit_and_never_none() {
        let budget = Budget::new(1 << 20);
        let mut one = budget.of(16, 1_000);
        assert_eq!(one.resize(1_000, 100 << 10), 2);
        assert_eq!(one.resize(1_000, 10 << 20), 1);
        let mut other = budget.of(1, 1);
        assert_eq!(other.resize(1_000, 1_000), 1, "the first has taken it all");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_is_woken_when_it_is_given_back() {
        let budget = Budget::new(1_000);
        let share = budget.of(1, 1_000);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(share);
        waiting.await.unwrap();
    }
}
