//! The audit's soak: Service Bus loses messages for good, and the read models still equal a fold of the source.

mod message_loss;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use pipeline::audit::{AuditRecord, AuditStore};
use testkit::checker::Checker;
use testkit::cluster::{TestCluster, TestClusterConfig, TopicConfig, UnexpectedExit};
use testkit::load::Load;
use testkit::nemesis::{self, FaultProfile};
use tokio_util::sync::CancellationToken;

use self::message_loss::MessageLoss;
pub use super::consumer_soak::Error;
use super::producer_soak::{self, ProducerSoakOptions};
use super::soak_read_models;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// After the last write: as long as rounds follow each other, something may be found.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(300);
const QUIET_PERIOD: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The name of the pipeline of a test cluster.
const PIPELINE: &str = "shop";

/// Options of a run.
#[derive(Clone, Debug)]
pub struct AuditSoakOptions {
    /// Load, pods, MongoDB, faults.
    pub base: ProducerSoakOptions,
    /// Off: the run must not be clean.
    pub audit: bool,
    pub period: Duration,
    pub budget_percent: u32,
    /// The broker acknowledges one transfer in this many and loses it; 0: none.
    pub lose_one_in: u64,
    /// The subscription is deleted and made again, and the topic is purged, once each.
    pub disasters: bool,
}

impl AuditSoakOptions {
    /// 100,000 events of 5,000 aggregates, one message in a thousand lost, pods and the primary killed.
    pub fn full(seed: u64) -> Self {
        let mut base = ProducerSoakOptions::full(seed);
        base.load.events = 100_000;
        base.topic = TopicConfig { lock: Duration::from_secs(5), ..TopicConfig::default() };
        Self {
            base,
            audit: true,
            period: Duration::from_secs(10),
            budget_percent: 50,
            lose_one_in: 1_000,
            disasters: true,
        }
    }

    /// A short run for the test suite, on a single node and without process faults. More is lost, so that every seed loses tails.
    pub fn short(seed: u64) -> Self {
        let full = Self::full(seed);
        let cut = ProducerSoakOptions::short(seed);
        let load = Load { events: 2_000, aggregates: 200, ..cut.load };
        let base = ProducerSoakOptions { load, topic: full.base.topic, profile: FaultProfile::none(), ..cut };
        Self { base, period: Duration::from_secs(2), budget_percent: 100, lose_one_in: 50, ..full }
    }

    /// Nothing is lost: whatever the audit finds is a false alarm. Events per second, for this long.
    #[must_use]
    pub fn without_losses(mut self, rate: f64, length: Duration) -> Self {
        self.base.load.rate = Some(rate);
        self.base.load.events = (rate * length.as_secs_f64()) as u64;
        Self { lose_one_in: 0, disasters: false, ..self }
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let declared = soak_read_models::declarations(false);
        let declared = declared.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let audit = if self.audit {
            format!("period: {}ms, budget_percent: {}", self.period.as_millis(), self.budget_percent)
        } else {
            "enabled: false".to_owned()
        };
        let extra_yaml = format!("consumer: {{ lock_duration: 5s, drain: 5s }}\nread_models:\n{declared}");
        TestClusterConfig { audit, extra_yaml, ..self.base.blueprint(binary) }
    }

