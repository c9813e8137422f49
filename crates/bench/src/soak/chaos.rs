//! Chaos: every fault there is, at random, while pods are rolled out, read models are built anew and operators act.
//!
//! A seed is a run: it draws the MongoDB topology, the number of pods and the [plan of faults](FaultPlan). At the end everything is repaired, and
//! every acknowledged write must be in every read model, in order, once; terms only rose, and the checkpoint never moved back. A run that
//! is not clean prints its seed, and its plan [shrinks](shrink) to the fewest faults that still break a guarantee.

mod html_report;
mod result;
mod settle;
pub mod shrink;
mod timeline;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::Bson;
use pipeline::generation::GenerationStore;
use testkit::checker::{Checker, DuplicatePolicy};
use testkit::cluster::{CoordinationObserver, MongoTopology, TestCluster, TestClusterConfig, TopicConfig};
use testkit::load::Load;
use testkit::nemesis::{self, FaultPlan, FaultProfile};
use tokio_util::sync::CancellationToken;

pub use super::consumer_soak::Error;
use super::consumer_soak::{
    ApplyProgress, ParkedEvent, parked_event, parked_store, poison, poisoned_event, remove_poison, wait_until_ready,
};
use super::deploy_soak::PIPELINE;
use super::late_republisher::LateRepublisher;
use super::producer_soak::ProducerSoakOptions;
use super::soak_read_models::{self, ExpectedModels};
pub use html_report::write_report;
pub use result::ChaosResult;
use timeline::TimelineRecorder;
pub use timeline::TimelineSample;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Large enough for a minute of writes beside a fill.
const OPLOG_MEGABYTES: u32 = 192;
/// A read model that every rollout changes.
const MARKS: &str = "marks";
/// Only in the first set of read models.
const OPEN: &str = "open_orders";

/// Options of a run.
#[derive(Clone, Debug)]
pub struct ChaosOptions {
    /// Load, pods, MongoDB, failpoint. Its faults are those of the plan.
    pub base: ProducerSoakOptions,
    pub plan: FaultPlan,
    /// How long writers write and faults are injected.
    pub length: Duration,
    /// Without it, lost messages stay lost.
    pub audit: bool,
}

impl ChaosOptions {
    /// The run of this seed: every fifth on a sharded cluster, every fifth on a single node with links that fail, the others on three nodes.
    pub fn for_seed(seed: u64, length: Duration) -> Self {
        let mongo = match seed % 5 {
            0 => MongoTopology::Sharded,
            1 => MongoTopology::SingleNode,
            _ => MongoTopology::ThreeNodes,
        };
        Self::with_topology(seed, length, mongo, 3 + (seed % 3) as usize)
    }

    pub fn with_topology(seed: u64, length: Duration, mongo: MongoTopology, pods: usize) -> Self {
        let has_members = matches!(mongo, MongoTopology::SingleNode | MongoTopology::ThreeNodes);
        let profile = FaultProfile::chaos(has_members, mongo != MongoTopology::ThreeNodes);
        let topic = TopicConfig {
            duplicate_window: None,
            lock: Duration::from_secs(5),
            republish_subscription: true,
            ..TopicConfig::default()
        };
        let load =
            Load { events: u64::MAX / 2, aggregates: 500, writers: 16, rate: Some(400.0), seed, ..Load::default() };
        let plan = FaultPlan::draw(&profile, seed, length).until(length);
        let base = ProducerSoakOptions {
            load,
            pods,
            mongo,
            topic,
            profile,
            stall_timeout: Duration::from_secs(90),
            ..ProducerSoakOptions::full(seed)
        };
        Self { base, plan, length, audit: true }
    }

    /// Two minutes for the test suite, at a rate that leaves room for other tests.
    pub fn short(seed: u64) -> Self {
        let mut options = Self::with_topology(seed, Duration::from_secs(120), MongoTopology::ThreeNodes, 3);
        (options.base.load.rate, options.base.load.aggregates) = (Some(100.0), 200);
        (options.base.stall_timeout, options.base.verbose) = (Duration::from_secs(120), false);
        options
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let rollouts = [ModelSetName::First, ModelSetName::Second].map(declared).to_vec();
        let audit = if self.audit { "period: 5s, budget_percent: 50" } else { "enabled: false" };
        TestClusterConfig {
            audit: audit.to_owned(),
            extra_yaml: rollouts[0].clone(),
            rollouts,
            system_faults: true,
            oplog_megabytes: Some(OPLOG_MEGABYTES),
            ..self.base.blueprint(binary)
        }
    }
}

/// The sets of read models that rollouts take in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelSetName {
    First,
    /// One read model is removed, one is changed, one is added.
    Second,
}

impl ModelSetName {
    fn of(cluster: &TestCluster) -> Self {
        if cluster.rollout_index() == 0 { Self::First } else { Self::Second }
    }
}

