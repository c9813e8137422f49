//! Failpoints that stall a loop on purpose, so that tests can see the liveness probe report it. Only in builds with debug
//! assertions; a release build ignores the environment variables.

use std::fmt::Debug;
use std::time::Duration;

/// Names the loop to stall: `Elector` (of a leader), `Standby` (of a standby), or a loop of a crate that uses this one.
pub const STALL_VARIABLE: &str = "HEADWATER_FAILPOINT_STALL";
/// Overrides, in milliseconds, how long a loop may stay without progress before it counts as stalled.
pub const STALL_LIMIT_VARIABLE: &str = "HEADWATER_FAILPOINT_STALL_LIMIT";

/// The loops of this crate. A test names one by its `Debug` form.
#[derive(Debug)]
enum StallableLoop {
    Elector,
    Standby,
}

/// Returns at once, unless a test stalls the elector of a leader.
pub(crate) async fn stall_elector() {
    stall(&StallableLoop::Elector).await;
}

/// Returns at once, unless a test stalls the elector of a standby.
pub(crate) async fn stall_standby() {
    stall(&StallableLoop::Standby).await;
}

/// Returns at once, unless a test stalls the loop of this name.
pub async fn stall(name: &impl Debug) {
    if is_stalled(name) {
        std::future::pending::<()>().await;
    }
}

#[cfg(debug_assertions)]
pub fn is_stalled(name: &impl Debug) -> bool {
    static STALLED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let stalled = STALLED.get_or_init(|| std::env::var(STALL_VARIABLE).ok());
    stalled.as_deref().is_some_and(|stalled| stalled == format!("{name:?}"))
}

#[cfg(not(debug_assertions))]
pub const fn is_stalled(_: &impl Debug) -> bool {
    false
}

/// The limit that a test sets, or else `default`.
#[cfg(debug_assertions)]
pub fn stall_limit(default: Duration) -> Duration {
    let millis = std::env::var(STALL_LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
    millis.map_or(default, Duration::from_millis)
}

#[cfg(not(debug_assertions))]
pub const fn stall_limit(default: Duration) -> Duration {
    default
}
