//! Load: writers insert events into the source with majority write concern and record every acknowledgement in the
//! [checker](crate::checker).
//!
//! Each writer has its own aggregates and writes short runs of one aggregate, so that several of its events are in flight at once. A
//! write without a response is retried with the same `_id` until the server reports a duplicate key, and then confirmed by a
//! linearizable read: only a write that cannot be rolled back counts as acknowledged.

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

use crate::checker::{Checker, body_digest};

const DUPLICATE_KEY: i32 = 11000;
/// A paused primary does not respond, and the driver would wait for it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time a write stays in doubt.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(90);
const TYPES: [&str; 4] = ["OrderPlaced", "ItemAdded", "PaymentTaken", "OrderShipped"];

/// The events to write.
#[derive(Clone, Debug)]
pub struct Load {
    pub events: u64,
    pub aggregates: u64,
    pub writers: u64,
    /// Events per second of all writers; `None`: as fast as they are acknowledged.
    pub rate: Option<f64>,
    /// Events of one aggregate that are written in a row.
    pub run_length: RangeInclusive<u64>,
    /// Runs of different aggregates in one insert statement. With one, MongoDB spends most of its time on the writers.
    pub runs_per_statement: u64,
    /// Takes the aggregates in turn instead of at random. With runs of one event all aggregates have the same number of events.
    pub round_robin: bool,
    /// Customers that the aggregates belong to. Few customers make hot documents.
    pub customers: u64,
    /// Bytes of payload.
    pub payload: usize,
    /// `(n, bytes)`: every n-th event of a writer has a payload of this size. Above some 10 MB a test's mongod runs out of cache.
    pub large: Option<(u64, usize)>,
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Self {
        let (events, aggregates, writers) = (2_000, 100, 8);
        let (run_length, runs_per_statement, round_robin) = (1..=6, 1, false);
        Self {
            events,
            aggregates,
            writers,
            rate: None,
            run_length,
            runs_per_statement,
            round_robin,
            customers: 100,
            payload: 64,
            large: None,
            seed: 1,
        }
    }
}

/// The result of a load. The checker holds the acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadResult {
    pub events: u64,
    /// Writes that were retried.
    pub retried: u64,
    /// Writes that stayed in doubt; their aggregates got no further events.
    pub in_doubt: u64,
}

impl Load {
    /// Writes all events.
    pub async fn write(&self, events: &Collection<Document>, checker: &Arc<Checker>) -> LoadResult {
        self.write_until(events, checker, &CancellationToken::new()).await
    }

    /// Writes until all events are written or `stop` is cancelled. Writes in flight complete.
    pub async fn write_until(
        &self,
        events: &Collection<Document>,
        checker: &Arc<Checker>,
        stop: &CancellationToken,
    ) -> LoadResult {
        let started = Instant::now();
        let writers = (0..self.writers).map(|number| {
            let writer = LoadWriter::new(self.clone(), number, events.clone(), Arc::clone(checker), stop.clone());
            tokio::spawn(writer.run(started))
        });
        let written = join_all(writers).await;
        let written = written.into_iter().map(|writer| writer.expect("a writer does not panic"));
        written.fold(LoadResult::default(), LoadResult::and)
    }
}

impl LoadResult {
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            retried: self.retried + other.retried,
            in_doubt: self.in_doubt + other.in_doubt,
        }
    }
}

/// The id of an aggregate, which is also its session id.
pub fn aggregate(number: u64) -> String {
    format!("order-{number:05}")
}

struct LoadWriter {
    load: Load,
    events: Collection<Document>,
    checker: Arc<Checker>,
    stop: CancellationToken,
    rng: StdRng,
    share: u64,
    /// Aggregates that this writer may still write.
    own: Vec<u64>,
    /// The next aggregate when round robin.
    turn: usize,
    written: LoadResult,
}

/// An event in flight.
struct PendingWrite {
    aggregate: String,
    sequence: i64,
    document: Document,
}

impl LoadWriter {
    fn new(
        load: Load,
        number: u64,
        events: Collection<Document>,
        checker: Arc<Checker>,
        stop: CancellationToken,
    ) -> Self {
        let share = load.events / load.writers + u64::from(number < load.events % load.writers);
        let own: Vec<u64> = (0..load.aggregates).filter(|aggregate| aggregate % load.writers == number).collect();
        let rng = StdRng::seed_from_u64(load.seed.wrapping_mul(1_000_003).wrapping_add(number));
        Self { load, events, checker, stop, rng, share, own, turn: 0, written: LoadResult::default() }
    }