fn declarations(set: ModelSetName) -> Vec<(&'static str, serde_json::Value)> {
    let mut models = soak_read_models::declarations(true);
    let amount = if set == ModelSetName::First { 1 } else { 2 };
    let types = models[0].1["when"].as_object().expect("a map of clauses").keys().cloned();
    let clause = serde_json::json!({ "$inc": { "marks": amount } });
    let when: serde_json::Map<_, _> = types.map(|name| (name, clause.clone())).collect();
    if set == ModelSetName::Second {
        models.retain(|(name, _)| *name != OPEN);
        models.push(("marks_by_type", serde_json::json!({ "key": "$$event.type", "when": when })));
    }
    models.push((MARKS, serde_json::json!({ "when": when })));
    models
}

fn declared(set: ModelSetName) -> String {
    let models = declarations(set).iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
    format!("consumer: {{ lock_duration: 5s, drain: 5s }}\nread_models:\n  change_delay: 500ms\n{models}")
}

/// What the read models of this set hold after all events.
async fn expected(cluster: &TestCluster, set: ModelSetName) -> Result<ExpectedModels, Error> {
    let mut expected = soak_read_models::fold(&cluster.events()).await?;
    let amount = if set == ModelSetName::First { 1 } else { 2 };
    let events = |document: &std::collections::BTreeMap<String, Bson>| document["events"].as_i32().unwrap_or(0);
    let marks = expected[soak_read_models::TOTALS].iter();
    let marks =
        marks.map(|(key, document)| (key.clone(), [("marks".to_owned(), (amount * events(document)).into())].into()));
    let marks = marks.collect();
    expected.insert(MARKS, marks);
    if set == ModelSetName::Second {
        expected.remove(OPEN);
        let counts = soak_read_models::count_by_type(&cluster.events()).await?;
        let counts = counts.into_iter().map(|(key, count)| (key, [("marks".to_owned(), (2 * count).into())].into()));
        expected.insert("marks_by_type", counts.collect());
    }
    Ok(expected)
}

/// Lists the parked events, removes the cause and retries them, as an operator does. Returns also how many aggregates were retried.
async fn retry_parked(
    cluster: &mut TestCluster,
    views: &Database,
    set: ModelSetName,
) -> Result<(Vec<ParkedEvent>, u64), Error> {
    let parked: Vec<_> = parked_store(views, declarations(set)).list(1_000).await?.iter().map(parked_event).collect();
    remove_poison(views).await?;
    let mut retried = 0;
    for (aggregate, model, _) in &parked {
        let result = cluster.run_command(&["parked", "retry", aggregate, "--model", model]).await?;
        retried += u64::from(result.is_success());
    }
    Ok((parked, retried))
}

/// Starts the cluster, writes under faults, repairs, waits and compares.
pub async fn run(binary: &Path, options: &ChaosOptions) -> Result<ChaosResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    let observer = Arc::new(CoordinationObserver::start(&cluster).await?);
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    poison(&views).await?;
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    wait_until_ready(&cluster).await?;

    let checker = Arc::new(Checker::new());
    let republisher = LateRepublisher::start(cluster.broker(), options.base.seed);
    let progress = Arc::new(ApplyProgress::start(&views, &checker, options.base.verbose));
    let timeline = TimelineRecorder::start(&checker, &progress, &observer);
    let stop = CancellationToken::new();
    let (load, events, writes, enough) =
        (options.base.load.clone(), cluster.events(), Arc::clone(&checker), stop.clone());
    let writing = tokio::spawn(async move { load.write_until(&events, &writes, &enough).await });
    if options.base.verbose {
        print!("{}", options.plan);
    }
    let in_flight = || checker.counts().acknowledged.saturating_sub(progress.applied());
    let until = tokio::time::sleep(options.length);
    let faults = nemesis::run_plan(&mut cluster, &options.plan, in_flight, until).await?;
    stop.cancel();
    let written = writing.await?;
    let repaired = Instant::now();

    let set = ModelSetName::of(&cluster);
    let generations = GenerationStore::new(&cluster.coordination(), PIPELINE);
    let names = declarations(set).into_iter().map(|(name, _)| name.to_owned()).collect();
    let settled =
        settle::settle(&mut cluster, options, settle::WantedModels { generations, names }, &checker, &progress).await;
    let settled_in = repaired.elapsed();
    let (republished, longest_stall) = (republisher.republished(), progress.longest_stall());
    drop(republisher);
    let timeline = timeline.finish().await;
    let (parked, replayed) = retry_parked(&mut cluster, &views, set).await?;
    cluster.stop_pods().await;
    let commands = cluster.command_results().await.to_vec();
    let fence = observer.history();
    soak_read_models::record_history(&views, &checker).await?;
    let expected = expected(&cluster, set).await?;
    let differences = soak_read_models::differences(&views, &expected).await?;
    let expected_parked = poisoned_event(&expected, true, true);
    let rollouts = cluster.rollout_count();
    let unexpected_exits = cluster.stop().await;
    Ok(ChaosResult {
        seed: options.base.seed,
        mongo: options.base.mongo,
        pods: options.base.pods,
        report: checker.check(DuplicatePolicy::Forbidden),
        settled,
        settled_in,
        written,
        differences,
        parked,
        expected_parked,
        replayed,
        republished,
        fence,
        faults,
        commands,
        rollouts,
        unexpected_exits,
        longest_stall,
        timeline,
        took: began.elapsed(),
    })
}
