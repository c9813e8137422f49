//! The check that nothing was lost: every read model beside a fold of every event the source holds.
//!
//! Orders are walked in the order of their ids on both sides, so that only the totals are held in memory.

use std::fmt;

use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Cursor, Database};

use super::fold::{self, Order, Plain, Totals, View};

/// How the comparison ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) events: u64,
    pub(crate) orders: u64,
    pub(crate) documents: u64,
    /// By read model: documents that are missing, too many, or other than they should be.
    pub(crate) wrong: Vec<(&'static str, u64)>,
}

impl Verdict {
    pub(crate) fn nothing_was_lost(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, orders, documents, wrong } = self;
        if wrong.is_empty() {
            return write!(
                f,
                "nothing was lost: {events} events of {orders} orders, and all {documents} documents of the 5 read \
                 models are what a fold of the events says"
            );
        }
        let wrong: Vec<_> = wrong.iter().map(|(model, count)| format!("{count} in `{model}`")).collect();
        write!(f, "read models differ from a fold of the {events} events: documents {}", wrong.join(", "))
    }
}

pub(crate) async fn verify(events: &Collection<Document>, views: &Database) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut totals = Totals::default();
    let mut summaries = Stored::open(views, "order_summary").await?;
    let mut opens = Stored::open(views, "open_orders").await?;
    let sorted = read(events).sort(doc! { "aggregateId": 1, "version": 1 });
    let mut found = sorted.batch_size(1_000).await.map_err(failed("read the events"))?;
    let mut order: Option<(String, Order)> = None;
    while found.advance().await.map_err(failed("read the events"))? {
        let event = found.deserialize_current().map_err(failed("read the events"))?;
        verdict.events += 1;
        let id = event.get_str("aggregateId").unwrap_or_default();
        if order.as_ref().is_some_and(|(open, _)| open != id) {
            settle(order.take(), &mut summaries, &mut opens).await?;
        }
        let (_, folded) = order.get_or_insert_with(|| {
            verdict.orders += 1;
            (id.to_owned(), Order::default())
        });
        folded.apply(&event, &mut totals);
    }
    settle(order, &mut summaries, &mut opens).await?;
    for mut stored in [summaries, opens] {
        stored.finish().await?;
        verdict.take(&stored);
    }
    for (name, view) in [("customers", totals.customers), ("products", totals.products), ("sales_by_day", totals.days)]
    {
        let mut stored = Stored::open(views, name).await?;
        stored.expect_all(view).await?;
        verdict.take(&stored);
    }
    Ok(verdict)
}

impl Verdict {
    fn take(&mut self, stored: &Stored) {
        self.documents += stored.seen;
        if stored.wrong > 0 {
            self.wrong.push((stored.name, stored.wrong));
        }
    }
}

async fn settle(order: Option<(String, Order)>, summaries: &mut Stored, opens: &mut Stored) -> anyhow::Result<()> {
    let Some((id, Order { summary, open })) = order else { return Ok(()) };
    summaries.expect(&id, summary).await?;
    opens.expect(&id, open).await
}

/// A read model as it is stored, walked in the order of its keys.
struct Stored {
    name: &'static str,
    cursor: Cursor<Document>,
    next: Option<(String, Plain)>,
    seen: u64,
    wrong: u64,
}

impl Stored {
    async fn open(views: &Database, name: &'static str) -> anyhow::Result<Self> {
        let collection = views.collection::<Document>(name);
        let cursor = read(&collection).sort(doc! { "_id": 1 }).await.map_err(failed("read a read model"))?;
        let mut stored = Self { name, cursor, next: None, seen: 0, wrong: 0 };
        stored.advance().await?;
        Ok(stored)
    }

    async fn advance(&mut self) -> anyhow::Result<()> {
        self.next = None;
        if self.cursor.advance().await.map_err(failed("read a read model"))? {
            let document = self.cursor.deserialize_current().map_err(failed("read a read model"))?;
            self.seen += 1;
            let id = document.get("_id").and_then(Bson::as_str).unwrap_or_default().to_owned();
            self.next = Some((id, fold::plain(document)));
        }
        Ok(())
    }

    /// To be asked in the order of the keys.
    async fn expect(&mut self, id: &str, expected: Option<Plain>) -> anyhow::Result<()> {
        while self.next.as_ref().is_some_and(|(stored, _)| stored.as_str() < id) {
            self.wrong += 1;
            self.advance().await?;
        }
        let found = self.next.take_if(|(stored, _)| stored == id);
        self.wrong += u64::from(found.as_ref().map(|(_, document)| document) != expected.as_ref());
        if found.is_some() {
            self.advance().await?;
        }
        Ok(())
    }

    async fn expect_all(&mut self, view: View) -> anyhow::Result<()> {
        for (key, document) in view {
            self.expect(&key, Some(document)).await?;
        }
        self.finish().await
    }

    /// What is left should not be there.
    async fn finish(&mut self) -> anyhow::Result<()> {
        while self.next.is_some() {
            self.wrong += 1;
            self.advance().await?;
        }
        Ok(())
    }
}

/// All of it, as a majority of the servers has it.
fn read(collection: &Collection<Document>) -> mongodb::action::Find<'_, Document> {
    let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
    collection.find(doc! {}).read_concern(ReadConcern::majority()).selection_criteria(primary).allow_disk_use(true)
}

fn failed(doing: &'static str) -> impl Fn(mongodb::error::Error) -> anyhow::Error {
    move |error| anyhow::Error::new(DriverError::from(error)).context(doing)
}
