//! The consumer's soak: from writes that were acknowledged to what the read models hold.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Bson, doc};
use pipeline::event::Namespace;
use pipeline::view::{Declaration, Desk, Model, Projection};
use testkit::checker::{Checker, Duplicates, Kind, Verdict};
use testkit::cluster::{Blueprint, Death, House, Topic, Witness};
use testkit::load::aggregate;
use testkit::nemesis::{self, Profile};
use tokio::task::JoinSet;

use super::echo::Echo;
use super::{models, producer};

/// The house's, the driver's or the desk's.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

const LED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Nothing changed for so long: all that will come has come.
const QUIET: Duration = Duration::from_secs(1);
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

    /// A cut for the suite: some seconds, on one member.
    pub fn cut(seed: u64) -> Self {
        let Self { walk: full, .. } = Self::full(seed);
        let cut = producer::Options::cut(seed);
        let walk = producer::Options { topic: full.topic, profile: Profile::consumers().quick(), ..cut };
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

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Of the model that lists what was applied; says nothing without it.
    pub verdict: Verdict,
    /// Writes the source has acknowledged.
    pub acknowledged: u64,
    /// Read models against a fold of the source.
    pub differences: Vec<String>,
    /// What was parked when everything had come, and what must have been.
    pub parked: Vec<(String, String, Option<i64>)>,
    pub to_be_parked: Vec<(String, String, Option<i64>)>,
    /// Events replayed when the cause was gone.
    pub replayed: u64,
    pub echoed: u64,
    pub breaches: usize,
    pub terms: usize,
    pub faults: nemesis::Report,
    pub deaths: Vec<Death>,
    pub took: Duration,
    /// From the last write to the last event applied.
    pub drained_in: Duration,
}

impl Outcome {
    /// Every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.differences.is_empty() && self.parked == self.to_be_parked && self.breaches == 0
    }

    /// What should have happened in such a run and did not: a run in which nothing was broken shows nothing.
    pub fn missing(&self, options: &Options) -> Vec<String> {
        let mut missing = options.walk.unstruck(&self.faults);
        let wanted = [
            (self.acknowledged == 0, "an acknowledged write"),
            (options.echo && self.echoed == 0, "a message that was said again"),
            (options.poison && self.replayed == 0, "a parked event that was replayed"),
        ];
        missing.extend(wanted.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_owned()));
        missing
    }

    /// The last line of a soak.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "soak": "consumer",
            "acknowledged": self.acknowledged,
            "in_doubt": self.verdict.in_doubt,
            "lost": self.verdict.count(Kind::Lost),
            "doubled": self.verdict.count(Kind::Doubled),
            "out_of_order": self.verdict.count(Kind::OutOfOrder),
            "differences": self.differences.len(),
            "parked": self.parked.len(),
            "replayed": self.replayed,
            "said_again": self.echoed,
            "terms": self.terms,
            "faults": self.faults.struck(),
            "faults_in_flight": self.faults.in_flight(),
            "pod_deaths": self.deaths.len(),
            "drained_in_s": tenths(self.drained_in),
            "seconds": tenths(self.took),
        })
    }
}

fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 10.0).round() / 10.0
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict)?;
        let Self { parked, to_be_parked, replayed, echoed, terms, .. } = self;
        writeln!(f, "parked {parked:?} (expected {to_be_parked:?}), {replayed} replayed, {echoed} said again")?;
        writeln!(f, "{terms} terms, drained in {:?}, {:?} in all", self.drained_in, self.took)?;
        write!(f, "{}", self.faults)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))?;
        self.deaths.iter().try_for_each(|death| write!(f, "\n{death}"))
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
    let checker = Arc::new(Checker::new());
    let broker = house.broker();
    let (connection, topic) = (broker.connection_string(), broker.topic());
    let echo = options.echo.then(|| Echo::start(&connection, topic, &broker.echo(), options.walk.seed));
    let counting = Counting::start(&views);
    let outstanding = || checker.tally().acknowledged.saturating_sub(counting.applied());

    let (faults, _) = producer::write_and_haunt(&mut house, &options.walk, &checker, outstanding).await?;
    let written = Instant::now();
    let drained_in = until_applied(&mut house, &checker, &counting, options.walk.patience, written).await?;
    let echoed = echo.as_ref().map_or(0, Echo::said);
    drop((echo, counting));

    let (parked, replayed) = retry(&house, &views, options).await?;
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
    })
}

/// Counts what was applied, all the while.
pub(super) struct Counting {
    applied: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Counting {
    pub(super) fn start(views: &Database) -> Self {
        let (applied, views) = (Arc::new(AtomicU64::new(0)), views.clone());
        let counted = Arc::clone(&applied);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                if let Ok(now) = models::applied(&views).await {
                    counted.store(now, Relaxed);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { applied, _task: task }
    }

    fn applied(&self) -> u64 {
        self.applied.load(Relaxed)
    }
}

/// Until everything is applied and nothing more changes, or nothing has changed for as long as `patience`; when the last change was.
pub(super) async fn until_applied(
    house: &mut House,
    checker: &Checker,
    counting: &Counting,
    patience: Duration,
    written: Instant,
) -> Result<Duration, Error> {
    let (mut seen, mut since) = (counting.applied(), Instant::now());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        house.bury()?;
        let now = counting.applied();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        let enough = if now >= checker.tally().acknowledged { QUIET } else { patience };
        if since.elapsed() > enough {
            return Ok(since.saturating_duration_since(written));
        }
    }
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
    let desk = Desk::new(views.clone(), "shop", false, compiled(options.history), None);
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
        let declaration: Declaration = declaration.expect("the soak's models are well formed");
        Arc::new(Model::compile(name, &declaration).expect("the soak's models are valid")) as Arc<dyn Projection>
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
