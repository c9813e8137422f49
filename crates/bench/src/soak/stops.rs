//! The soak of stops: under load the leader is told to end, again and again, and the next one carries on.
//!
//! Two ends are judged. The topic, read beside the pods and without duplicate detection: a leader that ends in order leaves nothing behind
//! that its successor would have to send twice. And the read models, as in [`consumer`](super::consumer): equal to a fold of the source, and
//! one lists 1, 2, 3 … for every aggregate. Beside the verdicts: how long stops took, and how long nobody led and nothing was published.

mod outcome;
mod rounds;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::checker::{Checker, Duplicates};
use testkit::cluster::{Blueprint, House, LeaseTimes, StoreKind, Topic, Witness};
use testkit::load::Load;
use tokio_util::sync::CancellationToken;

use super::consumer::{Counting, Error, until_applied};
use super::{Drain, models, producer};
pub use outcome::Outcome;
use rounds::Rounds;

/// What Kubernetes gives a pod to end, unless told otherwise.
const DEADLINE: Duration = Duration::from_secs(30);
/// What a pod gives itself by default: to its sessions, and to a leader's flush.
const DRAIN: Duration = Duration::from_secs(20);
const FLUSH: Duration = Duration::from_secs(10);
const LED_WITHIN: Duration = Duration::from_secs(60);
/// Nothing more came for so long: all that will come has come.
const QUIET: Duration = Duration::from_secs(1);

/// What to do, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Each ends one leader, and sometimes a standby with it.
    pub rounds: u64,
    /// Goes on until the rounds are over.
    pub load: Load,
    pub pods: usize,
    pub store: StoreKind,
    /// Of the rounds; the load has its own.
    pub seed: u64,
    /// How long a leader leads undisturbed, at most.
    pub pause: Duration,
    /// What a leader may take to send what it has read.
    pub flush: Duration,
    /// When nothing has come for so long, what is still missing is lost.
    pub patience: Duration,
    /// Say how far things are.
    pub talkative: bool,
}

impl Options {
    /// The run: a hundred rounds at 1,000 events a second.
    pub fn full(seed: u64) -> Self {
        let load =
            Load { events: u64::MAX, aggregates: 5_000, writers: 16, rate: Some(1_000.0), seed, ..Load::default() };
        Self {
            rounds: 100,
            load,
            pods: 3,
            store: StoreKind::Three,
            seed,
            pause: Duration::from_secs(2),
            flush: FLUSH,
            patience: Duration::from_secs(60),
            talkative: true,
        }
    }

    /// A cut for the suite: six rounds in some ten seconds.
    pub fn cut(seed: u64) -> Self {
        let full = Self::full(seed);
        let load = Load { aggregates: 200, ..full.load };
        let (store, pause) = (StoreKind::Shared, Duration::from_millis(500));
        Self { rounds: 6, load, store, pause, talkative: false, ..full }
    }

    fn blueprint(&self, binary: &Path) -> Blueprint {
        let models = models::declared(true);
        let models = models.iter().map(|(name, model)| format!("  {name}: {model}\n")).collect::<String>();
        let (drain, flush) = (DRAIN.as_millis(), self.flush.as_millis());
        Blueprint {
            pods: self.pods,
            store: self.store,
            topic: Topic { duplicate_window: None, copy: true, ..Topic::default() },
            // As pods have it: whoever leads too long without a word is not what is asked here.
            lease: LeaseTimes {
                ttl: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                heartbeat: Duration::from_secs(5),
            },
            producer: format!("start: beginning, drain: {flush}ms"),
            more: format!("consumer: {{ drain: {drain}ms }}\nread_models:\n{models}"),
            ..Blueprint::new(binary)
        }
    }
}

/// Builds the house, writes, ends leaders, waits until everything came, and compares.
pub async fn run(binary: &Path, options: &Options) -> Result<Outcome, Error> {
    let began = Instant::now();
    let mut house = House::build(options.blueprint(binary)).await?;
    let witness = Witness::of(&house).await?;
    let views = house.store().client().database(&format!("{}_views", house.store().source()));
    house.start_pods()?;
    house.wait_for_leader(LED_WITHIN).await?;
    house.wait_for_the_stream(LED_WITHIN).await?;
    let checker = Arc::new(Checker::new());
    let drain = Drain::start(&house.broker().connection_string(), &house.broker().copy(), &checker);
    let enough = CancellationToken::new();
    let writing = {
        let (load, events, ledger, enough) =
            (options.load.clone(), house.events(), Arc::clone(&checker), enough.clone());
        tokio::spawn(async move { load.write_until(&events, &ledger, &enough).await })
    };

    let mut rounds = Rounds::new(&mut house, &witness, &checker, options);
    let told = rounds.run().await;
    enough.cancel();
    writing.await.expect("writers do not panic");
    let figures = told?;

    let (written, counting) = (Instant::now(), Counting::start(&views, &checker, options.talkative));
    producer::until_all_came(&mut house, &checker, options.patience).await?;
    until_applied(&mut house, &checker, &counting, options.patience, written).await?;
    house.stop_pods().await;
    // A pod that flushed at its end may have sent more.
    producer::until_all_came(&mut house, &checker, QUIET).await?;
    drop((drain, counting));
    let applied = checker.afresh();
    models::testify(&views, &applied).await?;
    let expected = models::fold(&house.events()).await?;
    let differences = models::differences(&views, &expected).await?;
    let breaches = witness.read(|book| book.breaches().len());
    let deaths = house.stop().await;
    Ok(Outcome {
        topic: checker.judge(Duplicates::Refused),
        applied: applied.judge(Duplicates::Refused),
        differences,
        breaches,
        figures,
        deadline: DEADLINE,
        deaths,
        took: began.elapsed(),
    })
}
