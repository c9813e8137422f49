//! The soak of pipelines: many of them in the same pods, one poisoned and one halted.
//!
//! It shows that leaders spread over the pods, that the others are as fast as without the bad two, how long each lease has no holder when a pod
//! stops, and what an additional pipeline costs in memory.

mod backlog;
mod lease_gaps;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use local_cluster::usage::resident_mb;
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig, UnexpectedExit};
use testkit::wait::try_wait_for;

use self::backlog::Backlog;
use self::lease_gaps::LeaseGapWatch;
use super::consumer_soak::Error;
use crate::latency::{LatencySummary, percentile};

const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Buffers of a start are returned, and the first heartbeats are over.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// `n` counts the applied events. The operand of `Paid` is not a number in a poisoned pipeline.
const READ_MODELS: &str = "read_models: { orders: { when: { Placed: { $inc: { n: 1 } }, Paid: { $inc: { n: $$event.payload.amount } } } } }\n";
/// The server refuses it, which no check of the configuration can know.
const HALTED_MODEL: &str = "bad: { when: { Placed: [ { $set: { a: { $noSuchOperator: 1 } } } ] } }";
const POISONED: &str = "poisoned";
const HALTED: &str = "halted";
/// The exit code of a pod whose configuration cannot be used.
const MISCONFIGURED: i32 = 3;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct PipelinesSoakOptions {
    /// Pipelines, with the two bad ones.
    pub pipelines: usize,
    pub pods: usize,
    pub mongo: MongoTopology,
    pub backlog: Backlog,
    /// Backlogs that are measured with and without the bad pipelines, each.
    pub rounds: usize,
    /// How often a pod is restarted to measure takeovers.
    pub restarts: usize,
    /// `coordination.balance_interval`.
    pub balance_interval: Duration,
    /// Prints the progress.
    pub verbose: bool,
}

impl PipelinesSoakOptions {
    /// The full run: twenty pipelines on three pods.
    pub fn full() -> Self {
        Self {
            pipelines: 20,
            pods: 3,
            mongo: MongoTopology::SingleNode,
            backlog: Backlog { aggregates: 100, events: 20 },
            rounds: 5,
            restarts: 12,
            balance_interval: Duration::from_secs(5),
            verbose: true,
        }
    }

    /// A short run for the test suite.
    pub fn short() -> Self {
        Self {
            pipelines: 6,
            mongo: MongoTopology::Shared,
            backlog: Backlog { aggregates: 20, events: 5 },
            rounds: 1,
            restarts: 2,
            balance_interval: Duration::from_secs(1),
            verbose: false,
            ..Self::full()
        }
    }

    /// The good pipelines besides the first one, which every cluster has.
    fn further(&self) -> Vec<(String, String)> {
        (2..self.pipelines - 1).map(|number| (format!("p{number:02}"), String::new())).collect()
    }

    fn blueprint(&self, binary: &Path, pipelines: Vec<(String, String)>) -> TestClusterConfig {
        let interval = format!("{}ms", self.balance_interval.as_millis());
        TestClusterConfig {
            pods: self.pods,
            mongo: self.mongo,
            pipelines,
            extra_yaml: READ_MODELS.to_owned(),
            environment: vec![("HEADWATER__COORDINATION__BALANCE_INTERVAL".to_owned(), interval)],
            ..TestClusterConfig::new(binary)
        }
    }

    fn say(&self, text: impl fmt::Display) {
        if self.verbose {
            println!("{text}");
        }
    }
}

/// The result of a run.
pub struct PipelinesSoakResult {
    pipelines: usize,
    /// Leases of each pod when all were held, and at the end.
    first_leases: Vec<usize>,
    last_leases: Vec<usize>,
    balanced_after: Duration,
    /// Until a backlog of the good pipelines is applied, without and with the bad ones.
    control: LatencySummary,
    beside_bad: LatencySummary,
    backlog_events: u64,
    /// What is wrong with the documents of good pipelines.
    differences: Vec<String>,
    parked_aggregates: u64,
    /// Whether the halted pipeline said so.
    is_halt_reported: bool,
    /// From the release of a lease to its next holder.
    takeovers: LatencySummary,
    single_mb: f64,
    several_mb: f64,
    unexpected_exits: Vec<UnexpectedExit>,
}

