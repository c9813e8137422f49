//! Waits for the end of a run, and says how it ended.
//!
//! An event that has not arrived is lost only if nothing is left that could still bring it: the checkpoint has passed the last write, and the
//! subscription is empty. Until then the pipeline is merely slow, or stalled.

use std::time::{Duration, Instant};

use testkit::cluster::{Error, TestCluster};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Without progress for this long, everything that was expected has arrived, or nothing more comes after the pipeline is drained.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// Without progress for this long, the pipeline is asked whether it has anything left.
const DRAIN_CHECK_AFTER: Duration = Duration::from_secs(2);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Everything that was expected has arrived.
    Complete,
    /// Nothing is left in the pipeline, and something is missing: it is lost.
    Drained,
    /// Something is left in the pipeline, and it makes no progress.
    Stalled,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunProgress {
    /// Grows with every event that arrives.
    pub(super) arrived: u64,
    pub(super) is_complete: bool,
}

/// Waits until everything has arrived, or the pipeline up to this subscription is drained, or makes no progress for `stall_timeout`.
pub(super) async fn wait_for_end(
    cluster: &mut TestCluster,
    subscription: &str,
    stall_timeout: Duration,
    progress: impl Fn() -> RunProgress,
) -> Result<RunEnd, Error> {
    let (mut last, mut since, mut drained) = (progress(), Instant::now(), None);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        cluster.restart_exited_pods()?;
        let now = progress();
        if now.arrived != last.arrived {
            (last, since, drained) = (now, Instant::now(), None);
        }
        if now.is_complete && since.elapsed() > QUIET_PERIOD {
            return Ok(RunEnd::Complete);
        }
        if since.elapsed() > stall_timeout {
            return Ok(RunEnd::Stalled);
        }
        if !now.is_complete && since.elapsed() > DRAIN_CHECK_AFTER {
            let check = match drained.take() {
                Some(check) => check,
                None => DrainCheck::start(cluster).await?,
            };
            let check = check.update(cluster, subscription).await?;
            if check.empty_since.is_some_and(|since| since.elapsed() > QUIET_PERIOD) {
                return Ok(RunEnd::Drained);
            }
            drained = Some(check);
        }
    }
}

/// Whether the pipeline has passed everything that the source held when the check began.
struct DrainCheck {
    newest: mongodb::bson::Timestamp,
    empty_since: Option<Instant>,
}

impl DrainCheck {
    async fn start(cluster: &TestCluster) -> Result<Self, Error> {
        Ok(Self { newest: cluster.operation_time().await?, empty_since: None })
    }

    async fn update(self, cluster: &TestCluster, subscription: &str) -> Result<Self, Error> {
        let is_empty = cluster.has_drained(self.newest, subscription).await?;
        let empty_since = is_empty.then(|| self.empty_since.unwrap_or_else(Instant::now));
        Ok(Self { empty_since, ..self })
    }
}
