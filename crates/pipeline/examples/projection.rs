//! A read model written in Rust: sales by day and product.
//!
//! `cargo run -p pipeline --example projection` starts a MongoDB of its own, applies a few events, some of them twice, and prints what the
//! read model holds then. In a program of yours the events come from the bus, and everything else is as here.

use std::sync::Arc;

use futures_util::TryStreamExt;
use mongodb::bson::{DateTime, Document, RawDocumentBuf, doc};
use pipeline::event::{AggregateId, Epoch, Namespace, Operation, Term};
use pipeline::view::{
    Applier, ApplierSetup, Config, DeliveredEvent, EventBody, Index, ModelSet, OrderingMode, PipelineStart,
    PositionKey, Projection, ProjectionError, ProjectionEvent, Statements, prepare,
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// One document for each day and product.
struct Sales;

/// What we read of an event.
#[derive(Deserialize)]
struct ItemSold {
    product: String,
    price: i64,
    at: DateTime,
}

impl Projection for Sales {
    fn name(&self) -> &str {
        "sales"
    }

    fn indexes(&self) -> Vec<Index> {
        vec![Index { collection: "sales".into(), keys: doc! { "revenue": -1 }, options: doc! {} }]
    }

    fn handles(&self, event: &DeliveredEvent) -> bool {
        event.event_type.as_deref() == Some("ItemSold")
    }

    fn apply(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError> {
        let sold: ItemSold = event.read()?;
        let text = sold.at.try_to_rfc3339_string().map_err(|_| ProjectionError::new("the date is out of range"))?;
        let key = doc! { "day": &text[..10], "product": sold.product };
        writes.update("sales", key, doc! { "$inc": { "count": 1, "revenue": sold.price } })?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shared = testkit::mongo::shared().await?;
    let views = shared.database("projection_example");

    let models: Vec<Arc<dyn Projection>> = vec![Arc::new(Sales)];
    prepare(&views, &models).await?;
    let applier = Applier::new(ApplierSetup {
        config: Config::default(),
        database: (*views).clone(),
        pipeline: "shop".into(),
        mode: OrderingMode::Sequence { start: PipelineStart::Beginning, first: 1, filtered: false },
        by_collection: false,
        models: ModelSet::fixed(models),
        history: None,
    })?;
    let (handle, stop) = (applier.handle(), CancellationToken::new());
    let running = tokio::spawn(applier.run(stop.clone()));

    let events: Vec<DeliveredEvent> = (1..=6).map(sold).collect();
    let mut session = handle.session_applier();
    let applied = session.apply(events.clone()).await;
    println!("first delivery:  {:?}", applied.outcomes);
    let applied = session.apply(events).await;
    println!("second delivery: {:?}", applied.outcomes);

    let found = views.collection::<Document>("sales").find(doc! {}).sort(doc! { "_id": 1 }).await?;
    for sales in found.try_collect::<Vec<_>>().await? {
        println!("{sales}");
    }
    stop.cancel();
    running.await?;
    Ok(())
}

/// The shop sells coffee and tea in turn.
fn sold(number: i64) -> DeliveredEvent {
    let product = if number % 2 == 0 { "tea" } else { "coffee" };
    let at = DateTime::from_millis(1_794_700_800_000 + number * 20_000_000);
    let document = doc! { "product": product, "price": 3 + number % 2, "at": at };
    DeliveredEvent {
        message_id: format!("message-{number}"),
        operation: Operation::Insert,
        namespace: Arc::new(Namespace::new("shop", "events")),
        aggregate: AggregateId::new("till-1".into()).expect("a till has a name"),
        key: number.into(),
        event_type: Some("ItemSold".into()),
        sequence: Some(number),
        position: Some(PositionKey::new(Epoch::FIRST, format!("82{number:08}"))),
        term: Term::new(1),
        body: EventBody::Document(RawDocumentBuf::try_from(&document).expect("it has no zero byte in a name")),
        committed: Some(at),
        delivery_count: 0,
        dead_lettered: false,
        trace: None,
    }
}
