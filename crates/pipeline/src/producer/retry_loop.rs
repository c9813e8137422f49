//! Retries an operation until it succeeds or fails permanently.

use std::time::Duration;

use futures_util::TryFutureExt;
use mongo_error::DriverError;
use tracing::{info, warn};

use crate::error_chain::error_chain;
use crate::retry::backoff;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Repeats `attempt` with backoff while its error is transient. Logs the first failure and the recovery.
pub(super) async fn retry_transient<T, E, F>(
    operation: &'static str,
    is_transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    E: std::error::Error,
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0_u32;
    loop {
        match attempt().await {
            Ok(done) => {
                if failures > 0 {
                    info!(operation, failures, "operation succeeded after retries");
                }
                return Ok(done);
            }
            Err(error) if is_transient(&error) => {
                if failures == 0 {
                    warn!(operation, error = error_chain(&error), "operation failed; retrying");
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(backoff(failures, FIRST_BACKOFF, MAX_BACKOFF)).await;
        failures = failures.saturating_add(1);
    }
}

/// Repeats `attempt` with backoff until it succeeds.
pub(super) async fn retry_until_ok<T, F>(operation: &'static str, attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, mongodb::error::Error>>,
{
    let mut attempt = attempt;
    match retry_transient(operation, |_: &DriverError| true, || attempt().map_err(DriverError::from)).await {
        Ok(done) => done,
        Err(error) => unreachable!("every error is transient: {error}"),
    }
}
