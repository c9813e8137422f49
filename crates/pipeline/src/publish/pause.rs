//! How long to wait before trying again.

use std::time::Duration;

/// Doubles from `first` to `longest` with every attempt; drawn from the upper half, so that many who failed together do not come back together.
pub(super) fn backoff(attempts: u32, first: Duration, longest: Duration) -> Duration {
    let span = first.saturating_mul(1 << attempts.min(16)).min(longest);
    span.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_secs(1));
        assert!(backoff(0, first, longest) <= first);
        let late = backoff(60, first, longest);
        assert!(late >= longest / 2 && late <= longest);
    }
}
