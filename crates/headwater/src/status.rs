//! Collects the status of the whole pipeline from what all pods share, so that any process with access to MongoDB can report it.
//!
//! Reads the lease, the checkpoint, the announcements, the terms, the parked and rejected events, the sizes of the read models, the oplog, and the message
//! counts of Service Bus. Never writes, and never fails: a part that cannot be read is unknown, and named. Expensive parts are read less often.

mod attention_counts;
mod audit;
mod checkpoint_distance;
mod coordination;
mod oplog;
mod read_models;
mod subscription;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use admin::status::{CheckpointStatus, CollectionInfo, LagStatus, PauseStatus, ThroughputStatus, VerificationStatus};
use admin::{LatencyBuckets, PipelineStatus, WallTime};
use mongodb::Database;
use mongodb::bson::Document;
use pipeline::generation::GenerationStore;
use pipeline::view::is_version_of;
use tokio::time::timeout;

use self::checkpoint_distance::CheckpointDistance;
use crate::oplog::OplogWindow;
use crate::pauses::{Pause, PauseStore};
use crate::pods::{AnnouncedPod, LastApplied, quantiles};
pub(crate) use audit::AuditMonitor;
pub(crate) use read_models::generation_status;
pub(crate) use subscription::SubscriptionMonitor;

/// The name of the lease in `collected.unavailable`.
pub(crate) const THE_LEASE: &str = "the lease";

/// A server that responds at all responds sooner.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// How often counts and the oplog are read.
const SLOW_INTERVAL: Duration = Duration::from_secs(5);

/// Collects the status of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct StatusCollector {
    pub(crate) pipeline: String,
    /// The pod that collects, for display.
    pub(crate) by: String,
    pub(crate) coordination: Database,
    /// The server of the source.
    pub(crate) source: mongodb::Client,
    pub(crate) views: Database,
    pub(crate) read_models: Vec<String>,
    pub(crate) subscription: SubscriptionMonitor,
    pub(crate) audit: AuditMonitor,
    pub(crate) generations: GenerationStore,
    pub(crate) pauses: PauseStore,
}

/// The expensive reads, and when they were done.
#[derive(Clone, Debug)]
pub(crate) struct SlowReads {
    at: Instant,
    attention: attention_counts::AttentionCounts,
    oplog: Option<OplogWindow>,
    sizes: Vec<Option<u64>>,
    verifications: BTreeMap<String, VerificationStatus>,
}

impl StatusCollector {
    /// The caller keeps `slow` between calls.
    pub(crate) async fn collect(&self, slow: &mut Option<SlowReads>) -> PipelineStatus {
        let (fast, refreshed) = tokio::join!(Box::pin(self.read_coordination()), Box::pin(self.read_slow(slow.take())));
        let status = self.assemble(fast, &refreshed).evaluated();
        *slow = Some(refreshed);
        status
    }

    async fn read_slow(&self, last: Option<SlowReads>) -> SlowReads {
        match last {
            Some(last) if last.at.elapsed() < SLOW_INTERVAL => last,
            _ => {
                let (attention, oplog, sizes, verifications) = tokio::join!(
                    self.count_attention(),
                    self.read_oplog(),
                    self.count_documents(),
                    self.read_verifications()
                );
                SlowReads { at: Instant::now(), attention, oplog, sizes, verifications }
            }
        }
    }

    /// The number of documents of each read model, estimated from collection metadata.
    async fn count_documents(&self) -> Vec<Option<u64>> {
        let count = |name| async move {
            let model = self.views.collection::<Document>(name);
            timeout(READ_TIMEOUT, async { model.estimated_document_count().await }).await.ok()?.ok()
        };
        futures_util::future::join_all(self.read_models.iter().map(String::as_str).map(count)).await
    }

