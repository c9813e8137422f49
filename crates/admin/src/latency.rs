//! Latency from insert to read model, as histogram buckets that add up over time and over pods.
//!
//! Quantiles cannot be averaged, so pods exchange buckets, and a reader computes the quantiles of their sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in milliseconds: about five per decade from 1 ms to 1 s, the usual range, then coarser up to ten minutes.
pub const BOUNDS: [u64; 24] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 120_000,
    600_000,
];
const BUCKET_COUNT: usize = BOUNDS.len() + 1;

/// Records latencies. Cheap to clone; a record is two relaxed atomic additions.
#[derive(Clone, Debug, Default)]
pub struct LatencyHistogram(Arc<AtomicBuckets>);

#[derive(Debug, Default)]
struct AtomicBuckets {
    counts: [AtomicU64; BUCKET_COUNT],
    micros: AtomicU64,
}

/// The counts at one moment, or of one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyBuckets {
    /// One per bound, and one above the highest.
    pub counts: [u64; BUCKET_COUNT],
    pub micros: u64,
}

impl LatencyHistogram {
    pub fn record(&self, took: Duration) {
        let at = BOUNDS.partition_point(|bound| Duration::from_millis(*bound) < took);
        self.0.counts[at].fetch_add(1, Relaxed);
        self.0.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// All records since the start.
    pub fn snapshot(&self) -> LatencyBuckets {
        let counts = std::array::from_fn(|at| self.0.counts[at].load(Relaxed));
        LatencyBuckets { counts, micros: self.0.micros.load(Relaxed) }
    }
}

impl LatencyBuckets {
    /// From a pod's announcement; `None` if that pod uses other bounds.
    pub fn from_counts(counts: &[u64]) -> Option<Self> {
        Some(Self { counts: counts.try_into().ok()?, micros: 0 })
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The records after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(earlier.counts[at]));
        Self { counts, micros: self.micros.saturating_sub(earlier.micros) }
    }

    pub fn merge(&mut self, other: &Self) {
        for (own, others) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(others);
        }
        self.micros = self.micros.saturating_add(other.micros);
    }

    /// In seconds, interpolated linearly within its bucket; `None` without records. Values above all bounds count as the highest bound.
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
        latency.snapshot()
    }

    #[test]
    fn nothing_recorded_has_no_quantile() {
        assert_eq!(LatencyBuckets::default().quantile(0.5), None);
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let buckets = recorded([0, 1, 2, 600_000, 600_001]);
        assert_eq!((buckets.counts[0], buckets.counts[1]), (2, 1));
        assert_eq!((buckets.counts[BUCKET_COUNT - 2], buckets.counts[BUCKET_COUNT - 1]), (1, 1));
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let buckets = recorded((0..100).map(|n| if n < 95 { 4 } else { 900 }));
        let (p50, p99) = (buckets.quantile(0.5).unwrap(), buckets.quantile(0.99).unwrap());
        assert!((0.003..=0.005).contains(&p50), "{p50}");
        assert!((0.7..=1.0).contains(&p99), "{p99}");
        assert_eq!(recorded([10_000_000]).quantile(0.5), Some(600.0));
    }

    #[test]
    fn buckets_add_up_and_subtract() {
        let (earlier, later) = (recorded([4]), recorded([4, 4, 900]));
        let period = later.since(&earlier);
        assert_eq!((period.total(), period.micros), (2, 904_000));
        let mut sum = period.clone();
        sum.merge(&earlier);
        assert_eq!(sum, later);
        assert_eq!(LatencyBuckets::from_counts(&period.counts).unwrap().quantile(0.5), period.quantile(0.5));
        assert_eq!(LatencyBuckets::from_counts(&[1, 2]), None);
    }
}
