//! A spell of trouble with the server: when to try again, how long to wait for an answer, and what to say about it once.

use std::time::Duration;

use tokio::time::Instant;

use super::error::Error;
use crate::retry::backoff;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// At 350,000 skipped oplog entries a second: more than any oplog holds.
const LONGEST_PATIENCE: Duration = Duration::from_secs(3600);

/// Begins with a failure, ends with an answer.
#[derive(Debug)]
pub(super) struct RetryState {
    usual_patience: Duration,
    patience: Duration,
    failures: u32,
    since: Option<Instant>,
}

impl RetryState {
    pub(super) fn none(usual_patience: Duration) -> Self {
        Self { usual_patience, patience: usual_patience, failures: 0, since: None }
    }

    /// How long to wait for the next answer.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Told once per spell; returns how long to wait before the next try.
    pub(super) fn failed(&mut self, error: &Error) -> Duration {
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
        if matches!(error, Error::Silent { .. }) {
            // Either the connection leads nowhere, or the server is busy skipping what is not ours. The first is found soon, and the
            // second is given the time it needs, whichever it is.
            self.patience = self.patience.saturating_mul(2).min(LONGEST_PATIENCE.max(self.usual_patience));
        }
        let pause = backoff(self.failures, FIRST_PAUSE, LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// The server answered with what was asked for.
    pub(super) fn over(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(failures = self.failures, lasted = ?since.elapsed(), "the source is read again");
            (self.failures, self.patience) = (0, self.usual_patience);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Error = Error::Silent { doing: "read", waited: Duration::from_secs(1) };

    #[test]
    fn patience_doubles_with_silence_and_returns_with_an_answer() {
        let mut trouble = RetryState::none(Duration::from_secs(6));
        for patience in [6, 12, 24, 48] {
            assert_eq!(trouble.patience(), Duration::from_secs(patience));
            trouble.failed(&SILENT);
        }
        trouble.failed(&Error::Unreadable { problem: "is not silence" });
        assert_eq!(trouble.patience(), Duration::from_secs(96));
        trouble.over();
        assert_eq!(trouble.patience(), Duration::from_secs(6));
    }
}
