//! The loop that announces this pod and records the terms in which it is the leader.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{LatencyBuckets, PodTelemetry};
use mongo_error::ErrorChain;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{ANNOUNCE_INTERVAL, Announcement, PodRegistry};
use crate::admin::PodMonitor;

/// Latencies cover the last half minute: long enough for a quantile, short enough to show a change.
const MAX_SAMPLES: usize = 15;
/// The shortest period over which a rate is computed.
const MIN_RATE_PERIOD: Duration = Duration::from_secs(1);
/// An announcement that takes longer is dropped, so that this loop keeps beating while MongoDB does not respond.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Every so many announcements, dead pods are removed.
const CLEANUP_EVERY: u64 = 100;

pub(crate) struct Announcer {
    registry: PodRegistry,
    monitor: Arc<PodMonitor>,
    address: String,
    /// The term whose start was recorded, and whose end was not.
    recorded_term: Option<u64>,
    /// Counters at the last announcements, for rates.
    samples: VecDeque<AppliedCountSample>,
}

#[derive(Clone)]
struct AppliedCountSample {
    at: Instant,
    published: u64,
    applied: u64,
    latency: LatencyBuckets,
}

impl Announcer {
    pub(crate) fn new(registry: PodRegistry, monitor: Arc<PodMonitor>, address: String) -> Self {
        Self { registry, monitor, address, recorded_term: None, samples: VecDeque::new() }
    }

    /// Announces until `stop`, then removes the announcement.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // A crashed process of the same pod may have left its document, with its start time.
        let _ = timeout(ANNOUNCE_INTERVAL, self.registry.remove_announcement()).await;
        let mut lease_changes = self.monitor.lease().subscribe();
        let mut ticks = interval(ANNOUNCE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut rounds, mut failing) = (0_u64, false);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: the next tick sees a change that was missed here
                Ok(()) = lease_changes.changed() => {
                    // Every renewal is a change, but only the start or end of a term needs an announcement now.
                    if self.current_term() == self.recorded_term {
                        continue;
                    }
                }
                // cancel-safe: tick
                _ = ticks.tick() => {}
            }
            // An announcement that was cut short is repeated as a whole.
            let announced = timeout(ANNOUNCE_TIMEOUT, self.announce(rounds.is_multiple_of(CLEANUP_EVERY))).await;
            let failure = match &announced {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(ErrorChain(error).to_string()),
                Err(_) => Some(format!("no response within {ANNOUNCE_TIMEOUT:?}")),
            };
            // Logged once per outage: the status shows that this pod is silent.
            if let Some(error) = failure.as_ref().filter(|_| !failing) {
                tracing::warn!(error, "failed to announce this pod; it retries every {ANNOUNCE_INTERVAL:?}");
            }
            failing = failure.is_some();
            rounds += 1;
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: it returns at once, or never
                () = self.monitor.heartbeats().announcer.beat() => {}
            }
        }
        self.leave().await;
    }

    fn current_term(&self) -> Option<u64> {
        self.monitor.lease().term().map(lease::Term::get)
    }

    async fn announce(&mut self, cleanup: bool) -> Result<(), mongo_error::DriverError> {
        let announcement = self.announcement(Instant::now());
        self.registry.announce(&announcement).await?;
        let term = self.current_term();
        if term != self.recorded_term {
            if let Some(ended) = self.recorded_term {
                self.registry.record_term_end(ended).await?;
            }
            if let Some(started) = term {
                self.registry.record_term_start(started).await?;
                self.monitor.count_term();
            }
            self.recorded_term = term;
        }
        if cleanup { self.registry.remove_dead_pods().await } else { Ok(()) }
    }

    /// Does not wait long for MongoDB: the pod is stopping.
    async fn leave(&self) {
        let leaving = async {
            if let Some(term) = self.recorded_term {
                self.registry.record_term_end(term).await?;
            }
            self.registry.remove_announcement().await
        };
        if let Ok(Err(error)) = timeout(ANNOUNCE_INTERVAL, leaving).await {
            tracing::debug!(error = %ErrorChain(&error), "failed to remove the announcement of this pod");
        }
    }

    fn announcement(&mut self, now: Instant) -> Announcement {
        let (published, applied) = self.monitor.totals();
        let sample = AppliedCountSample { at: now, published, applied, latency: self.monitor.latency() };
        // An announcement outside the interval may follow another one closely.
        let before =
            self.samples.iter().rev().find(|sample| now.saturating_duration_since(sample.at) >= MIN_RATE_PERIOD);
        let (published, applied) = before.map_or((0.0, 0.0), |before| {
            let period = now.saturating_duration_since(before.at).as_secs_f64();
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / period;
            (rate(sample.published, before.published), rate(sample.applied, before.applied))
        });
        let latency =
            self.samples.front().map_or_else(LatencyBuckets::default, |first| sample.latency.since(&first.latency));
        self.samples.push_back(sample);
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
        }
        let mut announcement = self.monitor.announcement(now);
        announcement.address = Some(self.address.clone());
        announcement.latency = latency;
        announcement.published_per_second = announcement.in_flight.map(|_| published);
        announcement.applied_per_second = announcement.sessions.map(|_| applied);
        announcement
    }
}
