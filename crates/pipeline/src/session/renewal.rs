//! The session's lock, renewed at half its time for as long as the session is held.
//!
//! Runs beside the session's work and before it: a transaction that takes long must not cost the lock.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use servicebus::{BusErrorKind, SessionHandle};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::error_chain::error_chain;
use crate::retry::{self, ErrorClass};

/// No lock is so short that it must be renewed more often; a clock that runs ahead of the bus's must not make us ask all the time.
const LEAST: Duration = Duration::from_millis(500);

/// Renews until it is dropped. A lock that is lost is told by `over`.
pub(super) async fn keep(session: &SessionHandle, longest: Duration, over: &CancellationToken) -> Infallible {
    loop {
        // Only says when to ask again; whether the lock is held is the bus's to say.
        #[expect(
            clippy::disallowed_methods,
            reason = "the bus tells the moment by the wall clock; bounded on both sides"
        )]
        let now = SystemTime::now();
        tokio::time::sleep(pause(now, session.locked_until(), longest)).await;
        // Boxed, as it is seldom: every session would carry the room for it.
        if let Err(error) = Box::pin(session.renew_lock()).await {
            if session.lost_reason().is_some() || is_lost(error.kind()) {
                over.cancel();
                return std::future::pending().await;
            }
            warn!(error = error_chain(&error), "renew the lock of a session");
            tokio::time::sleep(LEAST).await;
        }
    }
}

/// Half of what is left of the lock, within reason.
fn pause(now: SystemTime, until: SystemTime, longest: Duration) -> Duration {
    let left = until.duration_since(now).unwrap_or_default();
    (left / 2).clamp(LEAST, (longest / 2).max(LEAST))
}

fn is_lost(kind: BusErrorKind) -> bool {
    match retry::classify_service_bus(kind) {
        ErrorClass::Transient => {
            matches!(
                kind,
                BusErrorKind::SessionLockLost
                    | BusErrorKind::SessionHeldElsewhere
                    | BusErrorKind::Detached
                    | BusErrorKind::ConnectionLost
            )
        }
        ErrorClass::Permanent | ErrorClass::Fatal => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_renewed_at_half_its_time_whatever_the_clocks_say() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let longest = Duration::from_secs(60);
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert_eq!(pause(now, at(60), longest), Duration::from_secs(30));
        assert_eq!(pause(now, at(10), longest), Duration::from_secs(5));
        assert_eq!(pause(now, at(3_600), longest), Duration::from_secs(30), "the bus's clock is ahead");
        assert_eq!(pause(now, now - Duration::from_secs(3_600), longest), LEAST, "the bus's clock is behind");
    }
}
