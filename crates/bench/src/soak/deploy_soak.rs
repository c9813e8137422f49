//! The soak of rolling deploys: read models are added, changed and removed under load, pods are killed in the middle, and the deploy is rolled back.
//!
//! In the end every read model of the last deploy must equal a fold of its own definition.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::Bson;
use pipeline::generation::{Generation, GenerationStage, GenerationStore};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::checker::Checker;
use testkit::cluster::{TestCluster, TestClusterConfig, UnexpectedExit};
use testkit::nemesis::FaultProfile;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use super::consumer_soak::Error;
use super::pause_watch::PauseWatch;
use super::producer_soak::ProducerSoakOptions;
use super::soak_read_models::{self, ExpectedModels};

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const DEPLOY_TIMEOUT: Duration = Duration::from_secs(120);
const APPLY_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A pause that begins with the switch has ended after this time, or is a failure.
const AFTER_SWITCH: Duration = Duration::from_secs(2);
/// A switch waits for the open transactions of a pod that died just before it.
const MAX_SWITCH_AFTER_DEATH: Duration = Duration::from_secs(4);
/// The name of the pipeline of a test cluster.
pub(super) const PIPELINE: &str = "shop";
/// Counts events by type: keyed by something other than the aggregate, and added by the deploy.
const KINDS: &str = "kinds";
/// Only in the first set: the deploy removes it.
const OPEN: &str = "open_orders";

/// Options of a run.
#[derive(Clone, Debug)]
pub struct DeploySoakOptions {
    /// Load, pods, MongoDB. Its faults are not used: pods are killed while a deploy is in progress.
    pub base: ProducerSoakOptions,
    /// Deploys in a row; every second one goes back to the first set.
    pub deploys: usize,
    /// Pods killed while a change is in progress, in each deploy but the last.
    pub kills: u64,
    /// Longer pauses of a read model that does not change are a failure. Measured in the last deploy, as the death of a leader stops everything for
    /// the time of its lease.
    pub max_pause: Option<Duration>,
}

