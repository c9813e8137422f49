//! A build folds in memory what it can; the documents are the same, byte by byte, as those that the server makes of live events.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Decimal128, Document, RawDocumentBuf, Regex, Timestamp, doc, oid::ObjectId};
use pipeline::generation::{Generation, GenerationStage, ModelVersion};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::fixture::{ViewFixture, all_delivered, event};
use crate::generations::{build, built_collection, events_source, pod, version};

const AGGREGATES: u32 = 150;
const SEED: u64 = 16;

/// Every operator that is folded in memory, and some that are not.
fn operators() -> Value {
    json!({ "when": {
        "Counted": {
            "$inc": { "n": "$$event.payload.v", "a.b": 1, "Z": 1, "count": 1 },
            "$set": { "last": "$$event.version", "é": 1, "a1": "$$event.payload.x", "a-b": true },
        },
        "Listed": { "$push": { "list": "$$event.payload.x" }, "$unset": { "a1": "", "no.such": "" } },
        "Listed2": { "$push": { "list": { "$each": [1, "$$event.payload.x"] } }, "$set": { "10x": 1, "x10": 2 } },
        "Bounded": {
            "$max": { "high": "$$event.payload.v" }, "$min": { "low": "$$event.payload.v" },
            "$setOnInsert": { "born": "$$event.version" },
        },
        "Tagged": { "$addToSet": { "tags": "$$event.payload.x" }, "$set": { "a.c.d": "$$event.payload.x" } },
        "Nested": { "$set": { "deep": { "x": "$$event.payload.x", "v": ["$$event.payload.v", 2] } }, "$inc": { "deep2.n": 1 } },
        "Sliced": { "$push": { "list": { "$each": ["$$event.payload.v"], "$slice": -3 } } },
        "Computed": [{ "$set": { "twice": { "$add": [{ "$ifNull": ["$count", 0] }, 1] } } }],
        "Removed": "delete",
    } })
}

fn random_value(random: &mut StdRng) -> Option<Bson> {
    Some(match random.random_range(0..22) {
        0 => return None,
        1 => Bson::Null,
        2 => Bson::Int32(i32::MAX),
        3 => Bson::Int64(i64::from(i32::MAX) + 5),
        4 => Bson::Double(0.1),
        5 => Bson::Double(1.0),
        6 => Bson::String("$total".to_owned()),
        7 => Bson::Document(doc! { "k": 1, "j": [1, { "z": 2 }] }),
        8 => Bson::Document(doc! { "$k": 1 }),
        9 => Bson::Document(doc! { "a.b": 1 }),
        10 => Bson::Array(vec![1.into(), Bson::Double(1.0), "x".into()]),
        11 => Bson::DateTime(DateTime::from_millis(random.random_range(0..10_000))),
        12 => Bson::Decimal128("1.50".parse::<Decimal128>().unwrap()),
        13 => Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
        14 => Bson::RegularExpression(Regex { pattern: "a".try_into().unwrap(), options: "i".try_into().unwrap() }),
        15 => Bson::ObjectId(ObjectId::from_bytes([7; 12])),
        16 => Bson::Boolean(true),
        17 => Bson::Document(doc! { "$each": [1] }),
        _ => Bson::Int32(random.random_range(-3..4)),
    })
}

/// Mostly numbers: an event that the server refuses parks its aggregate, and the rest of it says nothing.
fn random_number(random: &mut StdRng) -> Option<Bson> {
    match random.random_range(0..10) {
        0 => random_value(random),
        1 => Some(Bson::Int32(i32::MAX)),
        2 => Some(Bson::Int64(4)),
        3 => Some(Bson::Double(0.5)),
        _ => Some(Bson::Int32(random.random_range(-9..9))),
    }
}

fn history(number: u32, random: &mut StdRng) -> Vec<Document> {
    let common = ["Counted", "Listed", "Listed2", "Bounded", "Tagged", "Nested"];
    // Most aggregates have nothing that only the server can fold.
    let kinds: Vec<&str> = match number % 5 {
        0 => common.into_iter().chain(["Sliced", "Computed", "Removed", "Ignored"]).collect(),
        1 => common.into_iter().chain(["Removed"]).collect(),
        2 => vec!["Counted", "Bounded", "Removed", "Ignored"],
        _ => common.to_vec(),
    };
    let events = random.random_range(1..14);
    let make = |version: i64| {
        let mut payload = Document::new();
        if let Some(value) = random_number(random) {
            payload.insert("v", value);
        }
        if let Some(value) = random_value(random) {
            payload.insert("x", value);
        }
        event(&format!("order-{number:03}"), version, kinds[random.random_range(0..kinds.len())], payload)
    };
    (1..=events).map(make).collect()
}

async fn raw_contents(fixture: &ViewFixture, name: &str) -> Vec<RawDocumentBuf> {
    let collection = fixture.views.collection::<RawDocumentBuf>(name);
    collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap()
}

