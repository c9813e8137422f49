//! Writers: events into the source, with majority, every acknowledgement in the [ledger](crate::checker).
//!
//! Each writer owns aggregates of its own and writes short runs of one aggregate, so that several events of it are under way at once. A write
//! that got no answer is sent again under the same `_id` until the server says that it is there, and then asked for linearizably: only
//! what cannot be rolled back counts as acknowledged.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::Collection;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::checker::Checker;

const DUPLICATE_KEY: i32 = 11000;
/// A primary that is paused never answers, and the driver would wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A write that is in doubt for so long stays so.
const RESOLVED_WITHIN: Duration = Duration::from_secs(90);
const TYPES: [&str; 4] = ["OrderPlaced", "ItemAdded", "PaymentTaken", "OrderShipped"];

/// What is to be written.
#[derive(Clone, Debug)]
pub struct Load {
    pub events: u64,
    pub aggregates: u64,
    pub writers: u64,
    /// Events a second, of all writers together; `None`: as fast as they are acknowledged.
    pub rate: Option<f64>,
    /// How many events of an aggregate are written in one go.
    pub run: RangeInclusive<u64>,
    /// How many such runs, of as many aggregates, are sent in one statement. One at a time MongoDB is busy with the writers.
    pub together: u64,
    /// The aggregates one after the other, not at random; with runs of one event, every one has as many as every other.
    pub by_turns: bool,
    /// How many customers the aggregates belong to; few of them make hot documents.
    pub customers: u64,
    /// Bytes of payload.
    pub payload: usize,
    /// Every so many-th event of a writer has a payload of this many bytes instead. Over some 10 MB a test's mongod wants more cache than it has.
    pub large: Option<(u64, usize)>,
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Self {
        let (events, aggregates, writers) = (2_000, 100, 8);
        let (run, together, by_turns) = (1..=6, 1, false);
        Self {
            events,
            aggregates,
            writers,
            rate: None,
            run,
            together,
            by_turns,
            customers: 100,
            payload: 64,
            large: None,
            seed: 1,
        }
    }
}

/// What became of it. What was acknowledged stands in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub events: u64,
    /// Writes that had to be asked for.
    pub asked_for: u64,
    /// Writes that stayed in doubt; their aggregates were not written again.
    pub in_doubt: u64,
}

impl Load {
    /// Writes it all.
    pub async fn write(&self, events: &Collection<Document>, checker: &Arc<Checker>) -> Written {
        self.write_until(events, checker, &CancellationToken::new()).await
    }

    /// Writes it all, or until it is `enough`. What is under way then is finished.
    pub async fn write_until(
        &self,
        events: &Collection<Document>,
        checker: &Arc<Checker>,
        enough: &CancellationToken,
    ) -> Written {
        let started = Instant::now();
        let writers = (0..self.writers).map(|number| {
            let writer = Writer::new(self.clone(), number, events.clone(), Arc::clone(checker), enough.clone());
            tokio::spawn(writer.run(started))
        });
        let written = join_all(writers).await;
        let written = written.into_iter().map(|writer| writer.expect("a writer does not panic"));
        written.fold(Written::default(), Written::and)
    }
}

impl Written {
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            asked_for: self.asked_for + other.asked_for,
            in_doubt: self.in_doubt + other.in_doubt,
        }
    }
}

/// The aggregates' names; also their sessions'.
pub fn aggregate(number: u64) -> String {
    format!("order-{number:05}")
}

struct Writer {
    load: Load,
    events: Collection<Document>,
    checker: Arc<Checker>,
    enough: CancellationToken,
    dice: StdRng,
    share: u64,
    /// Aggregates it may still write.
    own: Vec<u64>,
    /// Whose turn it is.
    turn: usize,
    written: Written,
}

/// An event on its way.
struct Pending {
    aggregate: String,
    sequence: i64,
    document: Document,
}

impl Writer {
    fn new(
        load: Load,
        number: u64,
        events: Collection<Document>,
        checker: Arc<Checker>,
        enough: CancellationToken,
    ) -> Self {
        let share = load.events / load.writers + u64::from(number < load.events % load.writers);
        let own: Vec<u64> = (0..load.aggregates).filter(|aggregate| aggregate % load.writers == number).collect();
        let dice = StdRng::seed_from_u64(load.seed.wrapping_mul(1_000_003).wrapping_add(number));
        Self { load, events, checker, enough, dice, share, own, turn: 0, written: Written::default() }
    }

