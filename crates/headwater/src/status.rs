//! The state of the whole pipeline, collected from what all pods share: any process that reaches MongoDB can answer for all of them.
//!
//! Reads the lease, the checkpoint, what pods announce, terms, what is parked and rejected, the read models' sizes, the oplog, and the bus's own counts. Never writes, and
//! never fails: what cannot be read is unknown, and named. What costs more than a look at one document is read less often.

mod attention;
mod checkpoint_distance;
mod coordination;
mod oplog;
mod subscription;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use admin::status::{CheckpointStatus, CollectionInfo, LagStatus, ReadModelStatus, ThroughputStatus};
use admin::{LatencyBuckets, PipelineStatus, WallTime};
use mongodb::Database;
use mongodb::bson::Document;
use tokio::time::timeout;

use self::checkpoint_distance::CheckpointDistance;
use crate::oplog::OplogWindow;
use crate::pods::{AnnouncedPod, LastApplied, quantiles};
pub(crate) use subscription::SubscriptionMonitor;

pub(crate) const THE_LEASE: &str = "the lease";

/// A server that answers answers sooner.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long counts and the oplog's ends are good for.
const SLOW_EVERY: Duration = Duration::from_secs(5);

/// Looks at one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct StatusCollector {
    pub(crate) pipeline: String,
    /// Who looks, for people.
    pub(crate) by: String,
    pub(crate) coordination: Database,
    /// The server that holds the source.
    pub(crate) source: mongodb::Client,
    pub(crate) views: Database,
    pub(crate) read_models: Vec<String>,
    pub(crate) subscription: SubscriptionMonitor,
}

/// What is read less often, and when it was.
#[derive(Clone, Debug)]
pub(crate) struct SlowReads {
    at: Instant,
    waiting: attention::AttentionCounts,
    oplog: Option<OplogWindow>,
    sizes: Vec<Option<u64>>,
}

impl StatusCollector {
    /// One look. `slow` is kept by the caller from one to the next.
    pub(crate) async fn collect(&self, slow: &mut Option<SlowReads>) -> PipelineStatus {
        let (fast, refreshed) = tokio::join!(Box::pin(self.coordination()), Box::pin(self.slow(slow.take())));
        let status = self.assemble(fast, &refreshed).evaluated();
        *slow = Some(refreshed);
        status
    }

    async fn slow(&self, last: Option<SlowReads>) -> SlowReads {
        match last {
            Some(last) if last.at.elapsed() < SLOW_EVERY => last,
            _ => {
                let (waiting, oplog, sizes) = tokio::join!(self.waiting(), self.oplog(), self.sizes());
                SlowReads { at: Instant::now(), waiting, oplog, sizes }
            }
        }
    }

    /// How many documents each read model has, by the collection's own count.
    async fn sizes(&self) -> Vec<Option<u64>> {
        let count = |name| async move {
            let model = self.views.collection::<Document>(name);
            timeout(RESPONSE_TIMEOUT, async { model.estimated_document_count().await }).await.ok()?.ok()
        };
        futures_util::future::join_all(self.read_models.iter().map(String::as_str).map(count)).await
    }

    fn assemble(&self, coordination: coordination::CoordinationSnapshot, slow: &SlowReads) -> PipelineStatus {
        let collected = CollectionInfo {
            at: WallTime::now(),
            by: self.by.clone(),
            seconds_ago: 0.0,
            unavailable: coordination.unavailable,
        };
        let mut status = PipelineStatus::unknown(&self.pipeline, collected);
        let heard: Vec<&AnnouncedPod> = coordination.pods.iter().filter(|seen| !seen.pod.silent).collect();
        let distance = coordination
            .checkpoint
            .as_ref()
            .and_then(|(_, at)| at.zip(coordination.newest))
            .map(CheckpointDistance::between);
        let in_flight = heard.iter().filter_map(|seen| seen.in_flight).reduce(u64::saturating_add);
        status.lag = LagStatus {
            seconds: distance.and_then(CheckpointDistance::behind),
            events: in_flight.map(|in_flight| in_flight + coordination.subscription.active_messages.unwrap_or(0)),
            is_lower_bound: coordination.subscription.active_messages.is_none()
                || heard.iter().any(|seen| seen.read_ahead_full),
        };
        status.throughput = ThroughputStatus {
            published_per_second: total(heard.iter().filter_map(|seen| seen.pod.published_per_second)),
            applied_per_second: total(heard.iter().filter_map(|seen| seen.pod.applied_per_second)),
        };
        let mut latency = LatencyBuckets::default();
        heard.iter().for_each(|seen| latency.add(&seen.latency));
        status.latency = quantiles(&latency);
        let checkpointed = coordination.checkpoint.as_ref().and_then(|(_, at)| *at);
        status.oplog = slow.oplog.as_ref().map(|ends| oplog::told(ends, checkpointed)).unwrap_or_default();
        status.read_models = self.read_models(slow, &coordination.pods);
        status.parked.clone_from(&slow.waiting.parked);
        status.rejected.clone_from(&slow.waiting.rejected);
        let ahead_seconds = distance.and_then(CheckpointDistance::ahead);
        status.checkpoint =
            coordination.checkpoint.map(|(checkpoint, _)| CheckpointStatus { ahead_seconds, ..checkpoint });
        status.subscription = coordination.subscription;
        status.leader = coordination.leader;
        status.terms = coordination.terms;
        status.pods = coordination.pods.into_iter().map(|seen| seen.pod).collect();
        status
    }

    fn read_models(&self, slow: &SlowReads, pods: &[AnnouncedPod]) -> Vec<ReadModelStatus> {
        let parked_in = |name: &str| {
            let list = slow.waiting.parked.as_ref()?;
            Some(list.iter().filter(|parked| parked.read_model == name).map(|parked| parked.aggregates).sum())
        };
        let sized = self.read_models.iter().zip(&slow.sizes);
        sized
            .map(|(name, documents)| {
                let applied = last_applied(name, pods);
                ReadModelStatus {
                    name: name.clone(),
                    documents: *documents,
                    applied: applied.map(|moment| moment.at),
                    applied_seconds_ago: applied.map(|moment| moment.seconds_ago),
                    parked_aggregates: parked_in(name),
                }
            })
            .collect()
    }
}

/// By any pod; what one did before it fell silent was done.
fn last_applied(model: &str, pods: &[AnnouncedPod]) -> Option<LastApplied> {
    let told = pods.iter().flat_map(|seen| &seen.applied).filter(|(name, _)| name == model);
    told.map(|(_, moment)| *moment).min_by(|one, other| one.seconds_ago.total_cmp(&other.seconds_ago))
}

/// `None` of nothing: nobody said.
fn total(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    numbers.reduce(|sum, number| sum + number)
}
