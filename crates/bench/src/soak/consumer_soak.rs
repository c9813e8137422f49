//! The consumer's soak: compares acknowledged writes with the read models.

mod progress;
mod result;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Bson, doc};
use pipeline::event::Namespace;
use pipeline::view::{ModelSet, ParkedAggregate, ParkedStore, Projection, ReadModel, ReadModelDeclaration};
use testkit::checker::{CheckReport, Checker, DuplicatePolicy};
use testkit::cluster::{CoordinationObserver, TestCluster, TestClusterConfig, TopicConfig};
use testkit::load::{Load, aggregate};
use testkit::nemesis::FaultProfile;
use testkit::wait::try_wait_for;

use super::late_republisher::LateRepublisher;
use super::producer_soak::{self, ProducerSoakOptions};
use super::soak_read_models;
pub(super) use progress::{ApplyProgress, wait_until_applied};
pub use result::ConsumerSoakResult;

/// An error of the cluster, the driver or the parked store.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The poisoned aggregate, and the event at which it is poisoned.
const POISONED: u64 = 7;
const POISON: i64 = 5;

/// Aggregate, read model and sequence of the event behind which the aggregate waits.
pub type ParkedEvent = (String, String, Option<i64>);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct ConsumerSoakOptions {
    /// Load, pods, MongoDB, faults.
    pub base: ProducerSoakOptions,
    /// Whether pods read the events' sequence.
    pub sequence: bool,
    /// Republishes one message in ten, later and out of order.
    pub republish: bool,
    /// Lets MongoDB refuse one event of one aggregate in one read model, until the retry.
    pub poison: bool,
    /// Keeps the read model that lists all applied events: for many aggregates, not for one of 100,000 events.
    pub history: bool,
}

impl ConsumerSoakOptions {
    /// The full run: 200,000 events of 5,000 aggregates, with faults of every process.
    pub fn full(seed: u64) -> Self {
        let topic = TopicConfig {
            duplicate_window: None,
            lock: Duration::from_secs(5),
            republish_subscription: true,
            ..TopicConfig::default()
        };
        let base = ProducerSoakOptions { topic, profile: FaultProfile::consumers(), ..ProducerSoakOptions::full(seed) };
        Self { base, sequence: true, republish: true, poison: true, history: true }
    }

    /// A short run for the test suite, on a single node. Longer than the producer's: one pause outlasts a lock of five seconds, the minimum.
    pub fn short(seed: u64) -> Self {
        let Self { base: full, .. } = Self::full(seed);
        let cut = ProducerSoakOptions::short(seed);
        let load = Load { events: 4_800, ..cut.load };
        let base =
            ProducerSoakOptions { load, topic: full.topic, profile: FaultProfile::consumers().shortened(), ..cut };
        Self { base, ..Self::full(seed) }
    }

    /// No faults and no republished messages.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        self.base.profile = FaultProfile::none();
        self.base.topic.republish_subscription = false;
        self.base.topic.duplicate_window = TopicConfig::default().duplicate_window;
        Self { republish: false, poison: false, ..self }
    }

    /// Whether the poisoned aggregate is expected to have enough events.
    pub fn can_poison(&self) -> bool {
        let Load { events, aggregates, .. } = self.base.load;
        aggregates > POISONED && events / aggregates >= 2 * POISON.unsigned_abs()
    }

    fn blueprint(&self, binary: &Path) -> TestClusterConfig {
        let models = soak_read_models::declarations(self.history);
        let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let more = format!("consumer: {{ lock_duration: 5s, drain: 5s }}\nread_models:\n{models}");
        let mut blueprint =
            TestClusterConfig { with_sequence: self.sequence, extra_yaml: more, ..self.base.blueprint(binary) };
        if !self.sequence {
            // The existing events of a source have an order only by their sequence.
            blueprint.producer = blueprint.producer.replace("start: beginning", "start: now");
        }
        blueprint
    }
}

/// Starts the cluster, writes under faults, repairs, waits, retries parked events and compares.
pub async fn run(binary: &Path, options: &ConsumerSoakOptions) -> Result<ConsumerSoakResult, Error> {
    let began = Instant::now();
    let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
    let observer = CoordinationObserver::start(&cluster).await?;
    let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
    if options.poison {
        poison(&views).await?;
    }
    cluster.start_pods()?;
    cluster.wait_for_leader(LEADER_TIMEOUT).await?;
    cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
    wait_until_ready(&cluster).await?;
    let checker = Arc::new(Checker::new());
    let republish = options.republish.then(|| LateRepublisher::start(cluster.broker(), options.base.seed));
    let progress = ApplyProgress::start(&views, &checker, options.base.verbose);
    let outstanding = || checker.counts().acknowledged.saturating_sub(progress.applied());

    let (faults, _) = producer_soak::write_under_faults(&mut cluster, &options.base, &checker, outstanding).await?;
    let written = Instant::now();
    let (end, drained_in) =
        wait_until_applied(&mut cluster, &checker, &progress, options.base.stall_timeout, written).await?;
    let (republished, longest_stall) =
        (republish.as_ref().map_or(0, LateRepublisher::republished), progress.longest_stall());
    drop((republish, progress));

    let (parked, replayed) = retry(&cluster, &views, options).await?;
    let applied_by = read_sample(&cluster, "headwater_events_applied_total").await;
    let conflicts = read_sample(&cluster, "headwater_transactions_total{outcome=\"conflict\"}").await.iter().sum();
    cluster.stop_pods().await;
    let fence = observer.history();
    if options.history {
        soak_read_models::record_history(&views, &checker).await?;
    }
    let expected = soak_read_models::fold(&cluster.events()).await?;
    let differences = soak_read_models::differences(&views, &expected).await?;
    let expected_parked = expected_parked(&expected, options);
    let unexpected_exits = cluster.stop().await;
    let acknowledged = checker.counts().acknowledged;
    let report = if options.history { checker.check(DuplicatePolicy::Forbidden) } else { CheckReport::default() };
    Ok(ConsumerSoakResult {
        report,
        end,
        acknowledged,
        differences,
        parked,
        expected_parked,
        replayed,
        republished,
        fence_breaches: fence.violations().len(),
        terms: fence.terms(),
        faults,
        unexpected_exits,
        took: began.elapsed(),
        drained_in,
        longest_stall,
        applied_by,
        conflicts,
    })
}

