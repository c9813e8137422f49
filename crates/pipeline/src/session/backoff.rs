//! Sessions that failed, and how long each waits before it is tried again.
//!
//! The pause is made while the lock is held: nobody else can fail with the same session meanwhile, and nobody else waits for it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::retry;

/// By session: failures in a row.
#[derive(Debug, Default)]
pub(super) struct SessionBackoff(Mutex<HashMap<String, u32>>);

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// More sessions than this in trouble are one trouble; forgetting them only makes their next pause short.
const MAX_TRACKED_SESSIONS: usize = 10_000;

impl SessionBackoff {
    /// It failed again; how long to wait. The first failure in a row costs no pause: most pass by themselves.
    pub(super) fn record_failure(&self, session: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= MAX_TRACKED_SESSIONS {
            failures.clear();
        }
        let count = failures.entry(session.to_owned()).or_default();
        *count = count.saturating_add(1);
        backoff_delay(count.saturating_sub(1), 1.0)
    }

    pub(super) fn record_success(&self, session: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }
}

/// The pause after so many failures; doubles up to its bound. `jitter` in 0.75..1.25 keeps many from coming back at once.
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
