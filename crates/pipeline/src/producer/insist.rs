//! Asking again while it may help.

use std::time::Duration;

use tracing::{info, warn};

use crate::chain::chain;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Repeats `ask` until it succeeds, or fails in a way that asking again cannot mend. Logs when trouble begins and when it ends.
pub(super) async fn insist<T, E, F>(
    doing: &'static str,
    is_transient: impl Fn(&E) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, E>
where
    E: std::error::Error,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = FIRST_PAUSE;
    let mut in_trouble = false;
    loop {
        match ask().await {
            Ok(done) => {
                if in_trouble {
                    info!(doing, "out of trouble");
                }
                return Ok(done);
            }
            Err(error) if is_transient(&error) => {
                if !in_trouble {
                    warn!(doing, error = chain(&error), "failed; trying again until it succeeds");
                }
                in_trouble = true;
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
