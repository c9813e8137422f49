//! The producer's soak: from writes that were acknowledged to what the subscription holds.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Collection;
use mongodb::bson::Document;
use pipeline::failpoints::Failpoint;
use testkit::checker::{Checker, Duplicates, FenceBook, Kind, Verdict};
use testkit::cluster::{Blueprint, Death, Error, House, StoreKind, Topic, Witness};
use testkit::load::{Load, Written};
use testkit::nemesis::{self, BrokerHarm, Fault, Plan, PodHarm, PrimaryHarm, Profile};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Drain;

const LED_WITHIN: Duration = Duration::from_secs(60);
/// Nothing more came for so long: all that will come has come.
const QUIET: Duration = Duration::from_secs(1);
const SAY_EVERY: Duration = Duration::from_secs(5);
/// In a run of so long whatever falls once must fall while events are in flight.
const LONG: Duration = Duration::from_secs(20);

/// What to do, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    pub load: Load,
    pub pods: usize,
    pub store: StoreKind,
    pub topic: Topic,
    /// The inside of the pods' `producer:`.
    pub producer: String,
    pub profile: Profile,
    /// Of the plan; the load has its own.
    pub seed: u64,
    pub defect: Option<Failpoint>,
    /// When nothing has come for so long, what is still missing is lost.
    pub patience: Duration,
    /// Print the plan and how far things are.
    pub talkative: bool,
}

impl Options {
    /// The run: 200,000 events of 5,000 aggregates at 1,000 a second.
    pub fn full(seed: u64) -> Self {
        let load =
            Load { events: 200_000, aggregates: 5_000, writers: 32, rate: Some(1_000.0), seed, ..Load::default() };
        Self {
            load,
            pods: 3,
            store: StoreKind::Three,
            topic: Topic::default(),
            producer: Blueprint::new("").producer,
            profile: Profile::leaders(),
            seed,
            defect: None,
            patience: Duration::from_secs(60),
            talkative: true,
        }
    }

    /// A cut for the suite: a few thousand events in some ten seconds, on one member.
    pub fn cut(seed: u64) -> Self {
        let load = Load { events: 3_000, aggregates: 150, writers: 8, rate: Some(300.0), seed, ..Load::default() };
        let (pods, store, patience) = (2, StoreKind::One, Duration::from_secs(30));
        Self { load, pods, store, patience, profile: Profile::leaders().quick(), talkative: false, ..Self::full(seed) }
    }

    pub(super) fn blueprint(&self, binary: &Path) -> Blueprint {
        let environment = self.defect.map(|defect| (Failpoint::VARIABLE.to_owned(), format!("{defect:?}")));
        Blueprint {
            pods: self.pods,
            store: self.store,
            topic: self.topic,
            producer: self.producer.clone(),
            environment: environment.into_iter().collect(),
            ..Blueprint::new(binary)
        }
    }

    /// Without duplicate detection copies are what a takeover costs.
    fn duplicates(&self) -> Duplicates {
        if self.topic.duplicate_window.is_some() { Duplicates::Refused } else { Duplicates::Counted }
    }

    pub fn plan(&self) -> Plan {
        Plan::draw(&self.profile, self.seed, self.length().saturating_sub(self.asleep()))
    }

    /// The plan up to the last of what falls once, which is carried out however long that takes; and the rest, while there is load.
    fn parts(&self) -> (Plan, Plan) {
        let Plan { strikes: mut must } = self.plan();
        let once: Vec<&Fault> = self.profile.once.iter().filter_map(|blow| blow.last()).collect();
        let last = must.iter().rposition(|strike| once.contains(&&strike.fault));
        let may = must.split_off(last.map_or(0, |last| last + 1));
        (Plan { strikes: must }, Plan { strikes: may })
    }

    /// How long nothing else happens while a pod sleeps past its locks.
    fn asleep(&self) -> Duration {
        let sleeps = self.profile.once.iter().flatten().filter(|fault| is_sleep(**fault)).count();
        (self.topic.lock + Duration::from_secs(1)) * sleeps as u32
    }

