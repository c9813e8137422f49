//! Percentiles of measured durations.

use std::fmt;
use std::time::Duration;

/// Sorted durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencySummary(Vec<Duration>);

impl LatencySummary {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn max(&self) -> Duration {
        percentile(&self.0, 100)
    }

    pub fn percentile_ms(&self, percent: usize) -> f64 {
        percentile(&self.0, percent).as_secs_f64() * 1_000.0
    }

    /// In milliseconds.
    pub fn json(&self) -> serde_json::Value {
        let [p50, p99, max] = self.percentiles_ms().map(|ms| (ms * 10.0).round() / 10.0);
        serde_json::json!({ "count": self.count(), "p50_ms": p50, "p99_ms": p99, "max_ms": max })
    }

    fn percentiles_ms(&self) -> [f64; 3] {
        [50, 99, 100].map(|percent| self.percentile_ms(percent))
    }
}

impl FromIterator<Duration> for LatencySummary {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }
}

impl fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = self.percentiles_ms();
        write!(f, "p50 {p50:.1} ms, p99 {p99:.1} ms, at most {max:.1} ms, of {}", self.count())
    }
}

/// The smallest value that this many percent do not exceed; zero for an empty slice.
pub fn percentile<T: Copy + Default>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_smallest_value_not_exceeded() {
        let hundred: LatencySummary = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(hundred.percentiles_ms(), [50.0, 99.0, 100.0]);
        let three: LatencySummary = [3, 1, 2].map(Duration::from_millis).into_iter().collect();
        assert_eq!((three.percentiles_ms(), three.max()), ([2.0, 3.0, 3.0], Duration::from_millis(3)));
        assert_eq!(LatencySummary::default().percentiles_ms(), [0.0; 3]);
    }
}
