//! The read models of a soak, and their expected content: a fold over the stored events in plain Rust, without code of `pipeline`.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};
use testkit::checker::{Checker, ObservedEvent};

/// Lists every event applied to it.
pub const HISTORY: &str = "history";
/// One aggregate of it can be poisoned.
pub const TOTALS: &str = "totals";
const CHAIN: &str = "chain";
const CUSTOMERS: &str = "customers";
const OPEN: &str = "open_orders";

const TYPES: [&str; 4] = ["OrderPlaced", "ItemAdded", "PaymentTaken", "OrderShipped"];

/// The read models for `read_models:`, by name. JSON is also YAML.
pub fn declarations(with_history: bool) -> Vec<(&'static str, serde_json::Value)> {
    use serde_json::json;
    let always = |clause: serde_json::Value| TYPES.iter().map(|name| ((*name).to_owned(), clause.clone())).collect();
    let when = |clause: serde_json::Value| -> serde_json::Map<String, serde_json::Value> { always(clause) };
    // One of each kind: an update document, an aggregation pipeline, a foreign key, deletes.
    let totals =
        json!({ "$inc": { "events": 1, "total": "$$event.payload.price" }, "$set": { "last": "$$event.version" } });
    let next = json!({ "$eq": [ "$$event.version", { "$add": [ { "$ifNull": [ "$last", 0 ] }, 1 ] } ] });
    let breaks = json!({ "$add": [ { "$ifNull": [ "$breaks", 0 ] }, { "$cond": [ next, 0, 1 ] } ] });
    let chain = json!([ { "$set": { "breaks": breaks, "last": "$$event.version" } } ]);
    let customers = json!({ "$inc": { "events": 1, "spent": "$$event.payload.price" } });
    let mut open = when(json!({ "$inc": { "touched": 1 }, "$set": { "type": "$$event.type" } }));
    open.insert("OrderShipped".into(), json!("delete"));
    let mut models = vec![
        (TOTALS, json!({ "when": when(totals) })),
        (CHAIN, json!({ "when": when(chain) })),
        (CUSTOMERS, json!({ "key": "$$event.payload.customer", "when": when(customers) })),
        (OPEN, json!({ "when": open })),
    ];
    if with_history {
        let push = json!({ "$push": { "applied": { "s": "$$event.version", "e": "$$event._id" } } });
        models.push((HISTORY, json!({ "when": when(push) })));
    }
    models
}

/// The expected documents of every read model but the history.
pub type ExpectedModels = BTreeMap<&'static str, BTreeMap<String, BTreeMap<String, Bson>>>;

/// Folds all events of the source.
pub async fn fold(events: &Collection<Document>) -> Result<ExpectedModels, mongodb::error::Error> {
    let mut expected: ExpectedModels =
        [TOTALS, CHAIN, CUSTOMERS, OPEN].into_iter().map(|model| (model, BTreeMap::new())).collect();
    let mut found = events
        .find(doc! {})
        .sort(doc! { "aggregateId": 1, "version": 1 })
        .read_concern(ReadConcern::majority())
        .projection(doc! { "payload.text": 0 })
        .await?;
    while let Some(event) = found.try_next().await? {
        apply(&mut expected, &event);
    }
    Ok(expected)
}

fn apply(expected: &mut ExpectedModels, event: &Document) {
    let aggregate = event.get_str("aggregateId").expect("every event has one");
    let version = event.get_i64("version").expect("every event has one");
    let kind = event.get_str("type").expect("every event has one");
    let payload = event.get_document("payload").expect("every event has one");
    let price = payload.get_i32("price").expect("every payload has one");
    let customer = payload.get_str("customer").expect("every payload has one");
    let mut update = |model: &'static str, key: &str, change: &dyn Fn(&mut BTreeMap<String, Bson>)| {
        change(expected.get_mut(model).expect("made at the start").entry(key.to_owned()).or_default());
    };
    update(TOTALS, aggregate, &|document| {
        add(document, "events", 1);
        add(document, "total", price);
        document.insert("last".into(), version.into());
    });
    update(CHAIN, aggregate, &|document| {
        document.insert("last".into(), version.into());
        document.insert("breaks".into(), 0.into());
    });
    update(CUSTOMERS, customer, &|document| {
        add(document, "events", 1);
        add(document, "spent", price);
    });
    if kind == "OrderShipped" {
        expected.get_mut(OPEN).expect("made at the start").remove(aggregate);
    } else {
        update(OPEN, aggregate, &|document| {
            add(document, "touched", 1);
            document.insert("type".into(), kind.into());
        });
    }
}