/// Waits until every pod accepts sessions: a pod that is late for a short run would process nothing.
pub(super) async fn wait_until_ready(cluster: &TestCluster) -> Result<(), Error> {
    let ready = async || {
        let ready = read_sample(cluster, "headwater_service_ready{service=\"consumer\"}").await;
        if ready.iter().all(|ready| *ready == 1) { Ok(()) } else { Err(ready) }
    };
    Ok(try_wait_for("all pods to be ready", READY_WITHIN, ready).await?)
}

/// The sample of each pod since its last start; 0 for a pod that does not respond.
async fn read_sample(cluster: &TestCluster, sample: &str) -> Vec<u64> {
    let mut counts = vec![];
    for pod in cluster.pods() {
        counts.push(pod.metrics().await.map_or(0, |metrics| metrics.value(sample)));
    }
    counts
}

/// Lets the server refuse one event by a validator: only a cause outside the event can be removed later.
pub(super) async fn poison(views: &Database) -> Result<(), Error> {
    let refused = doc! { "$nor": [{ "_id": aggregate(POISONED), "last": POISON }] };
    let command = doc! { "create": soak_read_models::TOTALS, "validator": refused };
    views.run_command(command).await?;
    Ok(())
}

/// Lists the parked events, removes the cause and replays them.
async fn retry(
    cluster: &TestCluster,
    views: &Database,
    options: &ConsumerSoakOptions,
) -> Result<(Vec<ParkedEvent>, u64), Error> {
    let parked_store = parked_store(views, soak_read_models::declarations(options.history));
    let waiting = parked_store.list(1_000).await?;
    if options.poison {
        remove_poison(views).await?;
    }
    let namespace = Namespace::new(cluster.mongo().source(), "events");
    let mut replayed = 0;
    for waiting in &waiting {
        replayed += parked_store.retry(&waiting.aggregate, &namespace, &waiting.model).await?;
    }
    Ok((waiting.iter().map(parked_event).collect(), replayed))
}

pub(super) fn parked_store(views: &Database, declarations: Vec<(&str, serde_json::Value)>) -> ParkedStore {
    let models = ModelSet::fixed(declarations.into_iter().map(compile).collect());
    ParkedStore::new(views.clone(), "shop", false, models, None)
}

pub(super) fn parked_event(waiting: &ParkedAggregate) -> ParkedEvent {
    (text(waiting.aggregate.value()), waiting.model.clone(), waiting.parked.sequence)
}

pub(super) async fn remove_poison(views: &Database) -> Result<(), Error> {
    let cured = doc! { "collMod": soak_read_models::TOTALS, "validator": {} };
    views.run_command(cured).await?;
    Ok(())
}

fn compile((name, model): (&str, serde_json::Value)) -> Arc<dyn Projection> {
    let declaration = Bson::try_from(model).ok().and_then(|model| mongodb::bson::deserialize_from_bson(model).ok());
    let declaration: ReadModelDeclaration = declaration.expect("the soak's models are well formed");
    Arc::new(ReadModel::compile(name, &declaration).expect("the soak's models are valid"))
}

/// The poisoned aggregate, if it has enough events.
fn expected_parked(expected: &soak_read_models::ExpectedModels, options: &ConsumerSoakOptions) -> Vec<ParkedEvent> {
    poisoned_event(expected, options.poison, options.sequence)
}

pub(super) fn poisoned_event(
    expected: &soak_read_models::ExpectedModels,
    is_poisoned: bool,
    with_sequence: bool,
) -> Vec<ParkedEvent> {
    let last =
        expected[soak_read_models::TOTALS].get(&aggregate(POISONED)).and_then(|document| document["last"].as_i64());
    let is_parked = is_poisoned && last.is_some_and(|last| last >= POISON);
    let sequence = with_sequence.then_some(POISON);
    is_parked.then(|| (aggregate(POISONED), soak_read_models::TOTALS.to_owned(), sequence)).into_iter().collect()
}

fn text(id: &Bson) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}
