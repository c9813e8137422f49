//! Spreads leases over the pods: a process that leads more than others waits before it tries to take one more.
//!
//! The wait is the only effect. Whether a candidate may take a lease is decided by [`crate::decide`] alone, from what it reads
//! after the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Longer than a read and a write of the lease on a busy server take, so that a pod with one lease less is first.
const STEP: Duration = Duration::from_millis(15);
/// A lease that is free is taken within 100 ms, whoever takes it.
const LONGEST_WAIT: Duration = Duration::from_millis(60);
/// Of `least_elsewhere`: there is no other pod.
const NO_OTHER_POD: usize = usize::MAX;

/// The leases of one process. Cheap to clone; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct LeaseSpread(Arc<SpreadCounts>);

#[derive(Debug, Default)]
struct SpreadCounts {
    /// Leases that this process leads or tries to take.
    taken: AtomicUsize,
    led: AtomicUsize,
    /// The fewest leases that another live pod leads. 0 before the first reading: another pod may have none.
    least_elsewhere: AtomicUsize,
}

/// An attempt to take a lease, and then the lease, until it is dropped.
#[derive(Debug)]
pub(crate) struct TakenLease {
    counts: Arc<SpreadCounts>,
    delay: Duration,
    is_led: bool,
}

impl LeaseSpread {
    /// How many leases this process leads.
    pub fn led(&self) -> usize {
        self.0.led.load(Relaxed)
    }

    /// The fewest leases that another live pod leads; `None` if there is no other pod.
    pub fn set_least_elsewhere(&self, least: Option<usize>) {
        self.0.least_elsewhere.store(least.unwrap_or(NO_OTHER_POD), Relaxed);
    }

    /// Counts an attempt. Attempts count too, so that a pod that starts does not try all leases at the same moment.
    pub(crate) fn attempt(&self) -> TakenLease {
        let taken = self.0.taken.fetch_add(1, Relaxed);
        let delay = takeover_delay(taken, self.0.least_elsewhere.load(Relaxed));
        TakenLease { counts: Arc::clone(&self.0), delay, is_led: false }
    }
}

/// How long a process with `taken` leases waits before it takes one more.
fn takeover_delay(taken: usize, least_elsewhere: usize) -> Duration {
    let more = u32::try_from(taken.saturating_sub(least_elsewhere)).unwrap_or(u32::MAX);
    STEP.saturating_mul(more).min(LONGEST_WAIT)
}

impl TakenLease {
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    pub(crate) fn set_led(&mut self) {
        if !self.is_led {
            self.is_led = true;
            self.counts.led.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for TakenLease {
    fn drop(&mut self) {
        self.counts.taken.fetch_sub(1, Relaxed);
        if self.is_led {
            self.counts.led.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_leads_more_than_others_waits_longer() {
        for (taken, least, millis) in [(0, 0, 0), (1, 0, 15), (3, 2, 15), (2, 3, 0), (9, 0, 60), (9, NO_OTHER_POD, 0)] {
            assert_eq!(takeover_delay(taken, least), Duration::from_millis(millis), "{taken} {least}");
        }
    }

    #[test]
    fn attempts_and_leases_count_until_they_are_dropped() {
        let spread = LeaseSpread::default();
        let (mut first, second) = (spread.attempt(), spread.attempt());
        assert_eq!((first.delay(), second.delay()), (Duration::ZERO, STEP));
        first.set_led();
        first.set_led();
        assert_eq!(spread.led(), 1);
        drop(second);
        assert_eq!(spread.attempt().delay(), STEP);
        drop(first);
        assert_eq!((spread.led(), spread.attempt().delay()), (0, Duration::ZERO));
    }
}
