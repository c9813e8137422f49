//! The producer's soak: compares acknowledged writes with the messages of the subscription.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::failpoints::Failpoint as BrokerFailpoint;
use mongodb::Collection;
use mongodb::bson::Document;
use pipeline::failpoints::Failpoint;
use testkit::checker::{CheckReport, Checker, DuplicatePolicy, FencingHistory, ViolationKind};
use testkit::cluster::{
    CoordinationObserver, Error, MongoTopology, TestCluster, TestClusterConfig, TopicConfig, UnexpectedExit,
};
use testkit::load::{Load, LoadResult};
use testkit::nemesis::{self, BrokerProcessFault, ClusterFault, FaultPlan, FaultProfile, PodFault, PrimaryFault};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::SoakViolation;
use super::drain::{RunEnd, RunProgress, wait_for_end};
use super::{ReaderErrors, SubscriptionReader};

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Without a new event for this long, everything has arrived.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// In a run of this length, a once-only fault must occur while events are in flight.
const LONG_RUN: Duration = Duration::from_secs(20);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct ProducerSoakOptions {
    pub load: Load,
    pub pods: usize,
    pub mongo: MongoTopology,
    pub topic: TopicConfig,
    /// The content of the pods' `producer:`.
    pub producer: String,
    pub profile: FaultProfile,
    /// Seed of the fault plan; the load has its own.
    pub seed: u64,
    pub failpoint: Option<Failpoint>,
    pub broker_failpoint: Option<BrokerFailpoint>,
    /// Runs the broker with the profile `harsh`, its times divided by this number.
    pub harsh_scale: Option<f64>,
    /// Without progress for this long, a pipeline that is not drained counts as stalled.
    pub stall_timeout: Duration,
    /// Prints the plan and the progress.
    pub verbose: bool,
}

impl ProducerSoakOptions {
    /// The full run: 200,000 events of 5,000 aggregates at 1,000 per second.
    pub fn full(seed: u64) -> Self {
        let load =
            Load { events: 200_000, aggregates: 5_000, writers: 32, rate: Some(1_000.0), seed, ..Load::default() };
        Self {
            load,
            pods: 3,
            mongo: MongoTopology::ThreeNodes,
            topic: TopicConfig::default(),
            producer: TestClusterConfig::new("").producer,
            profile: FaultProfile::leaders(),
            seed,
            failpoint: None,
            broker_failpoint: None,
            harsh_scale: None,
            stall_timeout: Duration::from_secs(60),
            verbose: true,
        }
    }

    /// A short run for the test suite: a few thousand events in some ten seconds, on a single node.
    pub fn short(seed: u64) -> Self {
        let load = Load { events: 3_000, aggregates: 150, writers: 8, rate: Some(300.0), seed, ..Load::default() };
        let (pods, mongo, stall_timeout) = (2, MongoTopology::SingleNode, Duration::from_secs(30));
        Self {
            load,
            pods,
            mongo,
            stall_timeout,
            profile: FaultProfile::leaders().shortened(),
            verbose: false,
            ..Self::full(seed)
        }
    }

