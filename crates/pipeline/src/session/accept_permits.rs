//! Limits how many accept requests are in flight at a time.
//!
//! An accept that finds no session times out and is sent again by every pod, and Service Bus may charge for each request. So an idle pod
//! keeps few accepts in flight. Each accept that is granted quickly adds a permit, up to the maximum: then the resulting settlements and
//! transactions are also sent in larger groups.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits of an idle pod.
const MIN_PERMITS: usize = 8;
/// Permits under full load.
pub(super) const MAX_PERMITS: usize = 256;

#[derive(Debug)]
pub(super) struct AcceptPermits {
    permits: Semaphore,
    /// All permits, free or in use.
    total: AtomicUsize,
    max: usize,
}

/// Permission for one accept request; returned when dropped.
#[derive(Debug)]
pub(super) struct AcceptPermit<'a> {
    pool: &'a AcceptPermits,
    permit: SemaphorePermit<'a>,
}

impl AcceptPermits {
    pub(super) fn new(slots: usize) -> Self {
        let min = MIN_PERMITS.min(slots);
        Self { permits: Semaphore::new(min), total: AtomicUsize::new(min), max: MAX_PERMITS.min(slots) }
    }

    /// Cancel-safe.
    pub(super) async fn acquire(&self) -> AcceptPermit<'_> {
        AcceptPermit { pool: self, permit: self.permits.acquire().await.expect("the semaphore is never closed") }
    }
}

impl AcceptPermit<'_> {
    /// Adds a permit after a quick grant; removes this one otherwise.
    pub(super) fn record_result(self, granted_quickly: bool) {
        let AcceptPermits { permits, total, max } = self.pool;
        let decrement = |total: usize| (total > MIN_PERMITS).then(|| total - 1);
        let increment = |total: usize| (total < *max).then_some(total + 1);
        // The permit itself returns on drop, so a quick grant adds one and a slow one removes its own.
        if granted_quickly && total.fetch_update(Relaxed, Relaxed, increment).is_ok() {
            permits.add_permits(1);
        } else if !granted_quickly && total.fetch_update(Relaxed, Relaxed, decrement).is_ok() {
            self.permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn free_permits(permits: &AcceptPermits) -> usize {
        let mut acquired = vec![];
        while let Some(permit) = permits.acquire().now_or_never() {
            acquired.push(permit);
        }
        acquired.len()
    }

    #[test]
    fn permits_grow_with_quick_grants_and_shrink_without() {
        let permits = AcceptPermits::new(1_000);
        assert_eq!(free_permits(&permits), MIN_PERMITS);
        for _ in 0..2 * MAX_PERMITS {
            permits.acquire().now_or_never().expect("a permit is free").record_result(true);
        }
        assert_eq!(free_permits(&permits), MAX_PERMITS);
        for _ in 0..2 * MAX_PERMITS {
            permits.acquire().now_or_never().expect("a permit is free").record_result(false);
        }
        assert_eq!(free_permits(&permits), MIN_PERMITS);
    }

    #[test]
    fn permits_never_exceed_session_slots() {
        let permits = AcceptPermits::new(3);
        for _ in 0..10 {
            permits.acquire().now_or_never().expect("a permit is free").record_result(true);
        }
        assert_eq!(free_permits(&permits), 3);
        permits.acquire().now_or_never().expect("a permit is free").record_result(false);
        assert_eq!(free_permits(&permits), 3);
    }
}