    fn assemble(&self, coordination: coordination::CoordinationSnapshot, slow: &SlowReads) -> PipelineStatus {
        let collected = CollectionInfo {
            at: WallTime::now(),
            by: self.by.clone(),
            seconds_ago: 0.0,
            unavailable: coordination.unavailable.clone(),
        };
        let mut status = PipelineStatus::unknown(&self.pipeline, collected);
        let announced: Vec<&AnnouncedPod> = coordination.pods.iter().filter(|seen| !seen.pod.silent).collect();
        let distance = coordination
            .checkpoint
            .as_ref()
            .and_then(|(_, at)| at.zip(coordination.newest))
            .map(CheckpointDistance::between);
        let in_flight = announced.iter().filter_map(|seen| seen.in_flight).reduce(u64::saturating_add);
        status.lag = LagStatus {
            seconds: distance.and_then(CheckpointDistance::behind),
            events: in_flight.map(|in_flight| in_flight + coordination.subscription.active_messages.unwrap_or(0)),
            is_lower_bound: coordination.subscription.active_messages.is_none()
                || announced.iter().any(|seen| seen.read_ahead_full),
        };
        status.throughput = ThroughputStatus {
            published_per_second: sum_known(announced.iter().filter_map(|seen| seen.pod.published_per_second)),
            applied_per_second: sum_known(announced.iter().filter_map(|seen| seen.pod.applied_per_second)),
        };
        let mut latency = LatencyBuckets::default();
        announced.iter().for_each(|seen| latency.merge(&seen.latency));
        status.latency = quantiles(&latency);
        let checkpointed = coordination.checkpoint.as_ref().and_then(|(_, at)| *at);
        status.oplog = slow.oplog.as_ref().map(|ends| oplog::to_status(ends, checkpointed)).unwrap_or_default();
        status.read_models = self.read_model_statuses(slow, &coordination);
        status.generation = coordination.generation.as_ref().map(read_models::generation_status);
        let pauses = coordination.pauses.as_ref();
        status.paused = pauses.map(|pauses| pauses.0.iter().map(|pause| pause_status(pause, slow)).collect());
        status.parked.clone_from(&slow.attention.parked);
        status.rejected.clone_from(&slow.attention.rejected);
        status.storage = Some(slow.attention.storage.clone());
        status.erasure_key_lost = slow.attention.erasure_key_lost;
        let ahead_seconds = distance.and_then(CheckpointDistance::ahead);
        status.checkpoint =
            coordination.checkpoint.map(|(checkpoint, _)| CheckpointStatus { ahead_seconds, ..checkpoint });
        status.subscription = coordination.subscription;
        status.audit = coordination.audit;
        status.leader = coordination.leader;
        status.terms = coordination.terms;
        status.pods = coordination.pods.into_iter().map(|seen| seen.pod).collect();
        status
    }
}

fn pause_status(pause: &Pause, slow: &SlowReads) -> PauseStatus {
    let waiting = |name: &str| {
        let list = slow.attention.paused.as_ref()?;
        Some(list.iter().filter(|paused| is_version_of(&paused.read_model, name)).map(|paused| paused.events).sum())
    };
    PauseStatus {
        service: pause.target.service().to_owned(),
        name: pause.target.name().map(str::to_owned),
        state: if pause.is_resuming { "resuming" } else { "paused" }.to_owned(),
        since: coordination::to_wall_time(pause.since),
        by: pause.by.clone(),
        reason: pause.reason.clone(),
        waiting_events: pause.target.name().and_then(waiting),
    }
}

/// By any pod, including silent ones: what a pod applied before it went silent stays applied.
fn last_applied(model: &str, pods: &[AnnouncedPod]) -> Option<LastApplied> {
    let applied = pods.iter().flat_map(|seen| &seen.applied).filter(|(name, _)| name == model);
    applied.map(|(_, last)| *last).min_by(|one, other| one.seconds_ago.total_cmp(&other.seconds_ago))
}

/// `None` without any number: unknown.
fn sum_known(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    numbers.reduce(|sum, number| sum + number)
}
