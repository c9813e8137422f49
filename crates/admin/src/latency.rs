//! How long events take from insert to read model: counts in buckets, which add up over time and over pods.
//!
//! LatencyQuantiles of quantiles mean nothing, so pods exchange buckets and whoever asks computes the quantile of their sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in milliseconds: about five in a decade from 1 ms to 1 s, where the answer usually lies, coarser to ten minutes.
pub const BOUNDS: [u64; 24] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 120_000,
    600_000,
];
const LENGTH: usize = BOUNDS.len() + 1;

/// Where latencies are recorded. Cheap to clone; costs two atomic additions.
#[derive(Clone, Debug, Default)]
pub struct LatencyHistogram(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: [AtomicU64; LENGTH],
    micros: AtomicU64,
}

/// The counts at one moment, or of one span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyBuckets {
    /// One for each bound, and one for what is above all of them.
    pub counts: [u64; LENGTH],
    pub micros: u64,
}

impl LatencyHistogram {
    pub fn record(&self, took: Duration) {
        let at = BOUNDS.partition_point(|bound| Duration::from_millis(*bound) < took);
        self.0.counts[at].fetch_add(1, Relaxed);
        self.0.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// All since the start.
    pub fn read(&self) -> LatencyBuckets {
        let counts = std::array::from_fn(|at| self.0.counts[at].load(Relaxed));
        LatencyBuckets { counts, micros: self.0.micros.load(Relaxed) }
    }
}

impl LatencyBuckets {
    /// From what a pod announced; `None` if it counts by other bounds.
    pub fn from_counts(counts: &[u64]) -> Option<Self> {
        Some(Self { counts: counts.try_into().ok()?, micros: 0 })
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(earlier.counts[at]));
        Self { counts, micros: self.micros.saturating_sub(earlier.micros) }
    }

    pub fn add(&mut self, other: &Self) {
        for (own, others) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(others);
        }
        self.micros = self.micros.saturating_add(other.micros);
    }

    /// In seconds, straight-lined within its bucket; `None` when there is nothing. What lies above all bounds is told as the highest of them.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let rank = quantile.clamp(0.0, 1.0) * total as f64;
        let mut below = 0.0;
        for (at, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let lower = if at == 0 { 0 } else { BOUNDS[at - 1] } as f64;
                let upper = BOUNDS.get(at).copied().unwrap_or(BOUNDS[BOUNDS.len() - 1]) as f64;
                return Some((lower + (upper - lower) * ((rank - below) / count)) / 1_000.0);
            }
            below += count;
        }
        Some(BOUNDS[BOUNDS.len() - 1] as f64 / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(millis: impl IntoIterator<Item = u64>) -> LatencyBuckets {
        let latency = LatencyHistogram::default();
        millis.into_iter().for_each(|millis| latency.record(Duration::from_millis(millis)));
        latency.read()
    }

    #[test]
    fn nothing_recorded_has_no_quantile() {
        assert_eq!(LatencyBuckets::default().quantile(0.5), None);
    }

    #[test]
    fn a_value_counts_in_the_bucket_whose_bound_it_does_not_exceed() {
        let buckets = recorded([0, 1, 2, 600_000, 600_001]);
        assert_eq!((buckets.counts[0], buckets.counts[1]), (2, 1));
        assert_eq!((buckets.counts[LENGTH - 2], buckets.counts[LENGTH - 1]), (1, 1));
    }

    #[test]
    fn quantiles_lie_within_the_bucket_that_holds_them() {
        let buckets = recorded((0..100).map(|n| if n < 95 { 4 } else { 900 }));
        let (p50, p99) = (buckets.quantile(0.5).unwrap(), buckets.quantile(0.99).unwrap());
        assert!((0.003..=0.005).contains(&p50), "{p50}");
        assert!((0.7..=1.0).contains(&p99), "{p99}");
        assert_eq!(recorded([10_000_000]).quantile(0.5), Some(600.0));
    }

    #[test]
    fn buckets_of_pods_add_up_and_a_span_is_a_difference() {
        let (earlier, later) = (recorded([4]), recorded([4, 4, 900]));
        let span = later.since(&earlier);
        assert_eq!((span.total(), span.micros), (2, 904_000));
        let mut sum = span.clone();
        sum.add(&earlier);
        assert_eq!(sum, later);
        assert_eq!(LatencyBuckets::from_counts(&span.counts).unwrap().quantile(0.5), span.quantile(0.5));
        assert_eq!(LatencyBuckets::from_counts(&[1, 2]), None);
    }
}
