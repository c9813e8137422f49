//! The consumer's soak: from writes that were acknowledged to what the read models hold.

mod counting;
mod outcome;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Bson, doc};
use pipeline::event::Namespace;
use pipeline::view::{ParkedStore, Projection, ReadModel, ReadModelDeclaration};
use testkit::checker::{Checker, Duplicates, Verdict};
use testkit::cluster::{Blueprint, House, Topic, Witness};
use testkit::load::{Load, aggregate};
use testkit::nemesis::Profile;
use testkit::wait::try_wait_for;

use super::echo::Echo;
use super::{models, producer};
pub(super) use counting::{Counting, until_applied};
pub use outcome::Outcome;

/// The house's, the driver's or the desk's.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

const LED_WITHIN: Duration = Duration::from_secs(60);
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Which aggregate is poisoned, and at which of its events.
const POISONED: u64 = 7;
const POISON: i64 = 5;

/// What to do, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Load, pods, store, faults.
    pub walk: producer::Options,
    /// Whether pods are told of the events' sequence.
    pub sequence: bool,
    /// Say one message in ten again, later and out of turn.
    pub echo: bool,
    /// Let one event of one aggregate be refused in one model, until it is retried.
    pub poison: bool,
    /// Keep the model that lists all that was applied: for many aggregates, not for one of 100,000 events.
    pub history: bool,
}

impl Options {
    /// The run: 200,000 events of 5,000 aggregates, everything broken now and then.
    pub fn full(seed: u64) -> Self {
        let topic = Topic { duplicate_window: None, lock: Duration::from_secs(5), echo: true, ..Topic::default() };
        let walk = producer::Options { topic, profile: Profile::consumers(), ..producer::Options::full(seed) };
        Self { walk, sequence: true, echo: true, poison: true, history: true }
    }

    /// A cut for the suite: some seconds, on one member. Longer than the producer's: no lock is shorter than five seconds, and one is slept over.
    pub fn cut(seed: u64) -> Self {
        let Self { walk: full, .. } = Self::full(seed);
        let cut = producer::Options::cut(seed);
        let load = Load { events: 4_800, ..cut.load };
        let walk = producer::Options { load, topic: full.topic, profile: Profile::consumers().quick(), ..cut };
        Self { walk, ..Self::full(seed) }
    }

    /// Nothing is broken and nothing said twice.
    #[must_use]
    pub fn in_peace(mut self) -> Self {
        self.walk.profile = Profile::peace();
        self.walk.topic.echo = false;
        self.walk.topic.duplicate_window = Topic::default().duplicate_window;
        Self { echo: false, poison: false, ..self }
    }

    /// Whether the aggregate that is to be poisoned can be expected to come so far.
    pub fn can_poison(&self) -> bool {
        let Load { events, aggregates, .. } = self.walk.load;
        aggregates > POISONED && events / aggregates >= 2 * POISON.unsigned_abs()
    }

    fn blueprint(&self, binary: &Path) -> Blueprint {
        let models = models::declared(self.history);
        let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let more = format!("consumer: {{ lock_duration: 5s, drain: 5s }}\nread_models:\n{models}");
        let mut blueprint = Blueprint { sequence: self.sequence, more, ..self.walk.blueprint(binary) };
        if !self.sequence {
            // What the source holds has an order only where events are numbered.
            blueprint.producer = blueprint.producer.replace("start: beginning", "start: now");
        }
        blueprint
    }
}