    fn loses(&self) -> bool {
        self.lose_one_in > 0 || self.disasters
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct AuditSoakResult {
    pub acknowledged: u64,
    /// Transfers that the broker acknowledged and lost.
    pub lost_transfers: u64,
    /// Messages that were purged, or deleted with their subscription.
    pub removed_messages: u64,
    /// Rounds that ended, and aggregates found in them.
    pub rounds: u64,
    pub found: u64,
    /// Differences between the read models and a fold of the source.
    pub differences: Vec<String>,
    pub faults: nemesis::FaultReport,
    pub unexpected_exits: Vec<UnexpectedExit>,
    pub took: Duration,
    /// From the last write to the end of the first round that found nothing.
    pub healed_in: Duration,
}

impl AuditSoakResult {
    /// Whether the read models are right, and nothing was found where nothing was lost.
    pub fn is_clean(&self, options: &AuditSoakOptions) -> bool {
        self.differences.is_empty() && (options.loses() || self.found == 0)
    }

    /// What this run was to cover and did not.
    pub fn missing(&self, options: &AuditSoakOptions) -> Vec<String> {
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (options.lose_one_in > 0 && self.lost_transfers == 0, "a lost message"),
            (options.disasters && self.removed_messages == 0, "a purged message"),
            (options.audit && self.rounds < 2, "two rounds of the audit"),
            (options.audit && options.loses() && self.found == 0, "an aggregate that the audit healed"),
        ];
        wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()).collect()
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "audit",
            "acknowledged": self.acknowledged,
            "lost_transfers": self.lost_transfers,
            "removed_messages": self.removed_messages,
            "rounds": self.rounds,
            "found": self.found,
            "differences": self.differences.len(),
            "faults": self.faults.injected(),
            "unexpected_exits": self.unexpected_exits.len(),
            "healed_in_s": (self.healed_in.as_secs_f64() * 10.0).round() / 10.0,
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for AuditSoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, lost_transfers, removed_messages, rounds, found, .. } = self;
        writeln!(f, "{acknowledged} events, {lost_transfers} transfers lost, {removed_messages} messages removed")?;
        writeln!(f, "{rounds} rounds of the audit, {found} aggregates found, {:.1} s", self.took.as_secs_f64())?;
        write!(f, "{}", self.faults)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.unexpected_exits.iter().try_for_each(|exit| write!(f, "\n{exit}"))
    }
}

/// Starts the cluster, writes while messages are lost, waits for the audit, and compares.
pub async fn run(binary: &Path, options: &AuditSoakOptions) -> Result<AuditSoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    let checker = Arc::new(Checker::new());
    let stop = CancellationToken::new();
    let loss = MessageLoss::new(&cluster, options);
    let losing = tokio::spawn(loss.run(stop.clone()));
    let (faults, _) = producer_soak::write_under_faults(&mut cluster, &options.base, &checker, || 0).await?;
    stop.cancel();
    let losses = losing.await?;
    let written = Instant::now();
    let audits = AuditStore::new(&cluster.coordination(), PIPELINE);
    let record = if options.audit {
        wait_for_a_clean_round(&mut cluster, &audits).await?
    } else {
        wait_until_drained(&mut cluster).await?;
        AuditRecord::default()
    };
    let healed_in = written.elapsed();
    cluster.stop_pods().await;
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    let expected = soak_read_models::fold(&cluster.events()).await?;
    let differences = soak_read_models::differences(&views, &expected).await?;
    let unexpected_exits = cluster.stop().await;
    Ok(AuditSoakResult {
        acknowledged: checker.counts().acknowledged,
        lost_transfers: losses.transfers,
        removed_messages: losses.removed,
        rounds: record.last.as_ref().map_or(0, |last| last.number),
        found: record.found_total,
        differences,
        faults,
        unexpected_exits,
        took: began.elapsed(),
        healed_in,
    })
}

/// Two rounds must end after the last write: one may be in the middle of the source now. The last one finds nothing.
pub(super) async fn wait_for_a_clean_round(
    cluster: &mut TestCluster,
    audits: &AuditStore,
) -> Result<AuditRecord, Error> {
    let number = |record: &AuditRecord| record.last.as_ref().map_or(0, |last| last.number);
    let before = audits.load().await?.as_ref().map_or(0, number);
    let began = Instant::now();
    while began.elapsed() < AUDIT_TIMEOUT {
        cluster.restart_exited_pods()?;
        let record = audits.load().await?.unwrap_or_default();
        let found = record.last.as_ref().map_or(0, |last| last.totals.found);
        if number(&record) >= before + 2 && found == 0 {
            return Ok(record);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(format!("no clean round within {AUDIT_TIMEOUT:?}: {:?}", audits.load().await?).into())
}

/// Without an audit nothing says that the rest is lost: the subscription is empty for a while.
async fn wait_until_drained(cluster: &mut TestCluster) -> Result<(), Error> {
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET_PERIOD {
        cluster.restart_exited_pods()?;
        let checkpoints = cluster.coordination().collection::<Document>("checkpoints");
        let is_there = checkpoints.find_one(doc! { "_id": PIPELINE }).await?.is_some();
        if !is_there || cluster.broker().active_messages().await? > 0 {
            quiet_since = Instant::now();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
