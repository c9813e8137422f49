//! Detects that another term has moved the checkpoint, also when this leader has nothing to save.
//!
//! The store refuses the save of a deposed leader; that is the fence. But a leader of a quiet source saves nothing, and would not notice that an
//! operator has set the checkpoint.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::debug;

use super::POLL_INTERVAL;
use super::error::Error;
use crate::checkpoint::{CheckpointClaim, CheckpointStore};
use crate::error_chain::error_chain;

/// A healthy store replies much sooner.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns when another term owns the checkpoint. Ignores timeouts and transient errors, and polls again.
pub(super) async fn wait_until_moved(checkpoints: &impl CheckpointStore, claim: &CheckpointClaim) -> Error {
    loop {
        sleep(POLL_INTERVAL).await;
        match timeout(LOAD_TIMEOUT, checkpoints.load()).await {
            Ok(Ok(Some(stored))) if stored.term > claim.term => return Error::Moved { by: stored.term },
            Ok(Err(error)) if !error.is_transient() => return error.into(),
            Ok(Err(error)) => {
                debug!(error = error_chain(&error), "failed to check whether the checkpoint was moved; retrying")
            }
            // The next save reports a missing checkpoint: only a claim knows whether there should be one.
            Ok(Ok(Some(_) | None)) | Err(_) => {}
        }
    }
}
