//! The state of the whole pipeline, gathered from what all pods share: any process that reaches MongoDB can answer for all of them.
//!
//! Reads the lease, the checkpoint, what pods announce, terms, what is parked and rejected, the read models' sizes, the oplog, and the bus's own counts. Never writes, and
//! never fails: what cannot be read is unknown, and named. What costs more than a look at one document is read less often.

mod bus;
mod distance;
mod facts;
mod oplog;
#[cfg(test)]
mod tests;
mod waiting;

use std::time::{Duration, Instant};

use admin::status::{Checkpoint, Gathered, Lag, ReadModel, Throughput};
use admin::{Buckets, Status, Time};
use mongodb::Database;
use mongodb::bson::Document;
use tokio::time::timeout;

use self::distance::Distance;
use crate::oplog::Ends;
use crate::pods::{Moment, Seen, quantiles};
pub(crate) use bus::Subscription;

pub(crate) const THE_LEASE: &str = "the lease";

/// A server that answers answers sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long counts and the oplog's ends are good for.
const SLOW_EVERY: Duration = Duration::from_secs(5);

/// Looks at one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(crate) pipeline: String,
    /// Who looks, for people.
    pub(crate) by: String,
    pub(crate) coordination: Database,
    /// The server that holds the source.
    pub(crate) source: mongodb::Client,
    pub(crate) views: Database,
    pub(crate) read_models: Vec<String>,
    pub(crate) subscription: Subscription,
}

/// What is read less often, and when it was.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    at: Instant,
    waiting: waiting::Waiting,
    oplog: Option<Ends>,
    sizes: Vec<Option<u64>>,
}

impl Observer {
    /// One look. `slow` is kept by the caller from one to the next.
    pub(crate) async fn gather(&self, slow: &mut Option<Slow>) -> Status {
        let (fast, refreshed) = tokio::join!(Box::pin(self.facts()), Box::pin(self.slow(slow.take())));
        let status = self.assemble(fast, &refreshed).judged();
        *slow = Some(refreshed);
        status
    }

    async fn slow(&self, last: Option<Slow>) -> Slow {
        match last {
            Some(last) if last.at.elapsed() < SLOW_EVERY => last,
            _ => {
                let (waiting, oplog, sizes) = tokio::join!(self.waiting(), self.oplog(), self.sizes());
                Slow { at: Instant::now(), waiting, oplog, sizes }
            }
        }
    }

    /// How many documents each read model has, by the collection's own count.
    async fn sizes(&self) -> Vec<Option<u64>> {
        let count = |name| async move {
            let model = self.views.collection::<Document>(name);
            timeout(ANSWER_WITHIN, async { model.estimated_document_count().await }).await.ok()?.ok()
        };
        futures_util::future::join_all(self.read_models.iter().map(String::as_str).map(count)).await
    }

    fn assemble(&self, facts: facts::Facts, slow: &Slow) -> Status {
        let gathered = Gathered { at: Time::now(), by: self.by.clone(), seconds_ago: 0.0, missing: facts.missing };
        let mut status = Status::unknown(&self.pipeline, gathered);
        let heard: Vec<&Seen> = facts.pods.iter().filter(|seen| !seen.pod.silent).collect();
        let distance = facts.checkpoint.as_ref().and_then(|(_, at)| at.zip(facts.newest)).map(Distance::between);
        let in_flight = heard.iter().filter_map(|seen| seen.in_flight).reduce(u64::saturating_add);
        status.lag = Lag {
            seconds: distance.and_then(Distance::behind),
            events: in_flight.map(|in_flight| in_flight + facts.bus.waiting.unwrap_or(0)),
            at_least: facts.bus.waiting.is_none() || heard.iter().any(|seen| seen.read_ahead_full),
        };
        status.throughput = Throughput {
            published_per_second: total(heard.iter().filter_map(|seen| seen.pod.published_per_second)),
            applied_per_second: total(heard.iter().filter_map(|seen| seen.pod.applied_per_second)),
        };
        let mut latency = Buckets::default();
        heard.iter().for_each(|seen| latency.add(&seen.latency));
        status.latency = quantiles(&latency);
        let checkpointed = facts.checkpoint.as_ref().and_then(|(_, at)| *at);
        status.oplog = slow.oplog.as_ref().map(|ends| oplog::told(ends, checkpointed)).unwrap_or_default();
        status.read_models = self.read_models(slow, &facts.pods);
        status.parked.clone_from(&slow.waiting.parked);
        status.rejected.clone_from(&slow.waiting.rejected);
        let ahead_seconds = distance.and_then(Distance::ahead);
        status.checkpoint = facts.checkpoint.map(|(checkpoint, _)| Checkpoint { ahead_seconds, ..checkpoint });
        status.bus = facts.bus;
        status.leader = facts.leader;
        status.terms = facts.terms;
        status.pods = facts.pods.into_iter().map(|seen| seen.pod).collect();
        status
    }

    fn read_models(&self, slow: &Slow, pods: &[Seen]) -> Vec<ReadModel> {
        let parked_in = |name: &str| {
            let list = slow.waiting.parked.as_ref()?;
            Some(list.iter().filter(|parked| parked.read_model == name).map(|parked| parked.aggregates).sum())
        };
        let sized = self.read_models.iter().zip(&slow.sizes);
        sized
            .map(|(name, documents)| {
                let applied = last_applied(name, pods);
                ReadModel {
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
fn last_applied(model: &str, pods: &[Seen]) -> Option<Moment> {
    let told = pods.iter().flat_map(|seen| &seen.applied).filter(|(name, _)| name == model);
    told.map(|(_, moment)| *moment).min_by(|one, other| one.seconds_ago.total_cmp(&other.seconds_ago))
}

/// `None` of nothing: nobody said.
fn total(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    numbers.reduce(|sum, number| sum + number)
}
