//! How long to wait before trying again: longer each time, never in step with the other pods.

use std::time::Duration;

/// Doubles from `first` to `longest`; each pause is drawn from the upper half of its span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    pub(crate) fn failed(&mut self) -> Duration {
        let factor = 1_u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let span = self.first.saturating_mul(factor).min(self.longest);
        span.mul_f64(rand::random_range(0.5..=1.0))
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// A pause of about `span`, give or take a quarter.
pub(crate) fn jittered(span: Duration) -> Duration {
    span.mul_f64(rand::random_range(0.75..=1.25))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_start_over_after_success() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, longest);
        let pauses: Vec<_> = (0..40).map(|_| backoff.failed()).collect();
        assert!(pauses[0] <= first);
        assert!(pauses.iter().all(|pause| *pause <= longest));
        assert!(pauses[39] >= longest / 2);
        backoff.succeeded();
        assert!(backoff.failed() <= first);
    }
}
