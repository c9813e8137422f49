//! Sessions that failed, and how long each waits before it is tried again.
//!
//! The pause is made while the lock is held: nobody else can fail with the same session meanwhile, and nobody else waits for it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::retry;

/// By session: failures in a row.
#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<HashMap<String, u32>>);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// More sessions than this in trouble are one trouble; forgetting them only makes their next pause short.
const MOST: usize = 10_000;

impl Troubles {
    /// It failed again; how long to wait. The first failure in a row costs no pause: most pass by themselves.
    pub(super) fn failed(&self, session: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= MOST {
            failures.clear();
        }
        let count = failures.entry(session.to_owned()).or_default();
        *count = count.saturating_add(1);
        backoff(count.saturating_sub(1), 1.0)
    }

    pub(super) fn passed(&self, session: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }
}

/// The pause after so many failures; doubles up to its bound. `dice` in 0.75..1.25 keeps many from coming back at once.
pub(super) fn backoff(failures: u32, dice: f64) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    retry::exponential_delay(failures - 1, FIRST_PAUSE, LONGEST_PAUSE).mul_f64(dice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_fails_again_and_again_waits_longer_and_longer() {
        let troubles = Troubles::default();
        assert_eq!(troubles.failed("a"), Duration::ZERO);
        assert_eq!(troubles.failed("a"), FIRST_PAUSE);
        assert_eq!(troubles.failed("a"), FIRST_PAUSE * 2);
        assert_eq!(troubles.failed("b"), Duration::ZERO);
        for _ in 0..40 {
            troubles.failed("a");
        }
        assert_eq!(troubles.failed("a"), LONGEST_PAUSE);
        troubles.passed("a");
        assert_eq!(troubles.failed("a"), Duration::ZERO);
    }
}
