//! The broker's clock. It never runs backwards while the process lives, and tests can move it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::Timestamp;

/// Milliseconds since the Unix epoch: the wall clock at the start plus the elapsed monotonic time.
#[derive(Debug)]
pub(crate) struct BrokerClock {
    started_at: u64,
    started: Instant,
    /// How far tests have moved the clock ahead, in milliseconds.
    offset: AtomicU64,
}

impl Default for BrokerClock {
    fn default() -> Self {
        #[expect(clippy::disallowed_methods, reason = "clients are shown wall-clock times; taken once, at the start")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at: millis(now), started: Instant::now(), offset: AtomicU64::new(0) }
    }
}

impl BrokerClock {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.started_at + millis(self.started.elapsed()) + self.offset.load(Ordering::Relaxed))
    }

    /// Moves the clock ahead, for tests. Locks and messages that are due by then expire.
    pub(crate) fn advance(&self, by: Duration) {
        self.offset.fetch_add(millis(by), Ordering::Relaxed);
    }

    /// Time from now until `moment`; zero if it has passed.
    pub(crate) fn duration_until(&self, moment: Timestamp) -> Duration {
        Duration::from_millis(moment.0.saturating_sub(self.now().0))
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
