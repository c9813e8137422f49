//! The shop at work: events inserted at a rate, with majority write concern.

use std::time::Duration;

use mongo_error::DriverError;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{IndexOptions, WriteConcern};
use mongodb::{Collection, IndexModel};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::order::Counter;
use crate::output;

/// A shop that opens again looks at so many of its last orders: those under way are among them.
const LAST_ORDERS: u64 = 200;
/// Inserts that are due within this time go together.
const TICK: Duration = Duration::from_millis(50);
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

/// Writes orders until it is closed.
pub(crate) struct Shop {
    events: Collection<Document>,
    counter: Counter,
    chance: StdRng,
    written: watch::Sender<u64>,
}

impl Shop {
    /// Finds the shop as it was left.
    pub(crate) async fn open(events: Collection<Document>) -> anyhow::Result<Self> {
        let unique = IndexOptions::builder().unique(true).build();
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).options(unique).build();
        events.create_index(index).await.map_err(failed("make an index on the events"))?;
        let counter = recollect(&events).await?;
        let written = count(&events).await?;
        Ok(Self { events, counter, chance: StdRng::from_rng(&mut rand::rng()), written: watch::Sender::new(written) })
    }

    /// Events in the source.
    pub(crate) fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// So many events a second, until `closed`; what is under way then is finished.
    pub(crate) async fn run(mut self, rate: u32, closed: CancellationToken) {
        if rate == 0 {
            return;
        }
        let mut ticks = interval(TICK.max(Duration::from_secs(1) / rate));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut owed = 0.0;
        while closed.run_until_cancelled(ticks.tick()).await.is_some() {
            // After a pause the shop does not catch up on more than a second.
            owed = (owed + last.elapsed().as_secs_f64() * f64::from(rate)).min(f64::from(rate).max(1.0));
            last = Instant::now();
            if owed < 1.0 {
                continue;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and the rate")]
            let batch = owed as usize;
            owed -= batch as f64;
            if let Err(error) = self.write(batch).await {
                output::try_print(format_args!("shop: cannot write ({error:#}); trying on\n"));
                closed.run_until_cancelled(tokio::time::sleep(AFTER_TROUBLE)).await;
            }
        }
    }

    async fn write(&mut self, batch: usize) -> anyhow::Result<()> {
        let mut counter = self.counter.clone();
        let events: Vec<_> = (0..batch).map(|_| counter.next(&mut self.chance, DateTime::now())).collect();
        let inserted = self.events.insert_many(&events).write_concern(WriteConcern::majority()).await;
        if let Err(error) = inserted {
            // Some of them may be there: the source says which.
            if let (Ok(counter), Ok(written)) = (recollect(&self.events).await, count(&self.events).await) {
                self.counter = counter;
                self.written.send_replace(written);
            }
            return Err(failed("insert events")(error));
        }
        self.counter = counter;
        self.written.send_modify(|written| *written += batch as u64);
        Ok(())
    }
}

async fn count(events: &Collection<Document>) -> anyhow::Result<u64> {
    events.count_documents(doc! {}).await.map_err(failed("count the events"))
}

async fn recollect(events: &Collection<Document>) -> anyhow::Result<Counter> {
    let failed = failed("read the last orders");
    let mut counter = Counter::default();
    let last = events.find_one(doc! {}).sort(doc! { "aggregateId": -1 }).await.map_err(&failed)?;
    let Some(last) = last else { return Ok(counter) };
    counter.replay(&last);
    let from = format!("order-{:08}", counter.next.saturating_sub(LAST_ORDERS));
    counter = Counter::default();
    let sorted = events.find(doc! { "aggregateId": { "$gte": from } }).sort(doc! { "aggregateId": 1, "version": 1 });
    let mut found = sorted.await.map_err(&failed)?;
    while found.advance().await.map_err(&failed)? {
        counter.replay(&found.deserialize_current().map_err(&failed)?);
    }
    Ok(counter)
}

fn failed(doing: &'static str) -> impl Fn(mongodb::error::Error) -> anyhow::Error {
    move |error| anyhow::Error::new(DriverError::from(error)).context(doing)
}
