//! A spell of trouble with the server: when to try again, how long to wait for an answer, and what to say about it once.

use std::time::Duration;

use tokio::time::Instant;

use super::error::Error;
use crate::retry::backoff;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// At 350,000 skipped oplog entries a second: more than any oplog holds.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Begins with a failure, ends with an answer.
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

    /// How long to wait for the next answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Told once per spell; returns how long to wait before the next try.
    pub(super) fn record_failure(&mut self, error: &Error) -> Duration {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the source cannot be read; trying again until it can"
            );
        } else {
            tracing::debug!(
                error = error as &dyn std::error::Error,
                failures = self.failures,
                "the source still cannot be read"
            );
        }
        if matches!(error, Error::Timeout { .. }) {
            // Either the connection leads nowhere, or the server is busy skipping what is not ours. The first is found soon, and the
            // second is given the time it needs, whichever it is.
            self.timeout = self.timeout.saturating_mul(2).min(MAX_TIMEOUT.max(self.base_timeout));
        }
        let pause = backoff(self.failures, FIRST_BACKOFF, MAX_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// The server answered with what was asked for.
    pub(super) fn record_success(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(failures = self.failures, lasted = ?since.elapsed(), "the source is read again");
            (self.failures, self.timeout) = (0, self.base_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Error = Error::Timeout { operation: "read", waited: Duration::from_secs(1) };

    #[test]
    fn patience_doubles_with_silence_and_returns_with_an_answer() {
        let mut retry = RetryState::new(Duration::from_secs(6));
        for timeout in [6, 12, 24, 48] {
            assert_eq!(retry.timeout(), Duration::from_secs(timeout));
            retry.record_failure(&SILENT);
        }
        retry.record_failure(&Error::Unreadable { problem: "is not silence" });
        assert_eq!(retry.timeout(), Duration::from_secs(96));
        retry.record_success();
        assert_eq!(retry.timeout(), Duration::from_secs(6));
    }
}