    pub(super) fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let environment = self.failpoint.map(|failpoint| (Failpoint::VARIABLE.to_owned(), format!("{failpoint:?}")));
        let variable = |failpoint| (BrokerFailpoint::VARIABLE.to_owned(), format!("{failpoint:?}"));
        TestClusterConfig {
            system_faults: self.profile.needs_system_faults(),
            broker_environment: self.broker_failpoint.map(variable).into_iter().collect(),
            pods: self.pods,
            mongo: self.mongo,
            topic: self.topic,
            producer: self.producer.clone(),
            environment: environment.into_iter().collect(),
            broker_arguments: self.broker_arguments(),
            ..TestClusterConfig::new(binary)
        }
    }

    fn broker_arguments(&self) -> Vec<String> {
        let Some(scale) = self.harsh_scale else { return vec![] };
        let (scale, seed) = (scale.to_string(), self.seed.to_string());
        ["--profile", "harsh", "--profile-scale", &scale, "--profile-seed", &seed].map(str::to_owned).into()
    }

    /// Without duplicate detection a takeover may publish copies.
    fn duplicates(&self) -> DuplicatePolicy {
        if self.topic.duplicate_window.is_some() { DuplicatePolicy::Forbidden } else { DuplicatePolicy::Counted }
    }

    pub fn plan(&self) -> FaultPlan {
        FaultPlan::draw(&self.profile, self.seed, self.length().saturating_sub(self.lock_pause_length()))
    }

    /// The plan up to the last once-only fault, which always runs to its end; and the rest, which ends with the load.
    fn split_plan(&self) -> (FaultPlan, FaultPlan) {
        let FaultPlan { faults: mut must } = self.plan();
        let once: Vec<&ClusterFault> = self.profile.once.iter().filter_map(|group| group.last()).collect();
        let last = must.iter().rposition(|planned| once.contains(&&planned.fault));
        let may = must.split_off(last.map_or(0, |last| last + 1));
        (FaultPlan { faults: must }, FaultPlan { faults: may })
    }

    /// How long the plan pauses while a pod is paused past its locks.
    fn lock_pause_length(&self) -> Duration {
        let sleeps = self.profile.once.iter().flatten().filter(|fault| is_lock_pause(**fault)).count();
        (self.topic.lock + Duration::from_secs(1)) * sleeps as u32
    }

    /// Planned faults that did not occur. Empty without faults.
    pub(super) fn missing_faults(&self, faults: &nemesis::FaultReport) -> Vec<String> {
        let mut missing = vec![];
        if self.profile.groups.is_empty() && self.profile.once.is_empty() {
            return missing;
        }
        if faults.in_flight() == 0 {
            missing.push("a fault while events were in flight".to_owned());
        }
        for fault in self.profile.once.iter().filter_map(|group| group.last()) {
            let counts = faults.counts(*fault);
            if counts.injected == 0 {
                missing.push(format!("to {fault}"));
            } else if counts.in_flight == 0 && self.length() >= LONG_RUN {
                missing.push(format!("to {fault} while events were in flight"));
            } else if is_lock_pause(*fault) && counts.effects == 0 {
                missing.push(format!("to {fault} while another takes its sessions"));
            }
        }
        missing
    }

    /// The planned duration of the writes.
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.load.rate.map_or(60.0, |rate| self.load.events as f64 / rate))
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct ProducerSoakResult {
    pub report: CheckReport,
    pub end: RunEnd,
    pub reader_errors: ReaderErrors,
    /// Lease holders and checkpoint saves.
    pub fence: FencingHistory,
    pub faults: nemesis::FaultReport,
    pub written: LoadResult,
    /// Pods that exited on their own.
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
}

impl ProducerSoakResult {
    /// Whether every guarantee held. (Restarted pods are reported separately: see [`Self::unexpected_exits`].)
    pub fn is_clean(&self) -> bool {
        self.violations().is_empty()
    }

    /// The kinds of guarantees that were broken.
    pub fn violations(&self) -> BTreeSet<SoakViolation> {
        let mut found = SoakViolation::of_history(&self.report);
        found.extend((!self.fence.violations().is_empty()).then_some(SoakViolation::FenceBreached));
        found.extend((self.end == RunEnd::Stalled).then_some(SoakViolation::Stalled));
        found.extend((!self.reader_errors.fatal.is_empty()).then_some(SoakViolation::ReaderError));
        found
    }