/// Builds the house, writes, breaks, mends, waits, retries what is parked, and compares.
pub async fn run(binary: &Path, options: &Options) -> Result<Outcome, Error> {
    let began = Instant::now();
    let mut house = House::build(options.blueprint(binary)).await?;
    let witness = Witness::of(&house).await?;
    let views = house.store().client().database(&format!("{}_views", house.store().source()));
    if options.poison {
        poison(&views).await?;
    }
    house.start_pods()?;
    house.wait_for_leader(LED_WITHIN).await?;
    house.wait_for_the_stream(LED_WITHIN).await?;
    until_ready(&house).await?;
    let checker = Arc::new(Checker::new());
    let broker = house.broker();
    let (connection, topic) = (broker.connection_string(), broker.topic());
    let echo = options.echo.then(|| Echo::start(&connection, topic, &broker.echo(), options.walk.seed));
    let counting = Counting::start(&views, &checker, options.walk.talkative);
    let outstanding = || checker.tally().acknowledged.saturating_sub(counting.applied());

    let (faults, _) = producer::write_and_haunt(&mut house, &options.walk, &checker, outstanding).await?;
    let written = Instant::now();
    let drained_in = until_applied(&mut house, &checker, &counting, options.walk.patience, written).await?;
    let (echoed, standstill) = (echo.as_ref().map_or(0, Echo::said), counting.standstill());
    drop((echo, counting));

    let (parked, replayed) = retry(&house, &views, options).await?;
    let applied_by = counted(&house, "headwater_events_applied_total").await;
    let conflicts = counted(&house, "headwater_transactions_total{outcome=\"conflict\"}").await.iter().sum();
    house.stop_pods().await;
    let fence = witness.book();
    if options.history {
        models::testify(&views, &checker).await?;
    }
    let expected = models::fold(&house.events()).await?;
    let differences = models::differences(&views, &expected).await?;
    let to_be_parked = to_be_parked(&expected, options);
    let deaths = house.stop().await;
    let acknowledged = checker.tally().acknowledged;
    let verdict = if options.history { checker.judge(Duplicates::Refused) } else { Verdict::default() };
    Ok(Outcome {
        verdict,
        acknowledged,
        differences,
        parked,
        to_be_parked,
        replayed,
        echoed,
        breaches: fence.breaches().len(),
        terms: fence.terms(),
        faults,
        deaths,
        took: began.elapsed(),
        drained_in,
        standstill,
        applied_by,
        conflicts,
    })
}

/// Until every pod accepts sessions: who comes late to a short run has nothing to do.
async fn until_ready(house: &House) -> Result<(), Error> {
    let ready = async || {
        let ready = counted(house, "headwater_service_ready{service=\"consumer\"}").await;
        if ready.iter().all(|ready| *ready == 1) { Ok(()) } else { Err(ready) }
    };
    Ok(try_wait_for("all pods to be ready", READY_WITHIN, ready).await?)
}

/// By each pod, since it was started last; 0 by one that cannot be asked.
async fn counted(house: &House, sample: &str) -> Vec<u64> {
    let mut counts = vec![];
    for pod in house.pods() {
        counts.push(pod.metrics().await.map_or(0, |metrics| metrics.count(sample)));
    }
    counts
}

/// The server itself refuses one event: only a cause outside the event can be removed.
async fn poison(views: &Database) -> Result<(), Error> {
    let refused = doc! { "$nor": [{ "_id": aggregate(POISONED), "last": POISON }] };
    let command = doc! { "create": models::TOTALS, "validator": refused };
    views.run_command(command).await?;
    Ok(())
}

/// What is parked; then the cause is removed, and everything is replayed.
async fn retry(
    house: &House,
    views: &Database,
    options: &Options,
) -> Result<(Vec<(String, String, Option<i64>)>, u64), Error> {
    let desk = ParkedStore::new(views.clone(), "shop", false, compiled(options.history), None);
    let waiting = desk.list(1_000).await?;
    let parked = waiting
        .iter()
        .map(|waiting| (text(waiting.aggregate.value()), waiting.model.clone(), waiting.parked.sequence))
        .collect();
    if options.poison {
        let cured = doc! { "collMod": models::TOTALS, "validator": {} };
        views.run_command(cured).await?;
    }
    let namespace = Namespace::new(house.store().source(), "events");
    let mut replayed = 0;
    for waiting in &waiting {
        replayed += desk.retry(&waiting.aggregate, &namespace, &waiting.model).await?;
    }
    Ok((parked, replayed))
}

fn compiled(with_history: bool) -> Vec<Arc<dyn Projection>> {
    let compile = |(name, model): (&str, serde_json::Value)| {
        let declaration = Bson::try_from(model).ok().and_then(|model| mongodb::bson::deserialize_from_bson(model).ok());
        let declaration: ReadModelDeclaration = declaration.expect("the soak's models are well formed");
        Arc::new(ReadModel::compile(name, &declaration).expect("the soak's models are valid")) as Arc<dyn Projection>
    };
    models::declared(with_history).into_iter().map(compile).collect()
}

/// The poisoned aggregate, if it came so far.
fn to_be_parked(expected: &models::Expected, options: &Options) -> Vec<(String, String, Option<i64>)> {
    let last = expected[models::TOTALS].get(&aggregate(POISONED)).and_then(|document| document["last"].as_i64());
    let is_parked = options.poison && last.is_some_and(|last| last >= POISON);
    let sequence = options.sequence.then_some(POISON);
    is_parked.then(|| (aggregate(POISONED), models::TOTALS.to_owned(), sequence)).into_iter().collect()
}

fn text(id: &Bson) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}