#[tokio::test]
async fn a_build_gives_the_documents_that_live_events_give() {
    let fixture = ViewFixture::new("memory_fold", json!({ "live": operators() })).await;
    let live = Generation::first([("live".to_owned(), version("live", &operators()))].into());
    let mut random = StdRng::seed_from_u64(SEED);
    let histories: Vec<_> = (0..AGGREGATES).map(|number| history(number, &mut random)).collect();
    let applier = pod(&fixture, live.model_set().unwrap());
    for events in &histories {
        fixture.write_source(events).await;
        applier.apply(all_delivered(events)).await;
    }
    let mut next = live.serving.clone();
    let declaration = serde_json::from_value(operators()).unwrap();
    next.insert("built".to_owned(), ModelVersion::to_build("built", declaration, "2".to_owned(), 2));
    let building = Generation { number: 2, stage: GenerationStage::Building, next, ..live };
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!(totals.missing_count, 0);

    let (expected, built) =
        (raw_contents(&fixture, "live").await, raw_contents(&fixture, &built_collection(&building)).await);
    assert!(expected.len() > AGGREGATES as usize / 2, "{} documents", expected.len());
    for (expected, built) in expected.iter().zip(&built) {
        assert_eq!(expected, built, "{:?}\n{:?}", Document::try_from(&**expected), Document::try_from(&**built));
    }
    assert_eq!(expected.len(), built.len());
    // What the server refuses is parked in both.
    let parked = |name: &str| doc! { format!("parked.{name}"): { "$exists": true } };
    let cursors = fixture.views.collection::<Document>(pipeline::view::CURSORS);
    let both = doc! { "parked.live": { "$exists": true }, "parked.built@2": { "$exists": true } };
    let count = async |filter: Document| cursors.count_documents(filter).await.unwrap();
    let parked_live = count(parked("live")).await;
    assert_eq!((count(parked("built@2")).await, count(both).await), (parked_live, parked_live));
}

#[tokio::test]
async fn a_large_set_is_folded_as_the_server_does() {
    const EVENTS: i64 = 2_000;
    let tags = json!({ "when": {
        "Tagged": { "$addToSet": { "tags": { "$each": "$$event.payload.tags" } } },
        "Listed": { "$push": { "tags": "$$event.payload.tag" } },
    } });
    let fixture = ViewFixture::new("memory_fold_set", json!({})).await;
    let live = Generation::first([].into());
    // 20,000 numbers, and every second one is known. Lists that another operator changes are sets of what they have then.
    let added = |version: i64| -> Vec<Bson> {
        let numbers = (0..20).map(|number| Bson::Int64((version * 10 + number) % 20_000));
        numbers.chain([Bson::Double(3.0), Bson::Document(doc! { "n": version % 3 })]).collect()
    };
    let change = |version: i64| match version % 500 {
        // A later event adds it again, and must find it.
        7 => event("order-1", version, "Listed", doc! { "tag": version * 10 + 300 }),
        _ => event("order-1", version, "Tagged", doc! { "tags": added(version) }),
    };
    let events: Vec<Document> = (1..=EVENTS).map(change).collect();
    fixture.write_source(&events).await;
    let applier = pod(&fixture, live.model_set().unwrap());
    applier.apply(all_delivered(&events)).await;
    let declaration = serde_json::from_value(tags).unwrap();
    let next = [("tags".to_owned(), ModelVersion::to_build("tags", declaration, "1".to_owned(), 2))].into();
    let building = Generation { number: 2, stage: GenerationStage::Building, next, ..live };
    let totals = build(&fixture, events_source(), &building).await;
    assert_eq!((totals.missing_count, totals.events), (0, EVENTS as u64));

    let expected = fixture.views.collection::<Document>("expected");
    let mut batch = vec![];
    let id = doc! { "_id": "order-1" };
    for event in &events {
        let payload = event.get_document("payload").unwrap();
        match payload.get("tag") {
            None => batch.extend(payload.get_array("tags").unwrap().clone()),
            Some(tag) => {
                let set = doc! { "$addToSet": { "tags": { "$each": std::mem::take(&mut batch) } } };
                expected.update_one(id.clone(), set).upsert(true).await.unwrap();
                expected.update_one(id.clone(), doc! { "$push": { "tags": tag } }).await.unwrap();
            }
        }
    }
    expected.update_one(id, doc! { "$addToSet": { "tags": { "$each": batch } } }).await.unwrap();
    let (expected, built) =
        (raw_contents(&fixture, "expected").await, raw_contents(&fixture, &built_collection(&building)).await);
    assert_eq!(expected.len(), 1);
    assert!(expected == built, "{} bytes, {} bytes", expected[0].as_bytes().len(), built[0].as_bytes().len());
}
