//! The soak of `read-model rebuild`: a read model of many events is built anew while events flow, pods are killed in the middle, and it is rolled back
//! and built once more. Readers find documents all the time.
//!
//! The history is written directly: events, cursors and read models as pods leave them. So a million events cost minutes less.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::process::Program;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
use pipeline::generation::{GenerationStage, GenerationStore};
use testkit::checker::Checker;
use testkit::cluster::{TestCluster, TestClusterConfig, UnexpectedExit};
use testkit::load::Load;
use testkit::nemesis::FaultProfile;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use super::consumer_soak::Error;
use super::deploy_soak::{PIPELINE, wait_until_applied, watch_switches};
use super::pause_watch::PauseWatch;
use super::producer_soak::ProducerSoakOptions;
use super::soak_read_models;
use crate::source_events::insert_events;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const BUILD_TIMEOUT: Duration = Duration::from_secs(1_800);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Aggregates compared right after a switch, while events flow; in the end all are.
const SAMPLE: &str = "500";
/// The read model that is built anew.
const MODEL: &str = soak_read_models::TOTALS;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RebuildSoakOptions {
    /// Load, pods, MongoDB. Its faults are not used: the leader is killed while the build runs.
    pub base: ProducerSoakOptions,
    /// Events before the first rebuild.
    pub history: u64,
    /// Kills in the first rebuild.
    pub kills: u64,
    /// Events per second of the first rebuild; `None`: as fast as possible.
    pub rate: Option<u32>,
    /// Longer pauses of the writers at a switch are a failure.
    pub max_switch: Option<Duration>,
}

impl RebuildSoakOptions {
    pub fn full(seed: u64) -> Self {
        let base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::full(seed) };
        Self { base, history: 1_000_000, kills: 2, rate: None, max_switch: Some(Duration::from_secs(1)) }
    }

    /// A short run for the test suite, on a single node. Nothing is said about the speed of the machine.
    pub fn short(seed: u64) -> Self {
        let mut base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::short(seed) };
        base.load.rate = Some(100.0);
        // Slow enough for two kills.
        Self { base, history: 3_000, kills: 2, rate: Some(500), max_switch: None }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let declared = soak_read_models::declarations(false);
        let declared = declared.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let extra_yaml = format!("consumer: {{ drain: 5s }}\nread_models:\n  change_delay: 500ms\n{declared}");
        let producer = "start: now, checkpoint: 200ms, body: bson".to_owned();
        TestClusterConfig { extra_yaml, producer, ..self.base.blueprint(binary) }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RebuildSoakResult {
    pub history: u64,
    pub acknowledged: u64,
    pub kills: u64,
    /// Builds that were switched to.
    pub builds: u64,
    /// How long the first one took, with its kills.
    pub first_build: Duration,
    /// The longest time that transactions waited for a switch.
    pub longest_switch: Duration,
    /// The longest time without an event applied to another read model, in the builds without kills.
    pub longest_pause: Duration,
    pub reads: u64,
    /// Reads that found no document.
    pub empty_reads: u64,
    /// What `read-model verify` printed right after a switch, if it found something.
    pub alarms: Vec<String>,
    pub differences: Vec<String>,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
}

impl RebuildSoakResult {
    pub fn is_clean(&self, options: &RebuildSoakOptions) -> bool {
        let is_quick = |most: Duration| self.longest_switch <= most && self.longest_pause <= most;
        self.differences.is_empty()
            && self.alarms.is_empty()
            && self.empty_reads == 0
            && options.max_switch.is_none_or(is_quick)
    }