    /// What was to be broken, and was not. In peace nothing is.
    pub(super) fn unstruck(&self, faults: &nemesis::Report) -> Vec<String> {
        let mut missing = vec![];
        if self.profile.blows.is_empty() && self.profile.once.is_empty() {
            return missing;
        }
        if faults.in_flight() == 0 {
            missing.push("a fault while events were in flight".to_owned());
        }
        for fault in self.profile.once.iter().filter_map(|blow| blow.last()) {
            let hits = faults.hits(*fault);
            if hits.struck == 0 {
                missing.push(format!("to {fault}"));
            } else if hits.in_flight == 0 && self.length() >= LONG {
                missing.push(format!("to {fault} while events were in flight"));
            } else if is_sleep(*fault) && hits.bites == 0 {
                missing.push(format!("to {fault} while another takes its sessions"));
            }
        }
        missing
    }

    /// How long writing should take.
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.load.rate.map_or(60.0, |rate| self.load.events as f64 / rate))
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    /// Who took the lease, and who saved the checkpoint.
    pub fence: FenceBook,
    pub faults: nemesis::Report,
    pub written: Written,
    /// Pods that ended on their own.
    pub deaths: Vec<Death>,
    pub took: Duration,
}

impl Outcome {
    /// Every promise was kept. (A pod that died and was started again is told apart: see [`Self::deaths`].)
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.fence.breaches().is_empty()
    }

    /// What should have happened in such a run and did not: a run in which nothing was broken shows nothing.
    pub fn missing(&self, options: &Options) -> Vec<String> {
        let mut missing = options.unstruck(&self.faults);
        if self.fence.terms() < 2 {
            missing.push("a takeover".to_owned());
        }
        missing
    }

    /// The last line of a soak.
    pub fn json(&self, soak: &str) -> serde_json::Value {
        let Self { verdict, fence, faults, written, deaths, took } = self;
        let bites = |harm| faults.hits(Fault::Broker(harm)).bites;
        serde_json::json!({
            "soak": soak,
            "acknowledged": verdict.tally.acknowledged,
            "in_doubt": verdict.in_doubt,
            "asked_for": written.asked_for,
            "lost": verdict.count(Kind::Lost),
            "doubled": verdict.count(Kind::Doubled),
            "out_of_order": verdict.count(Kind::OutOfOrder),
            "alien": verdict.count(Kind::Alien),
            "copies": verdict.duplicates(),
            "most_copies_in_a_term": verdict.most_duplicates_in_a_term(),
            "terms": fence.terms(),
            "fence_breaches": fence.breaches().len(),
            "faults": faults.struck(),
            "faults_in_flight": faults.in_flight(),
            "primary_killed": faults.hits(Fault::Primary(PrimaryHarm::Kill)).struck,
            "throttled": bites(BrokerHarm::Throttle),
            "acknowledgements_lost": bites(BrokerHarm::LoseAcknowledgements),
            "pod_deaths": deaths.len(),
            "seconds": (took.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, fence, faults, written, deaths, took } = self;
        writeln!(f, "{verdict}")?;
        writeln!(f, "{written:?}, {} terms, {} saves, {:.1} s", fence.terms(), fence.saves(), took.as_secs_f64())?;
        write!(f, "{faults}")?;
        fence.breaches().iter().take(10).try_for_each(|breach| write!(f, "\n{breach}"))?;
        deaths.iter().try_for_each(|death| write!(f, "\n{death}"))
    }
}

fn is_sleep(fault: Fault) -> bool {
    matches!(fault, Fault::Pod(_, PodHarm::Oversleep))
}

/// Builds the house, writes, breaks, mends, drains and judges.
pub async fn run(binary: &Path, options: &Options) -> Result<Outcome, Error> {
    let began = Instant::now();
    let mut house = House::build(options.blueprint(binary)).await?;
    let witness = Witness::of(&house).await?;
    house.start_pods()?;
    house.wait_for_leader(LED_WITHIN).await?;
    // What is written while a snapshot is read may come twice, once by it and once by the stream: that is how snapshots are, and not what is asked here.
    house.wait_for_the_stream(LED_WITHIN).await?;
    let checker = Arc::new(Checker::new());
    let drain = Drain::start(&house.broker().connection_string(), &house.broker().subscription(), &checker);
    let mut narrator = JoinSet::new();
    if options.talkative {
        narrator.spawn(narrate(Arc::clone(&checker)));
    }
    let (faults, written) = write_and_haunt(&mut house, options, &checker, || checker.outstanding()).await?;
    drop(narrator);

    until_all_came(&mut house, &checker, options.patience).await?;
    house.stop_pods().await;
    // A pod that flushed at its end may have sent more.
    until_all_came(&mut house, &checker, QUIET).await?;
    drop(drain);
    let fence = witness.book();
    let deaths = house.stop().await;
    let verdict = checker.judge(options.duplicates());
    Ok(Outcome { verdict, fence, faults, written, deaths, took: began.elapsed() })
}

/// Writes the load while the plan is carried out; more of it, on a slow machine, until all has fallen that falls once. `in_flight` tells how
/// many events are under way.
pub(super) async fn write_and_haunt(
    house: &mut House,
    options: &Options,
    checker: &Arc<Checker>,
    in_flight: impl Fn() -> u64,
) -> Result<(nemesis::Report, Written), Error> {
    let (must, may) = options.parts();
    if options.talkative {
        print!("{}", options.plan());
    }
    let (done, finished) = tokio::sync::oneshot::channel();
    let (load, events, ledger) = (options.load.clone(), house.events(), Arc::clone(checker));
    let fallen = CancellationToken::new();
    let enough = fallen.clone();
    let writing = tokio::spawn(async move {
        let written = write(&load, &events, &ledger, &enough).await;
        let _ = done.send(());
        written
    });
    let faults = nemesis::haunt(house, &must, &in_flight, std::future::pending()).await?;
    fallen.cancel();
    let until = async { finished.await.unwrap_or_default() };
    let faults = faults.and(nemesis::haunt(house, &may, &in_flight, until).await?);
    Ok((faults, writing.await.expect("writers do not panic")))
}

/// All of it, and then more until it is enough. What stays in doubt cannot be followed by anything.
async fn write(
    load: &Load,
    events: &Collection<Document>,
    ledger: &Arc<Checker>,
    enough: &CancellationToken,
) -> Written {
    let mut written = load.write(events, ledger).await;
    let mut more = Load { events: (load.events / 10).max(load.writers), ..load.clone() };
    while !enough.is_cancelled() && written.in_doubt == 0 {
        more.seed = more.seed.wrapping_add(1);
        written = written.and(more.write_until(events, ledger, enough).await);
    }
    written
}

/// Until nothing is outstanding and nothing more comes, or nothing has come for as long as `patience`.
pub(super) async fn until_all_came(house: &mut House, checker: &Checker, patience: Duration) -> Result<(), Error> {
    let (mut seen, mut since) = (checker.tally().seen, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        house.bury()?;
        let tally = checker.tally();
        if tally.seen != seen {
            (seen, since) = (tally.seen, Instant::now());
        }
        let enough = if tally.outstanding == 0 { QUIET } else { patience };
        if since.elapsed() > enough {
            return Ok(());
        }
    }
}

async fn narrate(checker: Arc<Checker>) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(SAY_EVERY).await;
        let tally = checker.tally();
        let (seconds, acknowledged) = (began.elapsed().as_secs(), tally.acknowledged);
        println!("{seconds:5} s: {acknowledged} acknowledged, {} seen, {} outstanding", tally.seen, tally.outstanding);
    }
}
