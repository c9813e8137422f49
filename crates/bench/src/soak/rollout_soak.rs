//! The soak of rollouts: all pods are restarted one after the other under load, as the StatefulSet of the chart does it, again and again.
//!
//! Nothing may be lost, published twice or applied twice, and the topic must never be without a new event for longer than a second. With a previous
//! binary, pods start with it, and every rollout is an upgrade or the way back.

mod before_fence;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::checker::{Checker, ViolationKind};
use testkit::cluster::TestCluster;
use testkit::wait::try_wait_for;
use tokio::task::JoinSet;

pub use self::before_fence::{BeforeFenceResult, run_before_fence};
pub use super::consumer_soak::Error;
use super::stop_soak::{RunningSoak, SoakComparison, StopSoakOptions};
use crate::latency::LatencySummary;

/// The services whose readiness ends the restart of a pod, as in `/readyz`.
const SERVICES: [&str; 3] = ["lease", "producer", "consumer"];
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RolloutSoakOptions {
    /// Load, pods and MongoDB.
    pub base: StopSoakOptions,
    pub rollouts: u64,
    /// The pods begin with this binary; the first rollout brings the present one, the second this one again, and so on.
    pub previous: Option<PathBuf>,
    /// The longest time without a new event on the topic.
    pub max_gap: Duration,
}

impl RolloutSoakOptions {
    /// The full run: twenty rollouts of three pods at 1,000 events per second.
    pub fn full(seed: u64) -> Self {
        Self { base: StopSoakOptions::full(seed), rollouts: 20, previous: None, max_gap: Duration::from_secs(1) }
    }

    /// A short run for the test suite. It does not judge the gap: machines are shared.
    pub fn short(seed: u64) -> Self {
        Self { base: StopSoakOptions::short(seed), rollouts: 2, previous: None, max_gap: Duration::MAX }
    }
}

/// The result of a run.
pub struct RolloutSoakResult {
    comparison: SoakComparison,
    /// The longest time without a new event on the topic, of each rollout.
    gaps: Vec<Duration>,
    /// From SIGTERM until the pod is ready again.
    restarts: LatencySummary,
    max_gap: Duration,
    took: Duration,
}

impl RolloutSoakResult {
    /// Whether every guarantee held.
    pub fn is_clean(&self) -> bool {
        let SoakComparison { topic, applied, differences, is_stalled, reader_errors, fence_breaches, unexpected_exits } =
            &self.comparison;
        let is_correct = topic.is_clean() && applied.is_clean() && differences.is_empty() && *fence_breaches == 0;
        let is_orderly = !is_stalled && reader_errors.fatal.is_empty() && unexpected_exits.is_empty();
        is_correct && is_orderly && self.longest_gap() <= self.max_gap
    }

    pub fn rollouts(&self) -> usize {
        self.gaps.len()
    }

    pub fn acknowledged(&self) -> u64 {
        self.comparison.topic.counts.acknowledged
    }

