//! Retry delays: exponential, with jitter so that pods do not retry in step.

use std::time::Duration;

/// Doubles from `first` to `longest`; each delay is drawn from the upper half of its span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseBackoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl LeaseBackoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub(crate) fn next_delay(&mut self) -> Duration {
        // The cap keeps the shift in range; `longest` is reached long before.
        let factor = 1_u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let span = self.first.saturating_mul(factor).min(self.longest);
        span.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `span`, plus or minus a quarter.
pub(crate) fn with_jitter(span: Duration) -> Duration {
    span.mul_f64(rand::random_range(0.75..=1.25))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_longest_and_start_over_after_success() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = LeaseBackoff::new(first, longest);
        let delays: Vec<_> = (0..40).map(|_| backoff.next_delay()).collect();
        assert!(delays[0] <= first);
        assert!(delays.iter().all(|delay| *delay <= longest));
        assert!(delays[39] >= longest / 2);
        backoff.reset();
        assert!(backoff.next_delay() <= first);
    }
}
