//! How long a failing session waits before its next attempt.
//!
//! The pod keeps the session locked while it waits, so no other pod can fail on the same session meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::retry;

/// Consecutive failures by session id.
#[derive(Debug, Default)]
pub(super) struct SessionBackoff(Mutex<HashMap<String, u32>>);

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Beyond this the cause is shared by all sessions. Clearing the map only makes their next backoff short.
const MAX_TRACKED_SESSIONS: usize = 10_000;

impl SessionBackoff {
    /// Returns the backoff before the next attempt. The first failure has none: most are transient.
    pub(super) fn record_failure(&self, session: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= MAX_TRACKED_SESSIONS {
            failures.clear();
        }
        let count = failures.entry(session.to_owned()).or_default();
        *count = count.saturating_add(1);
        // No jitter: the session lock already keeps other pods away.
        backoff_delay(count.saturating_sub(1), 1.0)
    }

    /// Consecutive failures of the session on this pod.
    pub(super) fn failures(&self, session: &str) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(session).copied().unwrap_or(0)
    }

    pub(super) fn record_success(&self, session: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }
}

/// Doubles with each failure up to the maximum. `jitter` in 0.75..1.25 keeps many retries from coming at once.
pub(super) fn backoff_delay(failures: u32, jitter: f64) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    retry::exponential_delay(failures - 1, FIRST_BACKOFF, MAX_BACKOFF).mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_lengthen_the_session_backoff() {
        let backoff = SessionBackoff::default();
        assert_eq!(backoff.record_failure("a"), Duration::ZERO);
        assert_eq!(backoff.record_failure("a"), FIRST_BACKOFF);
        assert_eq!(backoff.record_failure("a"), FIRST_BACKOFF * 2);
        assert_eq!(backoff.record_failure("b"), Duration::ZERO);
        for _ in 0..40 {
            backoff.record_failure("a");
        }
        assert_eq!(backoff.record_failure("a"), MAX_BACKOFF);
        backoff.record_success("a");
        assert_eq!(backoff.record_failure("a"), Duration::ZERO);
    }
}
