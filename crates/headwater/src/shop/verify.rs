//! The final check: compares every read model with a fold of all events in the source.
//!
//! Both sides are read in the order of their ids, so that only the totals are in memory.

use std::fmt;

use mongo_error::DriverError;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Cursor, Database};

use super::fold::{self, ExpectedOrder, ExpectedTotals, ExpectedView, NormalizedDocument};

/// The result of the comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ShopCheckResult {
    pub(crate) events: u64,
    pub(crate) orders: u64,
    pub(crate) documents: u64,
    /// Per read model: documents that are missing, unexpected or different.
    pub(crate) wrong: Vec<(&'static str, u64)>,
}

impl ShopCheckResult {
    pub(crate) fn is_clean(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for ShopCheckResult {
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

pub(crate) async fn verify(events: &Collection<Document>, views: &Database) -> anyhow::Result<ShopCheckResult> {
    let mut result = ShopCheckResult::default();
    let mut totals = ExpectedTotals::default();
    let mut summaries = StoredModelReader::open(views, "order_summary").await?;
    let mut opens = StoredModelReader::open(views, "open_orders").await?;
    let sorted = read(events).sort(doc! { "aggregateId": 1, "version": 1 });
    let mut found = sorted.batch_size(1_000).await.map_err(failed("failed to read the events"))?;
    let mut order: Option<(String, ExpectedOrder)> = None;
    while found.advance().await.map_err(failed("failed to read the events"))? {
        let event = found.deserialize_current().map_err(failed("failed to read the events"))?;
        result.events += 1;
        let id = event.get_str("aggregateId").unwrap_or_default();
        if order.as_ref().is_some_and(|(open, _)| open != id) {
            compare_order(order.take(), &mut summaries, &mut opens).await?;
        }
        let (_, folded) = order.get_or_insert_with(|| {
            result.orders += 1;
            (id.to_owned(), ExpectedOrder::default())
        });
        folded.apply(&event, &mut totals);
    }
    compare_order(order, &mut summaries, &mut opens).await?;
    for mut stored in [summaries, opens] {
        stored.finish().await?;
        result.add_model(&stored);
    }
    for (name, view) in [("customers", totals.customers), ("products", totals.products), ("sales_by_day", totals.days)]
    {
        let mut stored = StoredModelReader::open(views, name).await?;
        stored.expect_all(view).await?;
        result.add_model(&stored);
    }
    Ok(result)
}

impl ShopCheckResult {
    fn add_model(&mut self, stored: &StoredModelReader) {
        self.documents += stored.seen;
        if stored.wrong > 0 {
            self.wrong.push((stored.name, stored.wrong));
        }
    }
}

async fn compare_order(
    order: Option<(String, ExpectedOrder)>,
    summaries: &mut StoredModelReader,
    opens: &mut StoredModelReader,
) -> anyhow::Result<()> {
    let Some((id, ExpectedOrder { summary, open })) = order else { return Ok(()) };
    summaries.expect(&id, summary).await?;
    opens.expect(&id, open).await
}

/// A stored read model, read in the order of its keys.
struct StoredModelReader {
    name: &'static str,
    cursor: Cursor<Document>,
    next: Option<(String, NormalizedDocument)>,
    seen: u64,
    wrong: u64,
}

impl StoredModelReader {
    async fn open(views: &Database, name: &'static str) -> anyhow::Result<Self> {
        let collection = views.collection::<Document>(name);
        let cursor = read(&collection).sort(doc! { "_id": 1 }).await.map_err(failed("failed to read a read model"))?;
        let mut stored = Self { name, cursor, next: None, seen: 0, wrong: 0 };
        stored.advance().await?;
        Ok(stored)
    }

    async fn advance(&mut self) -> anyhow::Result<()> {
        self.next = None;
        if self.cursor.advance().await.map_err(failed("failed to read a read model"))? {
            let document = self.cursor.deserialize_current().map_err(failed("failed to read a read model"))?;
            self.seen += 1;
            let id = document.get("_id").and_then(Bson::as_str).unwrap_or_default().to_owned();
            self.next = Some((id, fold::normalize(document)));
        }
        Ok(())
    }

    /// Must be called in the order of the keys.
    async fn expect(&mut self, id: &str, expected: Option<NormalizedDocument>) -> anyhow::Result<()> {
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

    async fn expect_all(&mut self, view: ExpectedView) -> anyhow::Result<()> {
        for (key, document) in view {
            self.expect(&key, Some(document)).await?;
        }
        self.finish().await
    }

    /// Counts the remaining documents as wrong.
    async fn finish(&mut self) -> anyhow::Result<()> {
        while self.next.is_some() {
            self.wrong += 1;
            self.advance().await?;
        }
        Ok(())
    }
}

/// The whole collection, with majority read concern.
fn read(collection: &Collection<Document>) -> mongodb::action::Find<'_, Document> {
    let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
    collection.find(doc! {}).read_concern(ReadConcern::majority()).selection_criteria(primary).allow_disk_use(true)
}

fn failed(doing: &'static str) -> impl Fn(mongodb::error::Error) -> anyhow::Error {
    move |error| anyhow::Error::new(DriverError::from(error)).context(doing)
}