    /// What this run was to cover and did not.
    pub fn missing(&self, options: &RebuildSoakOptions) -> Vec<String> {
        let wanted = [
            (self.acknowledged <= self.history, "a write beside the builds"),
            (self.builds < 3, "every build"),
            (self.kills < options.kills, "every kill in the middle of a build"),
            (self.reads == 0, "a read"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()).collect()
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "rebuild",
            "history": self.history,
            "acknowledged": self.acknowledged,
            "kills": self.kills,
            "builds": self.builds,
            "first_build_s": (self.first_build.as_secs_f64() * 10.0).round() / 10.0,
            "longest_switch_ms": self.longest_switch.as_millis() as u64,
            "longest_pause_ms": self.longest_pause.as_millis() as u64,
            "reads": self.reads,
            "empty_reads": self.empty_reads,
            "alarms": self.alarms.len(),
            "differences": self.differences.len(),
            "unexpected_exits": self.unexpected_exits.len(),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for RebuildSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { history, acknowledged, kills, builds, longest_switch, longest_pause, .. } = self;
        writeln!(f, "{history} events, {acknowledged} in the end, {builds} builds, {kills} kills in the first")?;
        writeln!(
            f,
            "first build {:?}, longest switch {longest_switch:?}, longest pause {longest_pause:?}",
            self.first_build
        )?;
        write!(f, "{} reads, {} without a document, {:.1} s", self.reads, self.empty_reads, self.took.as_secs_f64())?;
        self.alarms.iter().try_for_each(|alarm| write!(f, "\n{alarm}"))?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Writes the history, then all the time; rebuilds, rolls back, rebuilds; compares.
pub async fn run(binary: &Path, options: &RebuildSoakOptions) -> Result<RebuildSoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    let checker = Arc::new(Checker::new());
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    write_history(&cluster, &views, options, &checker).await?;
    if options.base.verbose {
        println!("{:5.1} s: {} events written", began.elapsed().as_secs_f64(), options.history);
    }
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    let stop = CancellationToken::new();
    let (mut load, events, writes) = (options.base.load.clone(), cluster.events(), Arc::clone(&checker));
    (load.events, load.seed) = (u64::MAX / 2, load.seed.wrapping_add(1));
    let enough = stop.clone();
    let writing = tokio::spawn(async move { load.write_until(&events, &writes, &enough).await });

    let store = GenerationStore::new(&cluster.coordination(), PIPELINE);
    let reader = PollingReader::start(&views, stop.clone());
    let switches = watch_switches(store.clone(), stop.clone());
    let pauses = PauseWatch::start(views.clone());
    let mut operator = Operator {
        program: Program::new(binary).env("RUST_LOG", "off"),
        config: cluster.pod(0).config().display().to_string(),
        store,
        alarms: vec![],
        kills: 0,
        is_verbose: options.base.verbose,
    };
    let first = Instant::now();
    let rate = options.rate.map(|rate| rate.to_string());
    let limited = rate.iter().flat_map(|rate| ["--rate", rate]);
    let arguments: Vec<&str> = ["rebuild", MODEL].into_iter().chain(limited).collect();
    operator.change(&mut cluster, &arguments, options.kills, &pauses).await?;
    let first_build = first.elapsed();
    operator.change(&mut cluster, &["rollback", MODEL, "--yes"], 0, &pauses).await?;
    operator.change(&mut cluster, &["rebuild", MODEL], 0, &pauses).await?;
    let longest_pause = pauses.finish().await?;
    stop.cancel();
    writing.await?;
    let (longest_switch, (reads, empty_reads)) = (switches.await?, reader.finish().await?);
    let acknowledged = checker.counts().acknowledged;
    wait_until_applied(&mut cluster, &views, acknowledged).await?;
    cluster.stop_pods().await;
    let expected = soak_read_models::fold(&cluster.events()).await?;
    let differences = soak_read_models::differences(&views, &expected).await?;
    let unexpected_exits = cluster.stop().await;
    Ok(RebuildSoakResult {
        history: options.history,
        acknowledged,
        kills: operator.kills,
        builds: 3,
        first_build,
        longest_switch,
        longest_pause,
        reads,
        empty_reads,
        alarms: operator.alarms,
        differences,
        unexpected_exits,
        took: began.elapsed(),
    })
}

/// Events, cursors and read models, as pods leave them that have applied all events.
async fn write_history(
    cluster: &TestCluster,
    views: &Database,
    options: &RebuildSoakOptions,
    checker: &Arc<Checker>,
) -> Result<(), Error> {
    let load = Load { events: options.history, rate: None, runs_per_statement: 100, ..options.base.load.clone() };
    load.write(&cluster.events(), checker).await;
    let expected = soak_read_models::fold(&cluster.events()).await?;
    for (model, documents) in &expected {
        let documents: Vec<_> = documents.iter().collect();
        let document = |number: u64| to_document(documents[number as usize]);
        insert_events(&views.collection(model), documents.len() as u64, document).await;
    }
    let heads: Vec<_> = expected[MODEL].iter().map(|(aggregate, document)| (aggregate, &document["last"])).collect();
    let cursor = |number: u64| {
        let (aggregate, last) = heads[number as usize];
        let id = doc! { "pipeline": PIPELINE, "aggregate": aggregate };
        doc! { "_id": id, "epoch": 1_i64, "position": "82", "sequence": last, "eventId": Bson::Null, "format": 1_i64 }
    };
    insert_events(&views.collection("_headwater_cursors"), heads.len() as u64, cursor).await;
    Ok(())
}

fn to_document((id, fields): (&String, &BTreeMap<String, Bson>)) -> Document {
    let fields = fields.iter().map(|(name, value)| (name.clone(), value.clone()));
    std::iter::once(("_id".to_owned(), Bson::from(id))).chain(fields).collect()
}

/// Asks for changes as a person would, and waits for them.
struct Operator {
    program: Program,
    config: String,
    store: GenerationStore,
    alarms: Vec<String>,
    kills: u64,
    is_verbose: bool,
}

impl Operator {
    async fn change(
        &mut self,
        cluster: &mut TestCluster,
        arguments: &[&str],
        kills: u64,
        pauses: &PauseWatch,
    ) -> Result<(), Error> {
        let before = self.store.load().await?.ok_or("no generation is stored")?.number;
        self.run(arguments).await.map_err(|output| format!("{arguments:?} failed: {output}"))?;
        let (began, mut killed) = (Instant::now(), 0);
        let mut built_at_kill = 0;
        loop {
            cluster.restart_exited_pods()?;
            let generation = self.store.load().await?.ok_or("no generation is stored")?;
            if generation.number > before && generation.stage == GenerationStage::Active {
                break;
            }
            pauses.measure(kills == 0 && generation.stage != GenerationStage::Active);
            // In the middle: something is built, and after the last kill something more.
            let built = generation.build.get_i64("aggregates").unwrap_or(0);
            if killed < kills && generation.stage == GenerationStage::Building && built > built_at_kill {
                let number = cluster.wait_for_leader(LEADER_TIMEOUT).await?;
                cluster.pod_mut(number).kill().await;
                cluster.restart_pod(number).await?;
                (killed, built_at_kill) = (killed + 1, built);
            }
            if let Some(problem) = generation.problem {
                return Err(format!("{arguments:?}: {problem}").into());
            }
            if began.elapsed() > BUILD_TIMEOUT {
                return Err(format!("{arguments:?} is not complete after {BUILD_TIMEOUT:?}").into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.kills += killed;
        pauses.measure(false);
        if self.is_verbose {
            println!("{:5.1} s: {arguments:?} done", began.elapsed().as_secs_f64());
        }
        if let Err(output) = self.run(&["verify", MODEL, "--sample", SAMPLE]).await {
            self.alarms.push(format!("after {arguments:?}: {output}"));
        }
        Ok(())
    }

    /// An error is the output of the command.
    async fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let program = self.program.clone().args(["read-model"]).args(arguments).args(["--config", &self.config]);
        let process = program.start().map_err(|error| error.to_string())?;
        let status = process.wait_for_exit(COMMAND_TIMEOUT).await;
        if status.success() { Ok(()) } else { Err(format!("{status}\n{}", process.tail())) }
    }
}

/// A reader that must never find the collection empty.
struct PollingReader {
    task: JoinHandle<(u64, u64)>,
}

impl PollingReader {
    fn start(views: &Database, stop: CancellationToken) -> Self {
        let collection = views.collection::<Document>(MODEL);

        let task = tokio::spawn(async move {
            let (mut reads, mut empty) = (0, 0);
            while !stop.is_cancelled() {
                // An error is no answer: a reader would try again.
                if let Ok(found) = collection.find_one(doc! {}).await {
                    reads += 1;
                    empty += u64::from(found.is_none());
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            (reads, empty)
        });
        Self { task }
    }

    async fn finish(self) -> Result<(u64, u64), tokio::task::JoinError> {
        self.task.await
    }
}
