//! The soak of `read-model verify`: read models that are right are compared again and again while events flow and pods are killed. Whatever the
//! command finds is a false alarm.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::process::{OutputStream, Program};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::checker::Checker;
use testkit::cluster::{MongoTopology, TestCluster, TestClusterConfig, UnexpectedExit};
use testkit::nemesis::FaultProfile;
use tokio_util::sync::CancellationToken;

pub use super::consumer_soak::Error;
use super::producer_soak::ProducerSoakOptions;
use super::soak_read_models;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const VERIFY_TIMEOUT: Duration = Duration::from_secs(600);
/// A verification takes at most this share of the time, as the events need the machine as well.
const PAUSE_FACTOR: u32 = 2;
const MAX_PAUSE: Duration = Duration::from_secs(30);
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct VerifySoakOptions {
    /// Load, pods, MongoDB. Its faults are not used: pods are killed at random.
    pub base: ProducerSoakOptions,
    /// How long events flow.
    pub length: Duration,
    /// Between two kills; `None`: no pod is killed.
    pub kill_every: Option<Duration>,
}

impl VerifySoakOptions {
    pub fn full(seed: u64) -> Self {
        let mut base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::full(seed) };
        (base.pods, base.mongo) = (2, MongoTopology::SingleNode);
        Self { base, length: Duration::from_secs(3_600), kill_every: Some(Duration::from_secs(60)) }
    }

    /// A short run for the test suite.
    pub fn short(seed: u64) -> Self {
        let base = ProducerSoakOptions { profile: FaultProfile::none(), ..ProducerSoakOptions::short(seed) };
        Self { base, length: Duration::from_secs(8), kill_every: Some(Duration::from_secs(3)) }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let declared = soak_read_models::declarations(true);
        let declared = declared.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let extra_yaml = format!("consumer: {{ drain: 5s }}\nread_models:\n{declared}");
        TestClusterConfig { extra_yaml, ..self.base.blueprint(binary) }
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct VerifySoakResult {
    pub acknowledged: u64,
    /// Runs of the command, and the documents that it compared in all of them.
    pub runs: u64,
    pub compared: u64,
    pub skipped: u64,
    /// What it printed when it found a difference or failed.
    pub alarms: Vec<String>,
    pub kills: u64,
    /// Differences between the read models and a fold of the source, in the end.
    pub differences: Vec<String>,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
}

impl VerifySoakResult {
    pub fn is_clean(&self) -> bool {
        self.alarms.is_empty() && self.differences.is_empty()
    }

    /// What this run was to cover and did not.
    pub fn missing(&self, options: &VerifySoakOptions) -> Vec<String> {
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (self.compared == 0, "a compared document"),
            (self.runs < 5, "every read model"),
            (options.kill_every.is_some() && self.kills == 0, "a kill"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()).collect()
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "verify",
            "acknowledged": self.acknowledged,
            "runs": self.runs,
            "compared": self.compared,
            "skipped": self.skipped,
            "false_alarms": self.alarms.len(),
            "kills": self.kills,
            "differences": self.differences.len(),
            "unexpected_exits": self.unexpected_exits.len(),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for VerifySoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, runs, compared, skipped, kills, .. } = self;
        write!(f, "{acknowledged} events, {runs} verifications, {compared} documents compared, {skipped} skipped, ")?;
        write!(f, "{} false alarms, {kills} kills, {:.1} s", self.alarms.len(), self.took.as_secs_f64())?;
        self.alarms.iter().take(10).try_for_each(|alarm| write!(f, "\n{alarm}"))?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Writes all the time, verifies one read model after the other, and kills pods.
pub async fn run(binary: &Path, options: &VerifySoakOptions) -> Result<VerifySoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    let checker = Arc::new(Checker::new());
    let enough = CancellationToken::new();
    let (mut load, events, writes) = (options.base.load.clone(), cluster.events(), Arc::clone(&checker));
    load.events = u64::MAX / 2;
    let stop = enough.clone();
    let writing = tokio::spawn(async move { load.write_until(&events, &writes, &stop).await });

    let verification = Verification {
        program: Program::new(binary).env("RUST_LOG", "off"),
        config: cluster.pod(0).config().display().to_string(),
        until: Instant::now() + options.length,
        is_verbose: options.base.verbose,
    };
    let verifying = tokio::spawn(verification.run());
    let mut random = StdRng::seed_from_u64(options.base.seed);
    let (mut kills, mut killed) = (0, Instant::now());
    while !verifying.is_finished() {
        cluster.restart_exited_pods()?;
        if options.kill_every.is_some_and(|every| killed.elapsed() >= every) {
            let number = random.random_range(0..cluster.pods().len());
            cluster.pod_mut(number).kill().await;
            cluster.restart_pod(number).await?;
            (kills, killed) = (kills + 1, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    enough.cancel();
    writing.await?;
    let mut result = verifying.await?;
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    super::deploy_soak::wait_until_applied(&mut cluster, &views, checker.counts().acknowledged).await?;
    cluster.stop_pods().await;
    let expected = soak_read_models::fold(&cluster.events()).await?;
    result.differences = soak_read_models::differences(&views, &expected).await?;
    result.unexpected_exits = cluster.stop().await;
    (result.acknowledged, result.kills, result.took) = (checker.counts().acknowledged, kills, began.elapsed());
    Ok(result)
}

/// Runs the command on one read model after the other.
struct Verification {
    program: Program,
    config: String,
    until: Instant,
    is_verbose: bool,
}

impl Verification {
    async fn run(self) -> VerifySoakResult {
        let models = soak_read_models::declarations(true);
        let mut result = VerifySoakResult::default();
        // Every read model at least once, also on a slow machine.
        for (name, _) in models.iter().cycle() {
            if Instant::now() >= self.until && result.runs >= models.len() as u64 {
                break;
            }
            let began = Instant::now();
            self.verify(name, &mut result).await;
            let pause = (began.elapsed() * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE);
            tokio::time::sleep(pause.min(self.until.saturating_duration_since(Instant::now()))).await;
        }
        result
    }

    async fn verify(&self, name: &str, result: &mut VerifySoakResult) {
        let arguments = ["read-model", "verify", name, "--all", "--json", "--config", &self.config];
        let process = match self.program.clone().args(arguments).start() {
            Ok(process) => process,
            Err(error) => return result.alarms.push(format!("{name}: {error}")),
        };
        let status = process.wait_for_exit(VERIFY_TIMEOUT).await;
        let lines = process.lines();
        let text = |stream: OutputStream| {
            let lines = lines.iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
        };
        let report: serde_json::Value = serde_json::from_str(&text(OutputStream::Stdout)).unwrap_or_default();
        let skipped = report["skipped"].as_object().into_iter().flat_map(|skipped| skipped.values());
        result.runs += 1;
        result.compared += report["compared"].as_u64().unwrap_or(0);
        result.skipped += skipped.filter_map(serde_json::Value::as_u64).sum::<u64>();
        if self.is_verbose {
            println!("{name}: {} compared, {status}", report["compared"]);
        }
        if !status.success() {
            result.alarms.push(format!("{name}: {status}: {}\n{report}", text(OutputStream::Stderr)));
        }
    }
}
