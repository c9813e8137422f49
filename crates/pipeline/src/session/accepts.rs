//! How many sessions are asked for at a time.
//!
//! An accept that waits in vain is asked again and again, by every pod, and a bus may charge for it: so there are few while nothing waits
//! there. One that is granted soon is followed by two, up to many: then what they cause is sent, stored and applied together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Semaphore, SemaphorePermit};

/// However little there is.
const FEW: usize = 8;
/// However much there is.
pub(super) const MOST: usize = 256;

#[derive(Debug)]
pub(super) struct Accepts {
    leaves: Semaphore,
    /// Leaves there are, free or not.
    count: AtomicUsize,
    most: usize,
}

/// To ask for one session; free again when dropped.
#[derive(Debug)]
pub(super) struct Leave<'a> {
    accepts: &'a Accepts,
    permit: SemaphorePermit<'a>,
}

impl Accepts {
    pub(super) fn new(seats: usize) -> Self {
        let few = FEW.min(seats);
        Self { leaves: Semaphore::new(few), count: AtomicUsize::new(few), most: MOST.min(seats) }
    }

    /// Cancel-safe.
    pub(super) async fn leave(&self) -> Leave<'_> {
        Leave { accepts: self, permit: self.leaves.acquire().await.expect("it is never closed") }
    }
}

impl Leave<'_> {
    /// Whether a session was granted, and soon.
    pub(super) fn used(self, soon: bool) {
        let Accepts { leaves, count, most } = self.accepts;
        let fewer = |count: usize| (count > FEW).then(|| count - 1);
        let more = |count: usize| (count < *most).then_some(count + 1);
        if soon && count.fetch_update(Relaxed, Relaxed, more).is_ok() {
            leaves.add_permits(1);
        } else if !soon && count.fetch_update(Relaxed, Relaxed, fewer).is_ok() {
            self.permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn free(accepts: &Accepts) -> usize {
        let mut leaves = vec![];
        while let Some(leave) = accepts.leave().now_or_never() {
            leaves.push(leave);
        }
        leaves.len()
    }

    #[test]
    fn there_are_more_while_they_are_granted_soon_and_few_again_when_they_are_not() {
        let accepts = Accepts::new(1_000);
        assert_eq!(free(&accepts), FEW);
        for _ in 0..2 * MOST {
            accepts.leave().now_or_never().expect("one is free").used(true);
        }
        assert_eq!(free(&accepts), MOST);
        for _ in 0..2 * MOST {
            accepts.leave().now_or_never().expect("one is free").used(false);
        }
        assert_eq!(free(&accepts), FEW);
    }

    #[test]
    fn there_are_never_more_than_seats() {
        let accepts = Accepts::new(3);
        for _ in 0..10 {
            accepts.leave().now_or_never().expect("one is free").used(true);
        }
        assert_eq!(free(&accepts), 3);
        accepts.leave().now_or_never().expect("one is free").used(false);
        assert_eq!(free(&accepts), 3);
    }
}
