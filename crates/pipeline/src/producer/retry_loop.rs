//! Asking again while it may help.

use std::time::Duration;

use tracing::{info, warn};

use crate::error_chain::error_chain;
use crate::retry::backoff;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Repeats `ask` until it succeeds, or fails in a way that asking again cannot mend. Logs when trouble begins and when it ends.
pub(super) async fn retry_transient<T, E, F>(
    doing: &'static str,
    is_transient: impl Fn(&E) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, E>
where
    E: std::error::Error,
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0_u32;
    loop {
        match ask().await {
            Ok(done) => {
                if failures > 0 {
                    info!(doing, failures, "out of trouble");
                }
                return Ok(done);
            }
            Err(error) if is_transient(&error) => {
                if failures == 0 {
                    warn!(doing, error = error_chain(&error), "failed; trying again until it succeeds");
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        failures = failures.saturating_add(1);
    }
}
