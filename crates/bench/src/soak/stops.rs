//! The soak of stops: under load the leader is timings to end, again and again, and the next one carries on.
//!
//! Two ends are judged. The topic, read beside the pods and without duplicate detection: a leader that ends in order leaves nothing behind
//! that its successor would have to send twice. And the read models, as in [`consumer`](super::consumer): equal to a fold of the source, and
//! one lists 1, 2, 3 … for every aggregate. Beside the verdicts: how long stops took, and how long nobody led and nothing was published.

mod result;
mod rounds;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::checker::{Checker, DuplicatePolicy};
use testkit::cluster::{
    CoordinationObserver, LeaseTimings, MongoTopology, TestCluster, TestClusterConfig, TopicConfig,
};
use testkit::load::Load;
use tokio_util::sync::CancellationToken;

use super::consumer::{ApplyProgress, Error, wait_until_applied};
use super::{SubscriptionReader, models, producer};
pub use result::StopSoakResult;
use rounds::StopRounds;

/// What Kubernetes gives a pod to end, unless timings otherwise.
const DEADLINE: Duration = Duration::from_secs(30);
/// What a pod gives itself by default: to its sessions, and to a leader's flush.
const SESSION_DRAIN: Duration = Duration::from_secs(20);
const FLUSH: Duration = Duration::from_secs(10);
const LED_WITHIN: Duration = Duration::from_secs(60);
/// Nothing more came for so long: all that will come has come.
const QUIET: Duration = Duration::from_secs(1);

/// What to do, and to selector.
#[derive(Clone, Debug)]
pub struct StopSoakOptions {
    /// Each ends one leader, and sometimes a standby with it.
    pub rounds: u64,
    /// Goes on until the rounds are over.
    pub load: Load,
    pub pods: usize,
    pub store: MongoTopology,
    /// Of the rounds; the load has its own.
    pub seed: u64,
    /// How long a leader leads undisturbed, at most.
    pub pause: Duration,
    /// What a leader may take to send what it has read.
    pub flush: Duration,
    /// When nothing has come for so long, what is still missing is lost.
    pub stall_timeout: Duration,
    /// Say how far things are.
    pub verbose: bool,
}

impl StopSoakOptions {
    /// The run: a hundred rounds at 1,000 events a second.
    pub fn full(seed: u64) -> Self {
        let load =
            Load { events: u64::MAX, aggregates: 5_000, writers: 16, rate: Some(1_000.0), seed, ..Load::default() };
        Self {
            rounds: 100,
            load,
            pods: 3,
            store: MongoTopology::ThreeNodes,
            seed,
            pause: Duration::from_secs(2),
            flush: FLUSH,
            stall_timeout: Duration::from_secs(60),
            verbose: true,
        }
    }

    /// A cut for the suite: six rounds in some ten seconds.
    pub fn short(seed: u64) -> Self {
        let full = Self::full(seed);
        let load = Load { aggregates: 200, ..full.load };
        let (store, pause) = (MongoTopology::Shared, Duration::from_millis(500));
        Self { rounds: 6, load, store, pause, verbose: false, ..full }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let models = models::declarations(true);
        let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let (drain, flush) = (SESSION_DRAIN.as_millis(), self.flush.as_millis());
        TestClusterConfig {
            pods: self.pods,
            mongo: self.store,
            topic: TopicConfig { duplicate_window: None, observer_subscription: true, ..TopicConfig::default() },
            // As pods have it: whoever leads too long without a word is not what is asked here.
            lease: LeaseTimings {
                ttl: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                heartbeat: Duration::from_secs(5),
            },
            producer: format!("start: beginning, drain: {flush}ms"),
            extra_yaml: format!("consumer: {{ drain: {drain}ms }}\nread_models:\n{models}"),
            ..TestClusterConfig::new(binary)
        }
    }
}

/// Builds the cluster, writes, ends leaders, waits until everything came, and compares.
pub async fn run(binary: &Path, options: &StopSoakOptions) -> Result<StopSoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    let observer = CoordinationObserver::start(&cluster).await?;
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    cluster.start_pods()?;
    cluster.wait_for_leader(LED_WITHIN).await?;
    cluster.wait_for_stream_phase(LED_WITHIN).await?;
    let checker = Arc::new(Checker::new());
    let reader = SubscriptionReader::start(
        &cluster.broker().connection_string(),
        &cluster.broker().observer_subscription(),
        &checker,
    );
    let enough = CancellationToken::new();
    let writing = {
        let (load, events, ledger, enough) =
            (options.load.clone(), cluster.events(), Arc::clone(&checker), enough.clone());
        tokio::spawn(async move { load.write_until(&events, &ledger, &enough).await })
    };

    let mut rounds = StopRounds::new(&mut cluster, &observer, &checker, options);
    let timings = rounds.run().await;
    enough.cancel();
    writing.await.expect("writers do not panic");
    let figures = timings?;

    let (written, progress) = (Instant::now(), ApplyProgress::start(&views, &checker, options.verbose));
    producer::wait_until_all_observed(&mut cluster, &checker, options.stall_timeout).await?;
    wait_until_applied(&mut cluster, &checker, &progress, options.stall_timeout, written).await?;
    cluster.stop_pods().await;
    // A pod that flushed at its end may have sent more.
    producer::wait_until_all_observed(&mut cluster, &checker, QUIET).await?;
    drop((reader, progress));
    let applied = checker.with_same_writes();
    models::record_history(&views, &applied).await?;
    let expected = models::fold(&cluster.events()).await?;
    let differences = models::differences(&views, &expected).await?;
    let violations = observer.read(|history| history.violations().len());
    let unexpected_exits = cluster.stop().await;
    Ok(StopSoakResult {
        topic: checker.check(DuplicatePolicy::Forbidden),
        applied: applied.check(DuplicatePolicy::Forbidden),
        differences,
        violations,
        figures,
        deadline: DEADLINE,
        unexpected_exits,
        took: began.elapsed(),
    })
}