impl DeploySoakOptions {
    pub fn full(seed: u64) -> Self {
        let base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::full(seed) };
        Self { base, deploys: 2 + (seed % 2) as usize, kills: 4, max_pause: Some(Duration::from_secs(1)) }
    }

    /// A short run for the test suite, on a single node.
    pub fn short(seed: u64) -> Self {
        let mut base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::short(seed) };
        // As long as the deploys take.
        base.load.events = 1_000_000;
        // Nothing is said about the speed of the machine.
        Self { base, kills: 2, max_pause: None, ..Self::full(seed) }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let extra_yaml = format!("consumer: {{ drain: 5s }}\n{}", declared(ModelSetName::First));
        TestClusterConfig { extra_yaml, ..self.base.blueprint(binary) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelSetName {
    First,
    /// One read model added, one changed, one removed.
    Second,
}

/// The result of a run.
#[derive(Debug)]
pub struct DeploySoakResult {
    pub acknowledged: u64,
    /// The number of the last generation.
    pub generation: u64,
    pub kills: u64,
    /// Deploys that were complete before the writes ended.
    pub deploys: usize,
    /// The longest time that transactions waited for a switch.
    pub longest_switch: Duration,
    /// The longest time without an event applied to a read model that did not change, while others were built and switched.
    pub longest_pause: Duration,
    pub differences: Vec<String>,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
}

impl DeploySoakResult {
    pub fn is_clean(&self, options: &DeploySoakOptions) -> bool {
        let is_quick = |most| self.longest_pause <= most && self.longest_switch <= MAX_SWITCH_AFTER_DEATH;
        self.differences.is_empty() && options.max_pause.is_none_or(is_quick)
    }

    /// What this run was to cover and did not.
    pub fn missing(&self, options: &DeploySoakOptions) -> Vec<String> {
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (self.deploys < options.deploys, "every deploy"),
            (options.kills > 0 && self.kills == 0, "a kill while a change was in progress"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()).collect()
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "deploys",
            "acknowledged": self.acknowledged,
            "deploys": self.deploys,
            "generation": self.generation,
            "kills": self.kills,
            "longest_switch_ms": self.longest_switch.as_millis() as u64,
            "longest_pause_ms": self.longest_pause.as_millis() as u64,
            "differences": self.differences.len(),
            "unexpected_exits": self.unexpected_exits.len(),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for DeploySoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, deploys, generation, kills, longest_switch, longest_pause, .. } = self;
        write!(f, "{acknowledged} events, {deploys} deploys up to generation {generation}, {kills} kills meanwhile, ")?;
        write!(
            f,
            "longest switch {longest_switch:?}, longest pause {longest_pause:?}, {:.1} s",
            self.took.as_secs_f64()
        )?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Writes all the time, deploys, kills, and compares.
pub async fn run(binary: &Path, options: &DeploySoakOptions) -> Result<DeploySoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    let store = GenerationStore::new(&cluster.coordination(), PIPELINE);
    let checker = Arc::new(Checker::new());
    let (enough, watched) = (CancellationToken::new(), CancellationToken::new());
    let (load, events, writes) = (options.base.load.clone(), cluster.events(), Arc::clone(&checker));
    let stop = enough.clone();
    let writing = tokio::spawn(async move { load.write_until(&events, &writes, &stop).await });
    let switches = watch_switches(store.clone(), watched.clone());
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    let pauses = PauseWatch::start(views.clone());

    let mut deploy = Deploy {
        random: StdRng::seed_from_u64(options.base.seed),
        kills: 0,
        options: options.clone(),
        set: ModelSetName::First,
        is_last: false,
    };
    let mut deploys = 0;
    for number in 1..=options.deploys {
        deploy.is_last = number == options.deploys;
        deploy.roll(&mut cluster, &store, &pauses).await?;
        deploys += 1;
    }
    let longest_pause = pauses.finish().await?;
    enough.cancel();
    writing.await?;
    wait_until_applied(&mut cluster, &views, checker.counts().acknowledged).await?;
    watched.cancel();
    let longest_switch = switches.await?;
    let generation = store.load().await?.map_or(0, |generation| generation.number);
    cluster.stop_pods().await;
    let expected = expected(&cluster, deploy.set).await?;
    let differences = soak_read_models::differences(&views, &expected).await?;
    let unexpected_exits = cluster.stop().await;
    Ok(DeploySoakResult {
        acknowledged: checker.counts().acknowledged,
        generation,
        kills: deploy.kills,
        deploys,
        longest_switch,
        longest_pause,
        differences,
        unexpected_exits,
        took: began.elapsed(),
    })
}

/// The deploys of a run.
struct Deploy {
    random: StdRng,
    kills: u64,
    options: DeploySoakOptions,
    /// What the pods declare now.
    set: ModelSetName,
    /// No pod is killed, and pauses are measured.
    is_last: bool,
}

impl Deploy {
    /// Restarts pod by pod with the other set, and waits until it serves. Pods are killed on the way.
    async fn roll(
        &mut self,
        cluster: &mut TestCluster,
        store: &GenerationStore,
        pauses: &PauseWatch,
    ) -> Result<(), Error> {
        let before = self.set;
        self.set = if before == ModelSetName::First { ModelSetName::Second } else { ModelSetName::First };
        for number in 0..cluster.pods().len() {
            let path = cluster.pod(number).config().to_owned();
            let text = std::fs::read_to_string(&path)?;
            std::fs::write(&path, text.replace(&declared(before), &declared(self.set)))?;
            cluster.restart_pod(number).await?;
            tokio::time::sleep(Duration::from_millis(self.random.random_range(100..700))).await;
        }
        let began = Instant::now();
        // The first one as soon as the change begins: a small one is soon over.
        let mut kill_at = Instant::now();
        let most_kills = self.kills + if self.is_last { 0 } else { self.options.kills };
        loop {
            cluster.restart_exited_pods()?;
            let generation = store.load().await?.ok_or("no generation is stored")?;
            if generation.stage == GenerationStage::Active && names(&generation) == model_names(self.set) {
                let changed = generation.serving["totals"].declaration.when.to_string();
                if changed.contains("doubled") == (self.set == ModelSetName::Second) {
                    if self.is_last {
                        tokio::time::sleep(AFTER_SWITCH).await;
                    }
                    pauses.measure(false);
                    return Ok(());
                }
            }
            let is_changing = generation.stage != GenerationStage::Active;
            pauses.measure(self.is_last && is_changing);
            if self.kills < most_kills && is_changing && Instant::now() >= kill_at {
                let number = self.random.random_range(0..cluster.pods().len());
                cluster.pod_mut(number).kill().await;
                cluster.restart_pod(number).await?;
                self.kills += 1;
                kill_at = self.next_kill();
            }
            if began.elapsed() > DEPLOY_TIMEOUT {
                return Err(format!("the deploy is not complete after {DEPLOY_TIMEOUT:?}: {generation:?}").into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn next_kill(&mut self) -> Instant {
        Instant::now() + Duration::from_millis(self.random.random_range(0..1_500))
    }
}

fn names(generation: &Generation) -> Vec<String> {
    generation.serving.keys().cloned().collect()
}

fn declarations(set: ModelSetName) -> BTreeMap<&'static str, serde_json::Value> {
    let mut models: BTreeMap<_, _> = soak_read_models::declarations(false).into_iter().collect();
    if set == ModelSetName::Second {
        models.remove(OPEN);
        // In place of the total, twice the total: documents of both definitions look alike but for the values.
        let totals = models.get_mut("totals").expect("it is declared").to_string();
        let changed = totals.replace("\"$inc\":{", "\"$inc\":{\"doubled\":2,");
        models.insert("totals", serde_json::from_str(&changed).expect("it is JSON still"));
        let types: Vec<String> = models["customers"]["when"].as_object().expect("a map").keys().cloned().collect();
        let count = serde_json::json!({ "$inc": { "events": 1 } });
        let when: serde_json::Map<String, _> = types.into_iter().map(|name| (name, count.clone())).collect();
        models.insert(KINDS, serde_json::json!({ "key": "$$event.type", "when": when }));
    }
    models
}

fn model_names(set: ModelSetName) -> Vec<String> {
    declarations(set).into_keys().map(str::to_owned).collect()
}

/// The section of the configuration.
fn declared(set: ModelSetName) -> String {
    let models = declarations(set);
    let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
    format!("read_models:\n  change_delay: 500ms\n{models}")
}

async fn expected(cluster: &TestCluster, set: ModelSetName) -> Result<ExpectedModels, Error> {
    let mut expected = soak_read_models::fold(&cluster.events()).await?;
    if set == ModelSetName::Second {
        expected.remove(OPEN);
        for document in expected.get_mut("totals").ok_or("totals are expected")?.values_mut() {
            let events = document.get("events").and_then(Bson::as_i32).unwrap_or(0);
            document.insert("doubled".to_owned(), (2 * events).into());
        }
        let kinds = soak_read_models::count_by_type(&cluster.events()).await?;
        let kinds = kinds.into_iter().map(|(name, events)| (name, [("events".to_owned(), events.into())].into()));
        expected.insert(KINDS, kinds.collect());
    }
    Ok(expected)
}

/// Waits until the customers, which no deploy changes, have every event.
pub(super) async fn wait_until_applied(
    cluster: &mut TestCluster,
    views: &mongodb::Database,
    events: u64,
) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        cluster.restart_exited_pods()?;
        let applied = soak_read_models::applied(views).await?;
        if applied >= events && cluster.broker().active_messages().await? == 0 {
            return Ok(());
        }
        if began.elapsed() > APPLY_TIMEOUT {
            return Err(format!("{applied} of {events} events are applied after {APPLY_TIMEOUT:?}").into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The longest time that the stored stage was `switching`.
pub(super) fn watch_switches(store: GenerationStore, stop: CancellationToken) -> JoinHandle<Duration> {
    tokio::spawn(async move {
        let (mut longest, mut since) = (Duration::ZERO, None);
        while !stop.is_cancelled() {
            if let Ok(Some(generation)) = store.load().await {
                match generation.stage {
                    GenerationStage::Switching => {
                        let began = *since.get_or_insert_with(Instant::now);
                        longest = longest.max(began.elapsed());
                    }
                    GenerationStage::Active | GenerationStage::Building => since = None,
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        longest
    })
}