    async fn run(mut self, started: Instant) -> LoadResult {
        while self.written.events < self.share && !self.own.is_empty() {
            tokio::select! {
                // cancel-safe: a sleep
                biased;
                () = self.stop.cancelled() => break,
                () = self.wait_for_turn(started) => {}
            }
            let (indexes, runs) = self.next_runs();
            if !self.write(runs).await {
                // From the last to the first, because `swap_remove` changes the indexes behind it.
                for index in indexes.into_iter().rev() {
                    self.own.swap_remove(index);
                }
            }
        }
        self.written
    }

    /// The next statement, and the indexes of its aggregates.
    fn next_runs(&mut self) -> (BTreeSet<usize>, Vec<PendingWrite>) {
        let (mut indexes, mut runs) = (BTreeSet::new(), vec![]);
        for _ in 0..self.load.runs_per_statement {
            let index = self.next_index();
            let length = self.rng.random_range(self.load.run_length.clone()).min(self.share - self.written.events);
            runs.extend((0..length).map(|_| self.next_event(self.own[index])));
            indexes.insert(index);
            if self.written.events == self.share {
                break;
            }
        }
        (indexes, runs)
    }

    fn next_index(&mut self) -> usize {
        if !self.load.round_robin {
            return self.rng.random_range(0..self.own.len());
        }
        self.turn += 1;
        (self.turn - 1) % self.own.len()
    }

    async fn wait_for_turn(&self, started: Instant) {
        if let Some(rate) = self.load.rate {
            let rate = rate / self.load.writers as f64;
            sleep_until(started + Duration::from_secs_f64(self.written.events as f64 / rate)).await;
        }
    }

    fn next_event(&mut self, number: u64) -> PendingWrite {
        let (aggregate, id) = (aggregate(number), ObjectId::new());
        let sequence = self.checker.record_intent(&aggregate, id);
        self.written.events += 1;
        let bytes = match self.load.large {
            Some((every, bytes)) if self.written.events.is_multiple_of(every) => bytes,
            _ => self.load.payload,
        };
        let document = doc! {
            "_id": id, "aggregateId": &aggregate, "version": sequence, "type": TYPES[self.rng.random_range(0..TYPES.len())],
            "payload": {
                "text": "x".repeat(bytes), "price": self.rng.random_range(1..100_i32),
                "customer": format!("customer-{}", number % self.load.customers),
            },
        };
        let bson = mongodb::bson::serialize_to_vec(&document).expect("an event is a document");
        self.checker.record_body(&aggregate, sequence, body_digest(&bson));
        PendingWrite { aggregate, sequence, document }
    }

    /// Writes the events in order. Returns false when one stays in doubt; the ones after it are then not written.
    async fn write(&mut self, run: Vec<PendingWrite>) -> bool {
        let documents = run.iter().map(|pending| &pending.document);
        let response = timeout(RESPONSE_TIMEOUT, async { self.events.insert_many(documents).await }).await;
        if matches!(response, Ok(Ok(_))) {
            run.iter().for_each(|pending| self.checker.record_acknowledged(&pending.aggregate, pending.sequence));
            return true;
        }
        for (index, pending) in run.iter().enumerate() {
            self.written.retried += 1;
            if !self.resolve(pending).await {
                self.written.in_doubt += (run.len() - index) as u64;
                return false;
            }
            self.checker.record_acknowledged(&pending.aggregate, pending.sequence);
        }
        true
    }

    /// Retries until the event is certainly stored.
    async fn resolve(&self, pending: &PendingWrite) -> bool {
        let deadline = Instant::now() + RESOLVE_TIMEOUT;
        while Instant::now() < deadline {
            let response = timeout(RESPONSE_TIMEOUT, async { self.events.insert_one(&pending.document).await }).await;
            match response {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) if is_duplicate(&error) && self.is_durable(pending).await => return true,
                Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        false
    }

    async fn is_durable(&self, pending: &PendingWrite) -> bool {
        let id = pending.document.get_object_id("_id").expect("every event has one");
        let found = self
            .events
            .find_one(doc! { "_id": id })
            .read_concern(ReadConcern::linearizable())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_time(RESPONSE_TIMEOUT);
        matches!(timeout(RESPONSE_TIMEOUT, async { found.await }).await, Ok(Ok(Some(_))))
    }
}

fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(refused)) if refused.code == DUPLICATE_KEY)
}
