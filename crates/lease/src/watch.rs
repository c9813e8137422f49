//! A standby's change stream: what it shows only wakes the loop that looks.
//!
//! The lease does without it: a stream that cannot be opened costs the time to the next poll, and nothing else. It is
//! said once all the same, for a release is then followed later than promised.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::store::LeaseStore;
use mongo_error::ErrorChain;

/// A stream that lived longer than this had begun, and its end begins a new spell.
const LIVED: Duration = Duration::from_secs(10);
/// One end is a failover, or a server that restarts. So many in a row are a spell.
const SPELL: u32 = 3;

pub(crate) struct Watch {
    pub(crate) pod_id: String,
    pub(crate) backoff: Backoff,
    /// In a row, without a stream that lived.
    pub(crate) failures: u32,
}

impl Watch {
    /// Keeps a change stream open, with pauses when it fails.
    pub(crate) async fn run(mut self, store: &impl LeaseStore, wanted: bool, changed: &Notify) -> Infallible {
        if !wanted {
            std::future::pending::<()>().await;
        }
        loop {
            let opened = Instant::now();
            let error = store.watch(changed).await;
            if opened.elapsed() > LIVED {
                self.backoff.succeeded();
                self.failures = 0;
            }
            self.failures = self.failures.saturating_add(1);
            let (pod_id, problem) = (&self.pod_id, ErrorChain(&error));
            if self.failures == SPELL {
                warn!(pod_id, error = %problem, "lease cannot be watched; changes are seen at the next poll only");
            } else {
                debug!(pod_id, error = %problem, "watching the lease ended; opening it again");
            }
            sleep(self.backoff.failed()).await;
        }
    }
}