impl PipelinesSoakResult {
    /// Whether every guarantee held. Speed is reported, not judged: machines are shared.
    pub fn is_clean(&self) -> bool {
        let spread = self.last_leases.iter().max().zip(self.last_leases.iter().min());
        let is_spread = spread.is_some_and(|(most, least)| most - least <= 1);
        let is_covered = self.parked_aggregates > 0 && self.is_halt_reported && self.takeovers.count() > 0;
        is_spread && is_covered && self.differences.is_empty() && self.unexpected_exits.is_empty()
    }

    /// Time beside the bad pipelines over time without them, by medians.
    pub fn slowdown(&self) -> f64 {
        self.beside_bad.percentile_ms(50) / self.control.percentile_ms(50)
    }

    pub fn mb_per_pipeline(&self) -> f64 {
        (self.several_mb - self.single_mb) / (self.pipelines - 1) as f64
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        let round = |number: f64| (number * 100.0).round() / 100.0;
        serde_json::json!({
            "soak": "pipelines",
            "clean": self.is_clean(),
            "pipelines": self.pipelines,
            "first_leases": self.first_leases,
            "last_leases": self.last_leases,
            "balanced_after_ms": self.balanced_after.as_millis() as u64,
            "backlog_events": self.backlog_events,
            "backlog_without_bad": self.control.json(),
            "backlog_beside_bad": self.beside_bad.json(),
            "slowdown": round(self.slowdown()),
            "parked_aggregates": self.parked_aggregates,
            "halt_reported": self.is_halt_reported,
            "differences": self.differences.len(),
            "takeover": self.takeovers.json(),
            "single_mb": round(self.single_mb),
            "several_mb": round(self.several_mb),
            "mb_per_pipeline": round(self.mb_per_pipeline()),
            "unexpected_exits": self.unexpected_exits.len(),
        })
    }
}

impl fmt::Display for PipelinesSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first_leases, last_leases, balanced_after, backlog_events, .. } = self;
        writeln!(f, "leases of the pods: {first_leases:?} at first, {last_leases:?} after {balanced_after:.1?}")?;
        writeln!(f, "a backlog of {backlog_events} events without the bad pipelines: {}", self.control)?;
        writeln!(f, "beside them: {} (times {:.2})", self.beside_bad, self.slowdown())?;
        writeln!(f, "{} aggregates parked; halt reported: {}", self.parked_aggregates, self.is_halt_reported)?;
        writeln!(f, "a lease without a holder after a stop: {}", self.takeovers)?;
        let Self { single_mb, several_mb, pipelines, .. } = self;
        write!(f, "{single_mb:.1} MiB with one pipeline, {several_mb:.1} MiB with {pipelines}: ")?;
        write!(f, "{:.2} MiB for each additional one", self.mb_per_pipeline())?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Measures one pipeline alone, the good ones without the bad ones, and then all of them.
