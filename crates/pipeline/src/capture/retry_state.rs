//! Retries against the source: backoff, response timeout, and one log line per outage.

use std::time::Duration;

use tokio::time::Instant;

use super::error::Error;
use crate::retry::backoff;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A server skips 350,000 oplog entries per second, so it passes any oplog within this time.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// One outage: starts with a failure, ends with a reply.
#[derive(Debug)]
pub(super) struct RetryState {
    base_timeout: Duration,
    timeout: Duration,
    failures: u32,
    since: Option<Instant>,
}

impl RetryState {
    pub(super) fn new(base_timeout: Duration) -> Self {
        Self { base_timeout, timeout: base_timeout, failures: 0, since: None }
    }

    /// How long to wait for the next reply.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Logs the first failure of an outage; returns the backoff before the next attempt.
    pub(super) fn record_failure(&mut self, error: &Error) -> Duration {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(error = error as &dyn std::error::Error, "failed to read source; retrying");
        } else {
            tracing::debug!(
                error = error as &dyn std::error::Error,
                failures = self.failures,
                "source still unreadable; retrying"
            );
        }
        if matches!(error, Error::Timeout { .. }) {
            // Either the connection is dead, or the server skips unrelated oplog entries and sends nothing. A short first timeout finds
            // a dead connection; doubling it gives a busy server the time it needs.
            self.timeout = self.timeout.saturating_mul(2).min(MAX_TIMEOUT.max(self.base_timeout));
        }
        let pause = backoff(self.failures, FIRST_BACKOFF, MAX_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    pub(super) fn record_success(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(failures = self.failures, lasted = ?since.elapsed(), "source readable again");
            (self.failures, self.timeout) = (0, self.base_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Error = Error::Timeout { operation: "read", waited: Duration::from_secs(1) };

    #[test]
    fn the_timeout_doubles_on_timeouts_and_resets_on_success() {
        let mut retry = RetryState::new(Duration::from_secs(6));
        for timeout in [6, 12, 24, 48] {
            assert_eq!(retry.timeout(), Duration::from_secs(timeout));
            retry.record_failure(&SILENT);
        }
        retry.record_failure(&Error::Unreadable { problem: "is not BSON" });
        assert_eq!(retry.timeout(), Duration::from_secs(96));
        retry.record_success();
        assert_eq!(retry.timeout(), Duration::from_secs(6));
    }
}
