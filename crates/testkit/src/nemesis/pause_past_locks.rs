//! Pauses a pod until its session locks expire: it stops with unsettled messages and resumes after another pod took its sessions.
//!
//! Shortly before the pause, the proxy holds the pod's requests to the broker. So the pod stops with events that it has applied and
//! not settled, and the broker receives the settlements when the locks belong to another pod.
//!
//! Detection is by pod metrics. A message counts as redelivered when its lock was lost, not when its holder released it or was
//! disconnected. Nothing else is broken while the pod is paused, so a redelivery elsewhere is one of its messages.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::fault::LinkTarget;
use crate::cluster::{PodMetrics, TestCluster};
use crate::proxy::{Direction, NetworkFault};
use crate::wait::try_wait_for;

const APPLIED: &str = "headwater_events_applied_total";
const REDELIVERED: &str = "headwater_messages_redelivered_total";
const LOCKS_LOST: &str = "headwater_session_locks_lost_total";

/// With its requests held, a pod soon runs out of events to apply; each attempt is short and there are several.
const ATTEMPTS: usize = 20;
const APPLYING_TIMEOUT: Duration = Duration::from_secs(1);
/// Beyond the lock duration, for another pod to accept the session and receive from it.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(20);
const LOCK_LOST_TIMEOUT: Duration = Duration::from_secs(20);

/// A paused pod, and the counters at the moment of the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PausedPod {
    pod: usize,
    since: Instant,
    locks_lost: u64,
    /// Sum over all other pods.
    redelivered: u64,
}

/// Pauses the pod with events applied and not settled; `None` when it applied none.
pub(super) async fn pause_with_unsettled(cluster: &mut TestCluster, pod: usize) -> Option<PausedPod> {
    for _ in 0..ATTEMPTS {
        hold_requests(cluster, pod).await;
        if let Some(metrics) = wait_until_applying(cluster, pod).await {
            cluster.pod_mut(pod).pause().await;
            let since = Instant::now();
            // The pod's locks have at least half their time left. Redeliveries caused by earlier, repaired faults arrive within
            // this pause and are part of the baseline.
            tokio::time::sleep(cluster.config().topic.lock / 5).await;
            let redelivered = redelivered_elsewhere(cluster, pod).await;
            return Some(PausedPod { pod, since, locks_lost: metrics.value(LOCKS_LOST), redelivered });
        }
        release_requests(cluster, pod).await;
    }
    None
}

/// Resumes the pod after its messages were redelivered to another; returns how many lost locks it then finds, 0 when no pod took any.
pub(super) async fn resume_after_takeover(cluster: &mut TestCluster, paused: PausedPod) -> u64 {
    let PausedPod { pod, since, locks_lost, redelivered } = paused;
    // Wait for the last lock it can hold. Before the pause the pod may have requested another session, which is granted meanwhile.
    sleep_until(since + cluster.config().topic.lock).await;
    let takeover = try_wait_for("another pod to take a session", TAKEOVER_TIMEOUT, async || {
        let now = redelivered_elsewhere(cluster, pod).await;
        if now > redelivered { Ok(()) } else { Err(now) }
    });
    let is_taken = takeover.await.is_ok();
    release_requests(cluster, pod).await;
    cluster.pod_mut(pod).resume();
    if !is_taken {
        return 0;
    }
    let lost = try_wait_for("the paused pod to find its locks lost", LOCK_LOST_TIMEOUT, async || {
        let lost = read_counter(cluster, pod, LOCKS_LOST).await.saturating_sub(locks_lost);
        if lost > 0 { Ok(lost) } else { Err(lost) }
    });
    lost.await.unwrap_or(0)
}

/// The pod's metrics once it has applied an event that it cannot have settled.
async fn wait_until_applying(cluster: &TestCluster, pod: usize) -> Option<PodMetrics> {
    let read = async || cluster.pod(pod).metrics().await.ok_or("no response");
    let before = try_wait_for("the pod's metrics", APPLYING_TIMEOUT, read).await.ok()?.value(APPLIED);
    let applying = try_wait_for("the pod to apply events", APPLYING_TIMEOUT, async || {
        let metrics = read().await?;
        if metrics.value(APPLIED) > before { Ok(metrics) } else { Err("nothing applied") }
    });
    applying.await.ok()
}

async fn hold_requests(cluster: &TestCluster, pod: usize) {
    if let Some(link) = cluster.pod(pod).link(LinkTarget::Broker) {
        link.inject(NetworkFault::Withhold(Direction::ToTarget)).await;
    }
}

async fn release_requests(cluster: &TestCluster, pod: usize) {
    if let Some(link) = cluster.pod(pod).link(LinkTarget::Broker) {
        link.heal().await;
    }
}

async fn redelivered_elsewhere(cluster: &TestCluster, pod: usize) -> u64 {
    let mut sum = 0;
    for other in (0..cluster.pods().len()).filter(|other| *other != pod) {
        sum += read_counter(cluster, other, REDELIVERED).await;
    }
    sum
}

/// 0 when the pod does not respond.
async fn read_counter(cluster: &TestCluster, pod: usize, name: &str) -> u64 {
    cluster.pod(pod).metrics().await.map_or(0, |metrics| metrics.value(name))
}
