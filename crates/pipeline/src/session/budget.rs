//! One byte budget from which all sessions get their credit.
//!
//! A session is charged for what it may hold: its credit times the size of its messages. A busy session may take a share of the free
//! bytes. Every session keeps credit for one message, so the budget can be exceeded by one message per session. Message sizes are known
//! only on receipt: a session starts at the typical size, and one with larger messages exceeds its share for one credit window.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct SessionByteBudget {
    total: usize,
    charged: AtomicUsize,
    released: Notify,
    typical_message_size: AtomicUsize,
}

/// The bytes charged to one session; released when dropped.
#[derive(Debug)]
pub(super) struct SessionByteShare {
    budget: Arc<SessionByteBudget>,
    bytes: usize,
}

/// A session may take one of so many parts of the free bytes: the first one must leave some for the others.
const SHARE_DIVISOR: usize = 4;
/// Assumed message size before the first message.
const INITIAL_MESSAGE_SIZE: usize = 4 << 10;

impl SessionByteBudget {
    pub(super) fn new(total: usize) -> Arc<Self> {
        let (charged, typical_message_size) = (AtomicUsize::new(0), AtomicUsize::new(INITIAL_MESSAGE_SIZE));
        Arc::new(Self { total, charged, released: Notify::new(), typical_message_size })
    }

    pub(super) fn charged(&self) -> usize {
        self.charged.load(SeqCst)
    }

    /// Returns when bytes are free. Cancel-safe.
    pub(super) async fn wait_for_free_bytes(&self) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // Enable before the check, so that a release right after it wakes us.
            released.as_mut().enable();
            if self.charged() < self.total {
                return;
            }
            released.await;
        }
    }

    /// The share of a new session with this credit.
    pub(super) fn share(self: &Arc<Self>, credit: u32) -> SessionByteShare {
        let bytes = self.typical_message_size().saturating_mul(credit as usize);
        self.charged.fetch_add(bytes, SeqCst);
        SessionByteShare { budget: Arc::clone(self), bytes }
    }

    /// The recent message size: grows at once, shrinks slowly.
    pub(super) fn typical_message_size(&self) -> usize {
        self.typical_message_size.load(Relaxed)
    }

    pub(super) fn record_message_size(&self, size: usize) {
        let typical_message_size = self.typical_message_size();
        let now = if size >= typical_message_size {
            size
        } else {
            typical_message_size - (typical_message_size - size).div_ceil(8)
        };
        if now != typical_message_size {
            self.typical_message_size.store(now, Relaxed);
        }
    }
}

impl SessionByteShare {
    /// Returns the credit for messages of this size: at most `wanted`, at least what its current bytes allow, never zero.
    pub(super) fn resize(&mut self, wanted: u32, size: usize) -> u32 {
        let (size, total, own_bytes) = (size.max(1), self.budget.total, self.bytes);
        let mut credit = 1;
        self.charge(|others| {
            let free = total.saturating_sub(others);
            // A share never shrinks below what it has, as long as its bytes are within the budget.
            let affordable = u32::try_from((free / SHARE_DIVISOR).max(own_bytes.min(free)) / size).unwrap_or(u32::MAX);
            credit = wanted.min(affordable).max(1);
            size.saturating_mul(credit as usize)
        });
        credit
    }

    /// Replaces the charge by `bytes(what the others are charged)`.
    fn charge(&mut self, mut bytes: impl FnMut(usize) -> usize) {
        let (before, mut after) = (self.bytes, 0);
        let changed = self.budget.charged.fetch_update(SeqCst, SeqCst, |charged| {
            // The closure may run again if another session changed the total meanwhile.
            let others = charged.saturating_sub(before);
            after = bytes(others);
            Some(others.saturating_add(after))
        });
        debug_assert!(changed.is_ok(), "the closure always returns Some");
        self.bytes = after;
        if after < before {
            self.budget.released.notify_waiters();
        }
    }
}

impl Drop for SessionByteShare {
    fn drop(&mut self) {
        self.charge(|_| 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SessionByteBudget {
        fn share_of(self: &Arc<Self>, credit: u32, size: usize) -> SessionByteShare {
            self.typical_message_size.store(size, Relaxed);
            self.share(credit)
        }
    }

    #[test]
    fn a_share_is_kept_when_the_budget_is_used_up() {
        let budget = SessionByteBudget::new(64_000);
        let mut shares: Vec<_> = (0..4).map(|_| budget.share_of(16, 1_000)).collect();
        assert_eq!(shares[0].resize(1_000, 500), 32, "the same bytes allow more small messages");
        assert_eq!(shares[1].resize(1_000, 2_000), 8, "and fewer large ones");
        assert_eq!(budget.charged(), 64_000);
    }

    #[test]
    fn the_typical_message_size_follows_received_messages() {
        let budget = SessionByteBudget::new(1 << 20);
        budget.record_message_size(10_000);
        assert_eq!(budget.typical_message_size(), 10_000);
        (0..100).for_each(|_| budget.record_message_size(500));
        assert_eq!(budget.typical_message_size(), 500);
    }

    #[test]
    fn a_session_gets_the_wanted_credit_while_bytes_are_free() {
        let budget = SessionByteBudget::new(1 << 20);
        let mut share = budget.share_of(16, 1_000);
        assert_eq!(budget.charged(), 16_000);
        assert_eq!(share.resize(100, 1_000), 100);
        assert_eq!(budget.charged(), 100_000);
        drop(share);
        assert_eq!(budget.charged(), 0);
    }

    #[test]
    fn large_messages_get_little_credit_but_never_none() {
        let budget = SessionByteBudget::new(1 << 20);
        let mut one = budget.share_of(16, 1_000);
        assert_eq!(one.resize(1_000, 100 << 10), 2);
        assert_eq!(one.resize(1_000, 10 << 20), 1);
        let mut other = budget.share_of(1, 1);
        assert_eq!(other.resize(1_000, 1_000), 1, "the first share took all bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_wakes_when_bytes_are_released() {
        let budget = SessionByteBudget::new(1_000);
        let share = budget.share_of(1, 1_000);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.wait_for_free_bytes().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(share);
        waiting.await.unwrap();
    }
}