fn add(document: &mut BTreeMap<String, Bson>, field: &str, amount: i32) {
    let sum = document.get(field).and_then(Bson::as_i32).unwrap_or(0) + amount;
    document.insert(field.to_owned(), sum.into());
}

/// The differences between stored and expected read models, one line each; the first few of each model.
pub async fn differences(views: &Database, expected: &ExpectedModels) -> Result<Vec<String>, mongodb::error::Error> {
    let mut lines = vec![];
    for (model, documents) in expected {
        let mut stored = read(views, model).await?;
        let mut wrong = vec![];
        for (key, wanted) in documents {
            match stored.remove(key) {
                Some(found) if found == *wanted => {}
                found => {
                    let kind = kind_of_difference(found.as_ref(), wanted);
                    wrong.push(format!("{model} {key}: {kind}: {found:?}, expected {wanted:?}"));
                }
            }
        }
        wrong.extend(stored.into_keys().map(|key| format!("{model} {key}: extra document")));
        if wrong.len() > 5 {
            let more = wrong.len() - 5;
            wrong.truncate(5);
            wrong.push(format!("{model}: and {more} more"));
        }
        lines.extend(wrong);
    }
    Ok(lines)
}

/// By the number of events in the document, where it counts them.
fn kind_of_difference(found: Option<&BTreeMap<String, Bson>>, wanted: &BTreeMap<String, Bson>) -> &'static str {
    let Some(found) = found else { return "missing document" };
    let events = |document: &BTreeMap<String, Bson>| {
        let count = ["events", "touched"].iter().find_map(|field| document.get(*field));
        count.and_then(to_u64)
    };
    match (events(found), events(wanted)) {
        (Some(found), Some(wanted)) if found < wanted => "lost events",
        (Some(found), Some(wanted)) if found > wanted => "doubled events",
        _ if !found.keys().eq(wanted.keys()) => "fields of another definition",
        _ => "different values",
    }
}

type StoredDocuments = BTreeMap<String, BTreeMap<String, Bson>>;

async fn read(views: &Database, model: &str) -> Result<StoredDocuments, mongodb::error::Error> {
    let collection = views.collection::<Document>(model);
    let mut found = collection.find(doc! {}).read_concern(ReadConcern::majority()).await?;
    let mut stored = StoredDocuments::new();
    while let Some(mut document) = found.try_next().await? {
        let key = document.remove("_id").map_or(String::new(), |id| id.as_str().map_or(id.to_string(), str::to_owned));
        stored.insert(key, document.into_iter().collect());
    }
    Ok(stored)
}

/// The number of events of each type.
pub async fn count_by_type(events: &Collection<Document>) -> Result<BTreeMap<String, i32>, mongodb::error::Error> {
    let counted = doc! { "$group": { "_id": "$type", "events": { "$sum": 1 } } };
    let mut found = events.aggregate([counted]).await?;
    let mut counts = BTreeMap::new();
    while let Some(count) = found.try_next().await? {
        counts.insert(count.get_str("_id").unwrap_or_default().to_owned(), count.get_i32("events").unwrap_or(0));
    }
    Ok(counts)
}

/// Records the applied events of the history model in the checker, in order.
pub async fn record_history(views: &Database, checker: &Checker) -> Result<(), mongodb::error::Error> {
    let history = views.collection::<Document>(HISTORY);
    let mut found = history.find(doc! {}).read_concern(ReadConcern::majority()).await?;
    while let Some(document) = found.try_next().await? {
        let aggregate = document.get_str("_id").unwrap_or_default();
        for entry in document.get_array("applied").map(Vec::as_slice).unwrap_or_default() {
            let entry = entry.as_document();
            let sequence = entry.and_then(|entry| entry.get_i64("s").ok()).unwrap_or(0);
            let event = entry.and_then(|entry| entry.get_object_id("e").ok());
            checker.record_observed(&ObservedEvent { event, ..ObservedEvent::new(aggregate, sequence) });
        }
    }
    Ok(())
}

/// The number of applied events, by the customers model.
pub async fn applied(views: &Database) -> Result<u64, mongodb::error::Error> {
    let sum = doc! { "$group": { "_id": null, "applied": { "$sum": "$events" } } };
    let mut found = views.collection::<Document>(CUSTOMERS).aggregate([sum]).await?;
    let total = found.try_next().await?.and_then(|total| total.get("applied").and_then(to_u64));
    Ok(total.unwrap_or(0))
}

fn to_u64(number: &Bson) -> Option<u64> {
    number.as_i64().or_else(|| number.as_i32().map(i64::from)).and_then(|number| u64::try_from(number).ok())
}
