//! Backoff between retries.

use std::time::Duration;

/// The delay after `failures` earlier failures: doubles from `first` to `max`.
pub fn exponential_delay(failures: u32, first: Duration, max: Duration) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(max)
}

/// The same with jitter, from the upper half of the delay, so that clients that failed together do not retry together.
pub fn backoff(failures: u32, first: Duration, max: Duration) -> Duration {
    exponential_delay(failures, first, max).mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_to_the_maximum() {
        let (first, max) = (Duration::from_millis(10), Duration::from_secs(1));
        assert_eq!([0, 1, 2].map(|failures| exponential_delay(failures, first, max)), [first, first * 2, first * 4]);
        assert_eq!(exponential_delay(u32::MAX, first, max), max);
        let late = backoff(60, first, max);
        assert!(late >= max / 2 && late <= max);
    }
}