    fn longest_gap(&self) -> Duration {
        self.gaps.iter().copied().max().unwrap_or_default()
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        let SoakComparison { topic, applied, differences, fence_breaches, unexpected_exits, .. } = &self.comparison;
        let gaps: Vec<u64> = self.gaps.iter().map(|gap| gap.as_millis() as u64).collect();
        serde_json::json!({
            "soak": "rollouts",
            "clean": self.is_clean(),
            "rollouts": self.gaps.len(),
            "acknowledged": self.acknowledged(),
            "lost": topic.count(ViolationKind::Lost) + applied.count(ViolationKind::Lost),
            "published_twice": topic.count(ViolationKind::Duplicated),
            "applied_twice": applied.count(ViolationKind::Duplicated),
            "differences": differences.len(),
            "fence_breaches": fence_breaches,
            "unexpected_exits": unexpected_exits.len(),
            "longest_gap_ms": self.longest_gap().as_millis() as u64,
            "gaps_ms": gaps,
            "restart": self.restarts.json(),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for RolloutSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SoakComparison { topic, applied, differences, unexpected_exits, .. } = &self.comparison;
        writeln!(f, "on the topic: {topic}")?;
        writeln!(f, "applied: {applied}")?;
        writeln!(f, "{} rollouts, {:.1} s", self.gaps.len(), self.took.as_secs_f64())?;
        writeln!(f, "longest time without a new event, of each rollout: {:?}", self.gaps)?;
        write!(f, "restart of a pod, until it is ready: {}", self.restarts)?;
        differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Starts the cluster, writes, restarts all pods again and again, waits until everything has arrived, and compares.
pub async fn run(binary: &Path, options: &RolloutSoakOptions) -> Result<RolloutSoakResult, Error> {
    let began = Instant::now();
    let mut soak = RunningSoak::start(binary, options.previous.as_deref(), &options.base).await?;
    for pod in 0..options.base.pods {
        wait_until_ready(&soak.cluster, pod).await?;
    }
    let gap_meter = GapMeter::start(&soak.checker);
    let (mut gaps, mut restarts) = (vec![], vec![]);
    for rollout in 1..=options.rollouts {
        gap_meter.reset();
        let next = options.previous.as_deref().filter(|_| rollout % 2 == 0).unwrap_or(binary);
        // From the highest number down, as a StatefulSet does it.
        for pod in (0..options.base.pods).rev() {
            let stopped = Instant::now();
            soak.cluster.pod_mut(pod).set_executable(next);
            soak.cluster.restart_pod(pod).await?;
            wait_until_ready(&soak.cluster, pod).await?;
            restarts.push(stopped.elapsed());
        }
        gaps.push(gap_meter.longest());
        if options.base.verbose {
            println!("rollout {rollout} to {}: at most {:?} without a new event", next.display(), gap_meter.longest());
        }
    }
    drop(gap_meter);
    let comparison = soak.finish(&options.base).await?;
    let restarts = restarts.into_iter().collect();
    Ok(RolloutSoakResult { comparison, gaps, restarts, max_gap: options.max_gap, took: began.elapsed() })
}

async fn wait_until_ready(cluster: &TestCluster, pod: usize) -> Result<(), Error> {
    let ready = async || {
        let metrics = cluster.pod(pod).metrics().await.ok_or("no reply")?;
        let is_ready = |name: &str| metrics.value(&format!("headwater_service_ready{{service=\"{name}\"}}")) == 1;
        if SERVICES.into_iter().all(is_ready) { Ok(()) } else { Err("not ready") }
    };
    Ok(try_wait_for("the pod to be ready", READY_TIMEOUT, ready).await?)
}

/// Measures the longest time without a new event on the topic, until it is dropped.
struct GapMeter {
    state: Arc<Mutex<GapState>>,
    _sampler: JoinSet<()>,
}

struct GapState {
    observed: u64,
    since: Instant,
    longest: Duration,
}

impl GapMeter {
    fn start(checker: &Arc<Checker>) -> Self {
        let state = GapState { observed: 0, since: Instant::now(), longest: Duration::ZERO };
        let state = Arc::new(Mutex::new(state));
        let mut sampler = JoinSet::new();
        let (checker, shared) = (Arc::clone(checker), Arc::clone(&state));
        sampler.spawn(async move {
            loop {
                tokio::time::sleep(SAMPLE_INTERVAL).await;
                let (observed, now) = (checker.counts().observed, Instant::now());
                let mut state = shared.lock().expect("the sampler does not panic");
                state.longest = state.longest.max(now.duration_since(state.since));
                if state.observed != observed {
                    (state.observed, state.since) = (observed, now);
                }
            }
        });
        Self { state, _sampler: sampler }
    }

    fn reset(&self) {
        let mut state = self.state.lock().expect("the sampler does not panic");
        (state.since, state.longest) = (Instant::now(), Duration::ZERO);
    }

    fn longest(&self) -> Duration {
        self.state.lock().expect("the sampler does not panic").longest
    }
}
