//! The loop that keeps this pod's document up to date, and the terms it leads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::LatencyBuckets;
use mongo_error::ErrorChain;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{Announcement, EVERY, PodRegistry};
use crate::admin::PodMonitor;

/// Latencies are told of the last half minute: long enough for a quantile, short enough to see a change.
const WINDOW: usize = 15;
const SHORTEST_SPAN: Duration = Duration::from_secs(1);
/// A store that does not answer is asked again: this loop never waits for it alone.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Sweeping is nobody's hurry.
const SWEEP_EVERY: u64 = 100;

pub(crate) struct Announcer {
    registry: PodRegistry,
    pod_monitor: Arc<PodMonitor>,
    address: String,
    /// The term that was last written down as begun.
    term: Option<u64>,
    /// What was counted at each of the last announcements.
    samples: VecDeque<RateSample>,
}

#[derive(Clone)]
struct RateSample {
    at: Instant,
    published: u64,
    applied: u64,
    latency: LatencyBuckets,
}

impl Announcer {
    pub(crate) fn new(registry: PodRegistry, pod_monitor: Arc<PodMonitor>, address: String) -> Self {
        Self { registry, pod_monitor, address, term: None, samples: VecDeque::new() }
    }

    /// Until `stop`; then takes the document away.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // Of a process of this name that crashed: this one starts anew.
        let _ = timeout(EVERY, self.registry.leave()).await;
        let mut changes = self.pod_monitor.lease().subscribe();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut rounds, mut failed) = (0_u64, false);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: a change that is not waited for to the end is looked at with the next tick
                Ok(()) = changes.changed() => {
                    // Every renewal is a change; only a term that began or ended is news.
                    if self.pod_monitor.lease().term().map(lease::Term::get) == self.term {
                        continue;
                    }
                }
                // cancel-safe: tick
                _ = ticks.tick() => {}
            }
            // What was half told is told anew.
            let told = timeout(TOLD_WITHIN, self.tell(rounds.is_multiple_of(SWEEP_EVERY))).await;
            let failure = match &told {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(ErrorChain(error).to_string()),
                Err(_) => Some(format!("no answer within {TOLD_WITHIN:?}")),
            };
            // Said once: whoever reads the status sees that this pod is silent.
            if let Some(error) = failure.as_ref().filter(|_| !failed) {
                tracing::warn!(error, "announce this pod");
            }
            failed = failure.is_some();
            rounds += 1;
            tokio::select! {
                () = stop.cancelled() => break,
                // cancel-safe: it ends at once, or never
                () = self.pod_monitor.heartbeats().announcer.beat() => {}
            }
        }
        self.leave().await;
    }

    async fn tell(&mut self, sweep: bool) -> Result<(), mongo_error::DriverError> {
        let announcement = self.announcement(Instant::now());
        self.registry.announce(&announcement).await?;
        let term = self.pod_monitor.lease().term().map(lease::Term::get);
        if term != self.term {
            if let Some(ended) = self.term {
                self.registry.term_ended(ended).await?;
            }
            if let Some(begun) = term {
                self.registry.term_began(begun).await?;
                self.pod_monitor.term_began();
            }
            self.term = term;
        }
        if sweep { self.registry.sweep().await } else { Ok(()) }
    }

    /// A pod that is ending does not wait long for a store that does not answer.
    async fn leave(&self) {
        let farewell = async {
            if let Some(term) = self.term {
                self.registry.term_ended(term).await?;
            }
            self.registry.leave().await
        };
        if let Ok(Err(error)) = timeout(EVERY, farewell).await {
            tracing::debug!(error = %ErrorChain(&error), "take this pod's announcement away");
        }
    }

    fn announcement(&mut self, now: Instant) -> Announcement {
        use admin::PodTelemetry;
        let counters = self.pod_monitor.counters();
        let sample =
            RateSample { at: now, published: counters.published, applied: counters.applied, latency: counters.latency };
        // An announcement out of turn follows another closely: a rate is of a second at least.
        let before = self.samples.iter().rev().find(|sample| now.saturating_duration_since(sample.at) >= SHORTEST_SPAN);
        let (published, applied) = before.map_or((0.0, 0.0), |before| {
            let span = now.saturating_duration_since(before.at).as_secs_f64();
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / span;
            (rate(sample.published, before.published), rate(sample.applied, before.applied))
        });
        let latency =
            self.samples.front().map_or_else(LatencyBuckets::default, |first| sample.latency.since(&first.latency));
        self.samples.push_back(sample);
        if self.samples.len() > WINDOW {
            self.samples.pop_front();
        }
        let mut announcement = self.pod_monitor.announcement(now);
        announcement.address = Some(self.address.clone());
        announcement.latency = latency;
        announcement.published_per_second = announcement.in_flight.map(|_| published);
        announcement.applied_per_second = announcement.sessions.map(|_| applied);
        announcement
    }
}
