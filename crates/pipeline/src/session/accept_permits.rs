//! How many sessions are asked for at a time.
//!
//! An accept that waits in vain is asked again and again, by every pod, and a bus may charge for it: so there are few while nothing waits
//! there. One that is granted soon is followed by two, up to many: then what they cause is sent, stored and applied together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Semaphore, SemaphorePermit};

/// However little there is.
const MIN_PERMITS: usize = 8;
/// However much there is.
pub(super) const MAX_PERMITS: usize = 256;

#[derive(Debug)]
pub(super) struct AcceptPermits {
    permits: Semaphore,
    /// Leaves there are, free or not.
    total: AtomicUsize,
    max: usize,
}

/// To ask for one session; free again when dropped.
#[derive(Debug)]
pub(super) struct AcceptPermit<'a> {
    accepts: &'a AcceptPermits,
    permit: SemaphorePermit<'a>,
}

impl AcceptPermits {
    pub(super) fn new(slots: usize) -> Self {
        let min = MIN_PERMITS.min(slots);
        Self { permits: Semaphore::new(min), total: AtomicUsize::new(min), max: MAX_PERMITS.min(slots) }
    }

    /// Cancel-safe.
    pub(super) async fn acquire(&self) -> AcceptPermit<'_> {
        AcceptPermit { accepts: self, permit: self.permits.acquire().await.expect("it is never closed") }
    }
}

impl AcceptPermit<'_> {
    /// Whether a session was granted, and soon.
    pub(super) fn record_result(self, granted_quickly: bool) {
        let AcceptPermits { permits, total, max } = self.accepts;
        let decrement = |total: usize| (total > MIN_PERMITS).then(|| total - 1);
        let increment = |total: usize| (total < *max).then_some(total + 1);
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

    fn free_permits(accepts: &AcceptPermits) -> usize {
        let mut permits = vec![];
        while let Some(acquire) = accepts.acquire().now_or_never() {
            permits.push(acquire);
        }
        permits.len()
    }

    #[test]
    fn permits_grow_with_quick_grants_and_shrink_without() {
        let accepts = AcceptPermits::new(1_000);
        assert_eq!(free_permits(&accepts), MIN_PERMITS);
        for _ in 0..2 * MAX_PERMITS {
            accepts.acquire().now_or_never().expect("one is free").record_result(true);
        }
        assert_eq!(free_permits(&accepts), MAX_PERMITS);
        for _ in 0..2 * MAX_PERMITS {
            accepts.acquire().now_or_never().expect("one is free").record_result(false);
        }
        assert_eq!(free_permits(&accepts), MIN_PERMITS);
    }

    #[test]
    fn permits_never_exceed_session_slots() {
        let accepts = AcceptPermits::new(3);
        for _ in 0..10 {
            accepts.acquire().now_or_never().expect("one is free").record_result(true);
        }
        assert_eq!(free_permits(&accepts), 3);
        accepts.acquire().now_or_never().expect("one is free").record_result(false);
        assert_eq!(free_permits(&accepts), 3);
    }
}
