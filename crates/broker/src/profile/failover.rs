//! A failover of the namespace: all connections end, and new ones are refused for a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
pub(super) struct Failover(Mutex<FailoverState>);

#[derive(Debug, Default)]
struct FailoverState {
    /// Ends the connections that were admitted since the last failover.
    connections: Option<CancellationToken>,
    refused_until: Option<Instant>,
}

impl Failover {
    pub(super) fn begin(&self, refuse_for: Duration, now: Instant) {
        let mut state = self.lock();
        state.refused_until = Some(now + refuse_for);
        if let Some(connections) = state.connections.take() {
            connections.cancel();
        }
    }

    pub(super) fn admit(&self, shutdown: &CancellationToken, now: Instant) -> Option<CancellationToken> {
        let mut state = self.lock();
        if state.refused_until.is_some_and(|until| until > now) {
            return None;
        }
        Some(state.connections.get_or_insert_with(|| shutdown.child_token()).clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FailoverState> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_ends_connections_and_refuses_new_ones() {
        let (failover, shutdown, now) = (Failover::default(), CancellationToken::new(), Instant::now());
        let before = failover.admit(&shutdown, now).unwrap();
        failover.begin(Duration::from_secs(30), now);
        assert!(before.is_cancelled() && !shutdown.is_cancelled());
        assert!(failover.admit(&shutdown, now).is_none());
        let after = failover.admit(&shutdown, now + Duration::from_secs(30)).unwrap();
        assert!(!after.is_cancelled());
        shutdown.cancel();
        assert!(after.is_cancelled(), "a stop of the broker ends it too");
    }
}