pub async fn run(binary: &Path, options: &PipelinesSoakOptions) -> Result<PipelinesSoakResult, Error> {
    let single = start(options.blueprint(binary, vec![]), 1).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let single_mb = resident(&single);
    single.stop().await;

    let further = options.further();
    let good: Vec<&str> = further.iter().map(|(name, _)| name.as_str()).collect();
    let control_cluster = start(options.blueprint(binary, further.clone()), further.len() + 1).await?;
    let mut differences = vec![];
    let control = measure(&control_cluster, &good, options, &mut differences).await?;
    control_cluster.stop().await;

    let bad = [(POISONED.to_owned(), String::new()), (HALTED.to_owned(), HALTED_MODEL.to_owned())];
    let all: Vec<_> = further.iter().cloned().chain(bad).collect();
    let mut cluster = start(options.blueprint(binary, all), options.pipelines).await?;
    let (began, first_leases) = (Instant::now(), cluster.leases_held().await?);
    options.say(format_args!("leases at first: {first_leases:?}"));
    wait_until_spread(&cluster, options.pipelines).await?;
    let balanced_after = began.elapsed();
    tokio::time::sleep(SETTLE_TIME).await;
    let several_mb = resident(&cluster);

    options.backlog.poison(&cluster, POISONED).await?;
    options.backlog.write(&cluster, &[HALTED], 0).await?;
    let is_halt_reported = wait_for_halt(&cluster).await;
    let parked_aggregates = options.backlog.wait_until_parked(&cluster, POISONED).await?;
    let beside_bad = measure(&cluster, &good, options, &mut differences).await?;

    let gaps = LeaseGapWatch::start(&cluster).await?;
    for restart in 0..options.restarts {
        cluster.restart_pod(restart % options.pods).await?;
        wait_until_spread(&cluster, options.pipelines).await?;
        options.say(format_args!("restart {}: {} takeovers so far", restart + 1, gaps.count()));
    }
    let takeovers = gaps.finish();
    // Nothing was lost or applied twice while leaders changed.
    differences.extend(options.backlog.differences(&cluster, &good, options.rounds).await?);
    let last_leases = cluster.leases_held().await?;
    let mut unexpected_exits = cluster.stop().await;
    // A pod that stops with a halted pipeline names it by its exit code.
    unexpected_exits.retain(|exit| exit.status.code() != Some(MISCONFIGURED));
    Ok(PipelinesSoakResult {
        pipelines: options.pipelines,
        first_leases,
        last_leases,
        balanced_after,
        control,
        beside_bad,
        backlog_events: options.backlog.events * options.backlog.aggregates * (good.len() as u64 + 1),
        differences,
        parked_aggregates,
        is_halt_reported,
        takeovers,
        single_mb,
        several_mb,
        unexpected_exits,
    })
}

/// A cluster whose pods hold this many leases.
async fn start(config: TestClusterConfig, leases: usize) -> Result<TestCluster, Error> {
    let mut cluster = TestCluster::start(config).await?;
    cluster.start_pods()?;
    try_wait_for("every lease to be held", START_TIMEOUT, async || match cluster.leases_held().await {
        Ok(held) if held.iter().sum::<usize>() == leases => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    cluster.wait_for_stream_phase(START_TIMEOUT).await?;
    Ok(cluster)
}

/// Waits until the leaders are within one of each other.
async fn wait_until_spread(cluster: &TestCluster, leases: usize) -> Result<(), Error> {
    let spread = async || match cluster.leases_held().await {
        Ok(held)
            if held.iter().sum::<usize>() == leases
                && held.iter().max() <= held.iter().min().map(|least| least + 1).as_ref() =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    };
    Ok(try_wait_for("the leaders to be spread", START_TIMEOUT, spread).await?)
}

/// The median of all pods.
fn resident(cluster: &TestCluster) -> f64 {
    let mut sizes: Vec<f64> =
        cluster.pods().iter().filter_map(|pod| Some(resident_mb(pod.running_process()?.pid()))).collect();
    sizes.sort_by(f64::total_cmp);
    percentile(&sizes, 50)
}

/// Writes a backlog to each good pipeline, and measures how long they take to apply it. The first round warms up and does not count.
async fn measure(
    cluster: &TestCluster,
    good: &[&str],
    options: &PipelinesSoakOptions,
    differences: &mut Vec<String>,
) -> Result<LatencySummary, Error> {
    let mut times = vec![];
    for round in 0..=options.rounds {
        let began = Instant::now();
        options.backlog.write(cluster, good, round).await?;
        options.backlog.write_first(cluster, round).await?;
        options.backlog.wait_until_applied(cluster, good, round).await?;
        times.push(began.elapsed());
        options.say(format_args!("round {round}: {:.2?}", began.elapsed()));
    }
    differences.extend(options.backlog.differences(cluster, good, options.rounds).await?);
    Ok(times.into_iter().skip(1).collect())
}

/// Whether a pod reports that the consumer of the halted pipeline is not ready.
async fn wait_for_halt(cluster: &TestCluster) -> bool {
    let is_unready = |page: &str| {
        page.lines()
            .any(|line| line == format!("headwater_service_ready{{pipeline=\"{HALTED}\",service=\"consumer\"}} 0"))
    };
    let reported =
        try_wait_for("the halt to be reported", START_TIMEOUT, async || match cluster.pod(0).metrics().await {
            Some(metrics) if is_unready(metrics.page()) => Ok(()),
            _ => Err("not reported"),
        });
    reported.await.is_ok()
}
