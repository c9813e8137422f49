//! The change stream of a standby. Its events only wake the polling loop.
//!
//! The lease works without it: if the stream cannot be opened, the standby sees a change at its next poll. A repeated failure
//! is logged once as a warning, because the takeover after a release then takes longer than promised.

use std::convert::Infallible;
use std::time::Duration;

use mongo_error::ErrorChain;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::backoff::LeaseBackoff;
use crate::store::LeaseStore;

/// A stream that was open for longer than this worked; its end starts a new count of failures.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// One failure is a failover or a server restart. This many in a row are worth a warning.
const WARN_AFTER_FAILURES: u32 = 3;

pub(crate) struct LeaseWatcher {
    pub(crate) pod_id: String,
    pub(crate) backoff: LeaseBackoff,
    /// Failures in a row, without a healthy stream between them.
    pub(crate) failures: u32,
}

impl LeaseWatcher {
    /// Keeps a change stream open, with a backoff when it fails.
    pub(crate) async fn run(mut self, store: &impl LeaseStore, enabled: bool, changed: &Notify) -> Infallible {
        if !enabled {
            std::future::pending::<()>().await;
        }
        loop {
            let opened = Instant::now();
            let error = store.watch(changed).await;
            if opened.elapsed() > HEALTHY_AFTER {
                self.backoff.reset();
                self.failures = 0;
            }
            self.failures = self.failures.saturating_add(1);
            let (pod_id, error) = (&self.pod_id, ErrorChain(&error));
            if self.failures == WARN_AFTER_FAILURES {
                warn!(pod_id, %error, "failed to watch lease; falling back to polling");
            } else {
                debug!(pod_id, %error, "lease change stream ended; reopening");
            }
            sleep(self.backoff.next_delay()).await;
        }
    }
}
