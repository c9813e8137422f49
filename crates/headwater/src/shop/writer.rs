//! The shop's writer: inserts events at a rate, with majority write concern.

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

use super::order::ShopState;
use crate::output;

/// A restarted shop reads this many of its last orders; the open ones are among them.
const LAST_ORDERS: u64 = 200;
/// Inserts that are due within this time are sent together.
const TICK: Duration = Duration::from_millis(50);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Writes orders until it is cancelled.
pub(crate) struct ShopWriter {
    events: Collection<Document>,
    state: ShopState,
    rng: StdRng,
    written: watch::Sender<u64>,
}

impl ShopWriter {
    /// Continues from the events in the source.
    pub(crate) async fn open(events: Collection<Document>) -> anyhow::Result<Self> {
        let unique = IndexOptions::builder().unique(true).build();
        let index = IndexModel::builder().keys(doc! { "aggregateId": 1, "version": 1 }).options(unique).build();
        events.create_index(index).await.map_err(failed("failed to create an index on the events"))?;
        let state = load_state(&events).await?;
        let written = count(&events).await?;
        Ok(Self { events, state, rng: StdRng::from_rng(&mut rand::rng()), written: watch::Sender::new(written) })
    }

    /// The number of events in the source.
    pub(crate) fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Writes `rate` events per second until `closed`; an insert in flight completes.
    pub(crate) async fn run(mut self, rate: u32, closed: CancellationToken) {
        if rate == 0 {
            return;
        }
        let mut ticks = interval(TICK.max(Duration::from_secs(1) / rate));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut owed = 0.0;
        while closed.run_until_cancelled(ticks.tick()).await.is_some() {
            // After a pause the shop catches up on at most one second.
            owed = (owed + last.elapsed().as_secs_f64() * f64::from(rate)).min(f64::from(rate).max(1.0));
            last = Instant::now();
            if owed < 1.0 {
                continue;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and the rate")]
            let batch = owed as usize;
            owed -= batch as f64;
            if let Err(error) = self.write(batch).await {
                output::try_print(format_args!("shop: failed to insert events ({error:#}); retrying\n"));
                closed.run_until_cancelled(tokio::time::sleep(RETRY_DELAY)).await;
            }
        }
    }

    async fn write(&mut self, batch: usize) -> anyhow::Result<()> {
        let mut state = self.state.clone();
        let events: Vec<_> = (0..batch).map(|_| state.next(&mut self.rng, DateTime::now())).collect();
        let inserted = self.events.insert_many(&events).write_concern(WriteConcern::majority()).await;
        if let Err(error) = inserted {
            // Some of them may be stored: read the state from the source.
            if let (Ok(state), Ok(written)) = (load_state(&self.events).await, count(&self.events).await) {
                self.state = state;
                self.written.send_replace(written);
            }
            return Err(failed("failed to insert events")(error));
        }
        self.state = state;
        self.written.send_modify(|written| *written += batch as u64);
        Ok(())
    }
}

async fn count(events: &Collection<Document>) -> anyhow::Result<u64> {
    events.count_documents(doc! {}).await.map_err(failed("failed to count the events of the shop"))
}

async fn load_state(events: &Collection<Document>) -> anyhow::Result<ShopState> {
    let failed = failed("failed to read the last orders");
    let mut state = ShopState::default();
    let last = events.find_one(doc! {}).sort(doc! { "aggregateId": -1 }).await.map_err(&failed)?;
    let Some(last) = last else { return Ok(state) };
    state.replay(&last);
    let from = format!("order-{:08}", state.next.saturating_sub(LAST_ORDERS));
    state = ShopState::default();
    let sorted = events.find(doc! { "aggregateId": { "$gte": from } }).sort(doc! { "aggregateId": 1, "version": 1 });
    let mut found = sorted.await.map_err(&failed)?;
    while found.advance().await.map_err(&failed)? {
        state.replay(&found.deserialize_current().map_err(&failed)?);
    }
    Ok(state)
}

fn failed(doing: &'static str) -> impl Fn(mongodb::error::Error) -> anyhow::Error {
    move |error| anyhow::Error::new(DriverError::from(error)).context(doing)
}
