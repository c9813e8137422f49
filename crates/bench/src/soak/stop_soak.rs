//! The soak of stops: the leader gets SIGTERM under load, again and again, and another pod takes over.
//!
//! It checks two ends. The topic, read beside the pods and without duplicate detection: after an orderly stop the next leader republishes
//! nothing. And the read models, as in [`consumer_soak`](super::consumer_soak): equal to a fold of the source, and one lists 1, 2, 3 … for every
//! aggregate. It also measures how long stops take, and how long there is no leader and no new message.

mod result;
mod rounds;
mod running_soak;

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::cluster::{LeaseTimings, MongoTopology, TestClusterConfig, TopicConfig};
use testkit::load::Load;

use super::consumer_soak::Error;
use super::soak_read_models;
pub use result::StopSoakResult;
use rounds::StopRounds;
pub(super) use running_soak::{RunningSoak, SoakComparison};

/// The default termination grace period of Kubernetes.
const DEADLINE: Duration = Duration::from_secs(30);
/// A pod's default drain timeouts: of its sessions, and of a leader's flush.
const SESSION_DRAIN: Duration = Duration::from_secs(20);
const FLUSH: Duration = Duration::from_secs(10);
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct StopSoakOptions {
    /// Each stops one leader, and sometimes a standby with it.
    pub rounds: u64,
    /// Runs until the rounds end.
    pub load: Load,
    pub pods: usize,
    pub mongo: MongoTopology,
    /// Seed of the rounds; the load has its own.
    pub seed: u64,
    /// The longest time a leader runs before it is stopped.
    pub pause: Duration,
    /// How long a leader may take to publish what it has read.
    pub flush: Duration,
    /// Without progress for this long, a pipeline that is not drained counts as stalled.
    pub stall_timeout: Duration,
    /// A further read model, as `name: definition`, that the first [rollout](testkit::cluster::TestCluster::roll_out) adds.
    pub added_model: Option<String>,
    /// Prints the progress.
    pub verbose: bool,
}

impl StopSoakOptions {
    /// The full run: a hundred rounds at 1,000 events per second.
    pub fn full(seed: u64) -> Self {
        let load =
            Load { events: u64::MAX, aggregates: 5_000, writers: 16, rate: Some(1_000.0), seed, ..Load::default() };
        Self {
            rounds: 100,
            load,
            pods: 3,
            mongo: MongoTopology::ThreeNodes,
            seed,
            pause: Duration::from_secs(2),
            flush: FLUSH,
            stall_timeout: Duration::from_secs(60),
            added_model: None,
            verbose: true,
        }
    }

    /// A short run for the test suite: six rounds in some ten seconds.
    pub fn short(seed: u64) -> Self {
        let full = Self::full(seed);
        let load = Load { aggregates: 200, ..full.load };
        let (mongo, pause) = (MongoTopology::Shared, Duration::from_millis(500));
        Self { rounds: 6, load, mongo, pause, verbose: false, ..full }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let models = soak_read_models::declarations(true);
        let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let (drain, flush) = (SESSION_DRAIN.as_millis(), self.flush.as_millis());
        let extra_yaml = format!("consumer: {{ drain: {drain}ms }}\nread_models:\n{models}");
        let added = self.added_model.iter().map(|model| format!("{extra_yaml}  {model}\n"));
        TestClusterConfig {
            pods: self.pods,
            mongo: self.mongo,
            topic: TopicConfig { duplicate_window: None, observer_subscription: true, ..TopicConfig::default() },
            // The default timings of a pod: lease expiry is not part of this soak.
            lease: LeaseTimings {
                ttl: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                heartbeat: Duration::from_secs(5),
            },
            producer: format!("start: beginning, drain: {flush}ms"),
            rollouts: [extra_yaml.clone()].into_iter().chain(added).collect(),
            extra_yaml,
            ..TestClusterConfig::new(binary)
        }
    }
}

/// Starts the cluster, writes, stops leaders, waits until everything has arrived, and compares.
pub async fn run(binary: &Path, options: &StopSoakOptions) -> Result<StopSoakResult, Error> {
    let began = Instant::now();
    let mut soak = RunningSoak::start(binary, None, options).await?;
    let mut rounds = StopRounds::new(&mut soak.cluster, &soak.observer, &soak.checker, options);
    let timings = rounds.run().await;
    let (figures, comparison) = (timings, soak.finish(options).await?);
    let SoakComparison { topic, applied, differences, is_stalled, reader_errors, fence_breaches, unexpected_exits } =
        comparison;
    Ok(StopSoakResult {
        topic,
        applied,
        differences,
        is_stalled,
        reader_errors,
        fence_breaches,
        figures: figures?,
        deadline: DEADLINE,
        unexpected_exits,
        took: began.elapsed(),
    })
}
