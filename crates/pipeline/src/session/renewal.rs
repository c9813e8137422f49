//! Renews the session lock at half its time while the session is held.
//!
//! Runs beside the batch work and has priority over it: a slow transaction must not cost the lock.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use servicebus::{BusErrorKind, SessionHandle};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::error_chain::error_chain;
use crate::error_policy::{self, ErrorClass};

/// Lower bound, so that a clock ahead of the bus's does not cause constant renewals.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// Renews until dropped. Cancels `lock_lost` when the lock is lost, and then waits for ever.
pub(super) async fn renew_while_held(
    session: &SessionHandle,
    max_lock_duration: Duration,
    lock_lost: &CancellationToken,
) -> Infallible {
    loop {
        // Only schedules the next renewal; whether the lock is held is for Service Bus to say.
        #[expect(
            clippy::disallowed_methods,
            reason = "Service Bus reports the lock end as wall-clock time; bounded on both sides"
        )]
        let now = SystemTime::now();
        tokio::time::sleep(renewal_delay(now, session.locked_until(), max_lock_duration)).await;
        // Boxed because it is rare: otherwise every session future has its size.
        if let Err(error) = Box::pin(session.renew_lock()).await {
            if session.lost_reason().is_some() || means_lock_lost(error.kind()) {
                lock_lost.cancel();
                // The session sees `lock_lost` and ends by itself.
                return std::future::pending().await;
            }
            warn!(error = error_chain(&error), "failed to renew session lock; retrying");
            tokio::time::sleep(MIN_INTERVAL).await;
        }
    }
}

/// Half of the remaining lock time, within bounds.
fn renewal_delay(now: SystemTime, until: SystemTime, max_lock_duration: Duration) -> Duration {
    let left = until.duration_since(now).unwrap_or_default();
    (left / 2).clamp(MIN_INTERVAL, (max_lock_duration / 2).max(MIN_INTERVAL))
}

fn means_lock_lost(kind: BusErrorKind) -> bool {
    match error_policy::service_bus(kind).request {
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
    fn a_lock_is_renewed_at_half_its_time_despite_clock_skew() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let max_lock_duration = Duration::from_secs(60);
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert_eq!(renewal_delay(now, at(60), max_lock_duration), Duration::from_secs(30));
        assert_eq!(renewal_delay(now, at(10), max_lock_duration), Duration::from_secs(5));
        assert_eq!(
            renewal_delay(now, at(3_600), max_lock_duration),
            Duration::from_secs(30),
            "the bus's clock is ahead"
        );
        assert_eq!(
            renewal_delay(now, now - Duration::from_secs(3_600), max_lock_duration),
            MIN_INTERVAL,
            "the bus's clock is behind"
        );
    }
}
