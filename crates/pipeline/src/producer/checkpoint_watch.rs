//! Notices that the checkpoint was moved under a leader, also when there is nothing to save.
//!
//! A save of a deposed leader is refused, and that is the fence. But a source at rest has nothing to save, and a checkpoint that an operator sets
//! anew waits for a leader who looks.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::debug;

use super::POLL_INTERVAL;
use super::error::Error;
use crate::checkpoint::{CheckpointStore, Claim};
use crate::error_chain::error_chain;

/// A store that answers answers sooner.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns when the checkpoint is no longer this term's. A store that does not answer says nothing, and is asked again.
pub(super) async fn wait_until_moved(checkpoints: &impl CheckpointStore, claim: &Claim) -> Error {
    loop {
        sleep(POLL_INTERVAL).await;
        match timeout(LOAD_TIMEOUT, checkpoints.load()).await {
            Ok(Ok(Some(stored))) if stored.term > claim.term => return Error::Moved { by: stored.term },
            Ok(Err(error)) if !error.is_transient() => return error.into(),
            Ok(Err(error)) => debug!(error = error_chain(&error), "look at the checkpoint"),
            // One that is gone is the next save's to tell: only a claim knows whether there should be one.
            Ok(Ok(Some(_) | None)) | Err(_) => {}
        }
    }
}
