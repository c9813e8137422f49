//! Loops a test can wedge, to see that whoever watches them notices. Only in builds with debug assertions; a release build has none of
//! this, whatever its environment says.

use std::fmt::Debug;
use std::time::Duration;

/// The environment variable that names the loop: `Elector` (of a leader), `Standby` (that of a standby), or one of those who lean on this crate.
pub const WEDGE: &str = "HEADWATER_PLANTED_WEDGE";
/// The environment variable that says, in milliseconds, after how long a loop without a sign of life counts as wedged.
pub const PATIENCE: &str = "HEADWATER_PLANTED_PATIENCE";

#[derive(Debug)]
struct Elector;

#[derive(Debug)]
struct Standby;

/// Returns at once, unless a leader's elector is to be wedged.
pub(crate) async fn hold_elector() {
    hold(&Elector).await;
}

/// Returns at once, unless a standby's elector is to be wedged.
pub(crate) async fn hold_standby() {
    hold(&Standby).await;
}

/// Returns at once, unless the loop of this name is to be wedged.
pub async fn hold(name: &impl Debug) {
    if is_wedged(name) {
        std::future::pending::<()>().await;
    }
}

#[cfg(debug_assertions)]
pub fn is_wedged(name: &impl Debug) -> bool {
    static WEDGED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    WEDGED.get_or_init(|| std::env::var(WEDGE).ok()).as_deref().is_some_and(|wedged| wedged == format!("{name:?}"))
}

#[cfg(not(debug_assertions))]
pub const fn is_wedged(_: &impl Debug) -> bool {
    false
}

/// What a test says, or else `usual`.
#[cfg(debug_assertions)]
pub fn patience(usual: Duration) -> Duration {
    let millis = std::env::var(PATIENCE).ok().and_then(|text| text.parse().ok());
    millis.map_or(usual, Duration::from_millis)
}

#[cfg(not(debug_assertions))]
pub const fn patience(usual: Duration) -> Duration {
    usual
}