    /// What this run was to cover and did not: a run without faults proves nothing.
    pub fn missing(&self, options: &ProducerSoakOptions) -> Vec<String> {
        let mut missing = options.missing_faults(&self.faults);
        let wanted = [
            (self.report.counts.acknowledged == 0, "an acknowledged write"),
            (self.fence.terms() < 2, "a takeover"),
            (self.fence.saves() == 0, "a save of the checkpoint"),
        ];
        missing.extend(wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()));
        missing
    }

    /// The last line of a soak.
    pub fn json(&self, soak: &str) -> serde_json::Value {
        let Self { report, end, reader_errors, fence, faults, written, unexpected_exits, took } = self;
        let effects = |harm| faults.counts(ClusterFault::Broker(harm)).effects;
        serde_json::json!({
            "soak": soak,
            "acknowledged": report.counts.acknowledged,
            "in_doubt": report.in_doubt,
            "asked_for": written.retried,
            "lost": report.count(ViolationKind::Lost),
            "doubled": report.count(ViolationKind::Duplicated),
            "out_of_order": report.count(ViolationKind::OutOfOrder),
            "alien": report.count(ViolationKind::Unexpected),
            "altered": report.count(ViolationKind::Altered),
            "stalled": *end == RunEnd::Stalled,
            "reader_errors": reader_errors.retryable + reader_errors.fatal.len() as u64,
            "copies": report.duplicates(),
            "most_copies_in_a_term": report.most_duplicates_in_a_term(),
            "terms": fence.terms(),
            "fence_breaches": fence.violations().len(),
            "faults": faults.injected(),
            "faults_in_flight": faults.in_flight(),
            "primary_killed": faults.counts(ClusterFault::Primary(PrimaryFault::Kill)).injected,
            "throttled": effects(BrokerProcessFault::Throttle),
            "acknowledgements_lost": effects(BrokerProcessFault::LoseAcknowledgements),
            "unexpected_exits": unexpected_exits.len(),
            "seconds": (took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for ProducerSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { report, end, reader_errors, fence, faults, written, unexpected_exits, took } = self;
        writeln!(f, "{report}\nthe run ended {end:?}, {} reader errors", reader_errors.retryable)?;
        reader_errors.fatal.iter().try_for_each(|error| writeln!(f, "reader error: {error}"))?;
        writeln!(f, "{written:?}, {} terms, {} saves, {:.1} s", fence.terms(), fence.saves(), took.as_secs_f64())?;
        write!(f, "{faults}")?;
        fence.violations().iter().take(10).try_for_each(|violation| write!(f, "\n{violation}"))?;
        unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

fn is_lock_pause(fault: ClusterFault) -> bool {
    matches!(fault, ClusterFault::Pod(_, PodFault::PausePastLocks))
}

/// Starts the cluster, writes under faults, repairs, reads the subscription and checks.
pub async fn run(binary: &Path, options: &ProducerSoakOptions) -> Result<ProducerSoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    let observer = CoordinationObserver::start(&cluster).await?;
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    // An event written during the snapshot may arrive twice, from the snapshot and from the stream. This soak does not test that.
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    let checker = Arc::new(Checker::new());
    let subscription = cluster.broker().subscription();
    let reader = SubscriptionReader::start(cluster.broker(), &subscription, &checker);
    let mut progress = JoinSet::new();
    if options.verbose {
        progress.spawn(print_progress(Arc::clone(&checker)));
    }
    let (faults, written) = write_under_faults(&mut cluster, options, &checker, || checker.outstanding()).await?;
    drop(progress);

    let end = wait_until_all_observed(&mut cluster, &subscription, &checker, options.stall_timeout).await?;
    cluster.stop_pods().await;
    wait_until_quiet(&checker).await;
    let reader_errors = reader.errors();
    drop(reader);
    let fence = observer.history();
    let unexpected_exits = cluster.stop().await;
    let report = checker.check(options.duplicates());
    let took = began.elapsed();
    Ok(ProducerSoakResult { report, end, reader_errors, fence, faults, written, unexpected_exits, took })
}

/// Writes the load while the plan runs, and more on a slow machine until all once-only faults have occurred. `in_flight` returns the
/// number of unprocessed events.
pub(super) async fn write_under_faults(
    cluster: &mut TestCluster,
    options: &ProducerSoakOptions,
    checker: &Arc<Checker>,
    in_flight: impl Fn() -> u64,
) -> Result<(nemesis::FaultReport, LoadResult), Error> {
    let (must, may) = options.split_plan();
    if options.verbose {
        print!("{}", options.plan());
    }
    let (done, finished) = tokio::sync::oneshot::channel();
    let (load, events, ledger) = (options.load.clone(), cluster.events(), Arc::clone(checker));
    let fallen = CancellationToken::new();
    let enough = fallen.clone();
    let writing = tokio::spawn(async move {
        let written = write(&load, &events, &ledger, &enough).await;
        let _ = done.send(());
        written
    });
    let faults = nemesis::run_plan(cluster, &must, &in_flight, std::future::pending()).await?;
    fallen.cancel();
    let until = async { finished.await.unwrap_or_default() };
    let faults = faults.and(nemesis::run_plan(cluster, &may, &in_flight, until).await?);
    Ok((faults, writing.await.expect("writers do not panic")))
}

/// Writes the whole load, and more until `enough`. Stops when a write stays in doubt, because its aggregate cannot continue.
async fn write(
    load: &Load,
    events: &Collection<Document>,
    ledger: &Arc<Checker>,
    enough: &CancellationToken,
) -> LoadResult {
    let mut written = load.write(events, ledger).await;
    let mut more = Load { events: (load.events / 10).max(load.writers), ..load.clone() };
    while !enough.is_cancelled() && written.in_doubt == 0 {
        more.seed = more.seed.wrapping_add(1);
        written = written.and(more.write_until(events, ledger, enough).await);
    }
    written
}

/// Waits until every acknowledged write has been observed, see [`wait_for_end`].
pub(super) async fn wait_until_all_observed(
    cluster: &mut TestCluster,
    subscription: &str,
    checker: &Checker,
    stall_timeout: Duration,
) -> Result<RunEnd, Error> {
    let progress = || {
        let counts = checker.counts();
        RunProgress { arrived: counts.observed, is_complete: counts.outstanding == 0 }
    };
    wait_for_end(cluster, subscription, stall_timeout, progress).await
}

/// Waits until nothing more arrives after the pods have stopped: they may have published while they stopped.
pub(super) async fn wait_until_quiet(checker: &Checker) {
    let (mut seen, mut since) = (checker.counts().observed, Instant::now());
    while since.elapsed() < QUIET_PERIOD {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let observed = checker.counts().observed;
        if observed != seen {
            (seen, since) = (observed, Instant::now());
        }
    }
}

async fn print_progress(checker: Arc<Checker>) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let counts = checker.counts();
        let (seconds, acknowledged) = (began.elapsed().as_secs(), counts.acknowledged);
        println!(
            "{seconds:5} s: {acknowledged} acknowledged, {} seen, {} outstanding",
            counts.observed, counts.outstanding
        );
    }
}