    async fn run(mut self, started: Instant) -> Written {
        while self.written.events < self.share && !self.own.is_empty() {
            tokio::select! {
                // cancel-safe: a sleep
                biased;
                () = self.enough.cancelled() => break,
                () = self.keep_pace(started) => {}
            }
            let (places, runs) = self.next_runs();
            if !self.write(runs).await {
                // From the last to the first, so that each stands where it stood.
                for place in places.into_iter().rev() {
                    self.own.swap_remove(place);
                }
            }
        }
        self.written
    }

    /// What is sent next, and the places of the aggregates it belongs to.
    fn next_runs(&mut self) -> (BTreeSet<usize>, Vec<Pending>) {
        let (mut places, mut runs) = (BTreeSet::new(), vec![]);
        for _ in 0..self.load.together {
            let place = self.place();
            let length = self.dice.random_range(self.load.run.clone()).min(self.share - self.written.events);
            runs.extend((0..length).map(|_| self.next_of(self.own[place])));
            places.insert(place);
            if self.written.events == self.share {
                break;
            }
        }
        (places, runs)
    }

    fn place(&mut self) -> usize {
        if !self.load.by_turns {
            return self.dice.random_range(0..self.own.len());
        }
        self.turn += 1;
        (self.turn - 1) % self.own.len()
    }

    async fn keep_pace(&self, started: Instant) {
        if let Some(rate) = self.load.rate {
            let rate = rate / self.load.writers as f64;
            sleep_until(started + Duration::from_secs_f64(self.written.events as f64 / rate)).await;
        }
    }

    fn next_of(&mut self, number: u64) -> Pending {
        let (aggregate, id) = (aggregate(number), ObjectId::new());
        let sequence = self.checker.intend(&aggregate, id);
        self.written.events += 1;
        let bytes = match self.load.large {
            Some((every, bytes)) if self.written.events.is_multiple_of(every) => bytes,
            _ => self.load.payload,
        };
        let document = doc! {
            "_id": id, "aggregateId": &aggregate, "version": sequence, "type": TYPES[self.dice.random_range(0..TYPES.len())],
            "payload": {
                "text": "x".repeat(bytes), "price": self.dice.random_range(1..100_i32),
                "customer": format!("customer-{}", number % self.load.customers),
            },
        };
        Pending { aggregate, sequence, document }
    }

    /// Writes them in their order; false when one of them stays in doubt, and those after it unwritten.
    async fn write(&mut self, run: Vec<Pending>) -> bool {
        let documents = run.iter().map(|pending| &pending.document);
        let sent = timeout(ANSWER_WITHIN, async { self.events.insert_many(documents).await }).await;
        if matches!(sent, Ok(Ok(_))) {
            run.iter().for_each(|pending| self.checker.acknowledge(&pending.aggregate, pending.sequence));
            return true;
        }
        for (place, pending) in run.iter().enumerate() {
            self.written.asked_for += 1;
            if !self.resolve(pending).await {
                self.written.in_doubt += (run.len() - place) as u64;
                return false;
            }
            self.checker.acknowledge(&pending.aggregate, pending.sequence);
        }
        true
    }

    /// Until it is certain that the event is there.
    async fn resolve(&self, pending: &Pending) -> bool {
        let deadline = Instant::now() + RESOLVED_WITHIN;
        while Instant::now() < deadline {
            let sent = timeout(ANSWER_WITHIN, async { self.events.insert_one(&pending.document).await }).await;
            match sent {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) if is_duplicate(&error) && self.is_there_for_good(pending).await => return true,
                Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        false
    }

    async fn is_there_for_good(&self, pending: &Pending) -> bool {
        let id = pending.document.get_object_id("_id").expect("every event has one");
        let asked = self
            .events
            .find_one(doc! { "_id": id })
            .read_concern(ReadConcern::linearizable())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_time(ANSWER_WITHIN);
        matches!(timeout(ANSWER_WITHIN, async { asked.await }).await, Ok(Ok(Some(_))))
    }
}

fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(refused)) if refused.code == DUPLICATE_KEY)
}
