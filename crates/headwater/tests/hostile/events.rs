//! Events that anyone with the right to write to the source may store.

use mongodb::bson::{Binary, Bson, DateTime, Document, Regex, doc, spec::BinarySubtype};

use testkit::cluster::TestCluster;
use testkit::wait::wait_for;

use crate::processes::{
    SOON, assert_events_are_still_applied, describe_cursor, find_cursor, pod_memory, start_pod, views,
};
use crate::table::HostileTable;

/// All orders also write one document, which an injected operator could empty.
const READ_MODELS: &str = "consumer: { gap_timeout: 500ms }
read_models:
  orders: { when: { Added: { $push: { lines: $$event.payload.line } }, Removed: { $pull: { lines: { sku: $$event.payload.line } } } } }
  shared: { key: $$event.payload.shop, when: { Added: { $addToSet: { lines: $$event.payload.line } }, Removed: { $pull: { lines: $$event.payload.line } } } }
";

fn regex(pattern: &str) -> Bson {
    Bson::RegularExpression(Regex { pattern: pattern.try_into().unwrap(), options: "".try_into().unwrap() })
}

fn deep(levels: usize) -> Bson {
    (0..levels).fold(Bson::from(1), |inner, _| doc! { "a": inner }.into())
}

/// Values of a line that an operator could read as something else.
fn values() -> Vec<(String, Bson)> {
    let documents = [
        doc! { "$exists": true },
        doc! { "$each": [], "$slice": 0 },
        doc! { "$each": [1, 2] },
        doc! { "$gt": Bson::MinKey },
        doc! { "$ne": 0 },
        doc! { "$nin": [] },
        doc! { "$regex": ".*" },
        doc! { "$or": [{}] },
        doc! { "$expr": true },
        doc! { "$where": "true" },
        doc! { "$elemMatch": {} },
        doc! { "$ref": "a", "$id": 1 },
        doc! { "a.b": 1 },
        doc! { "": 1 },
        doc! { "_id": 1 },
        doc! {},
    ];
    let mut values: Vec<_> = documents.into_iter().map(|it| (it.to_string().replace('|', "/"), it.into())).collect();
    values.extend([
        ("a regular expression".to_owned(), regex(".*")),
        ("60 levels".to_owned(), deep(60)),
        ("90 levels".to_owned(), deep(90)),
        ("1 MB of text".to_owned(), "x".repeat(1 << 20).into()),
        (
            "20,000 fields".to_owned(),
            (0..20_000).map(|at| (format!("f{at}"), Bson::from(at))).collect::<Document>().into(),
        ),
        ("text like a variable".to_owned(), "$$ROOT".into()),
        ("the lowest key".to_owned(), Bson::MinKey),
        ("the highest key".to_owned(), Bson::MaxKey),
        ("NaN".to_owned(), f64::NAN.into()),
        ("code".to_owned(), Bson::JavaScriptCode("while(true);".into())),
        ("a date before time".to_owned(), DateTime::from_millis(i64::MIN).into()),
        ("bytes".to_owned(), Binary { subtype: BinarySubtype::UserDefined(0x99), bytes: vec![0; 100] }.into()),
    ]);
    values
}

#[tokio::test]
async fn hostile_events_change_only_their_own_documents() {
    let cluster = start_pod(READ_MODELS).await;
    let events = cluster.events();
    let victim = doc! { "aggregateId": "victim", "version": 1_i64, "type": "Added", "payload": { "shop": "main", "line": "map" } };
    events.insert_one(victim).await.unwrap();
    for (number, (_, value)) in values().into_iter().enumerate() {
        for (version, kind) in [(1_i64, "Added"), (2, "Removed")] {
            let event = doc! { "aggregateId": aggregate_of(number), "version": version, "type": kind, "payload": { "shop": "main", "line": value.clone() } };
            events.insert_one(event).await.unwrap();
        }
    }
    let mut refused = vec![];
    for (number, (_, event)) in odd_events().into_iter().enumerate() {
        // The server itself may refuse one.
        refused.push(events.insert_one(with_id(number, event)).await.is_err());
    }
    assert_events_are_still_applied(&cluster).await;

    let mut table = HostileTable::new("events");
    for (number, (name, value)) in values().into_iter().enumerate() {
        let [added, removed] = describe_values(&cluster, number, &value).await;
        table.record(&format!("added: {name}"), added);
        table.record(&format!("removed: {name}"), removed);
    }
    for (number, (name, event)) in odd_events().into_iter().enumerate() {
        let result = if refused[number] {
            "refused by MongoDB".to_owned()
        } else {
            describe_odd(&cluster, number, &event).await
        };
        table.record(&name, Ok(result));
    }
    let views = views(&cluster);
    let main = views.collection::<Document>("shared").find_one(doc! { "_id": "main" }).await.unwrap().unwrap();
    assert!(main.get_array("lines").unwrap().contains(&"map".into()), "the line of the victim is gone");
    let victim = views.collection::<Document>("orders").find_one(doc! { "_id": "victim" }).await.unwrap().unwrap();
    assert_eq!(victim, doc! { "_id": "victim", "lines": ["map"] });
    table.finish(&pod_memory(&cluster));
    assert!(cluster.stop().await.is_empty());
}

fn aggregate_of(number: usize) -> String {
    format!("hostile-{number}")
}

fn with_id(number: usize, mut event: Document) -> Document {
    event.insert("_id", format!("odd-{number}"));
    event
}

/// The results of both events of a value, and harm if the document of the order is not what its events say.
async fn describe_values(cluster: &TestCluster, number: usize, value: &Bson) -> [Result<String, String>; 2] {
    let aggregate = Bson::from(aggregate_of(number));
    let cursor = wait_for("both events of a value", SOON, async || {
        let cursor = find_cursor(cluster, &aggregate).await.ok_or("no cursor")?;
        if cursor.get_i64("sequence").is_ok_and(|at| at == 2) { Ok(cursor) } else { Err("only the first") }
    })
    .await;
    let orders = views(cluster).collection::<Document>("orders");
    let order = orders.find_one(doc! { "_id": aggregate }).await.unwrap();
    [1, 2].map(|sequence| {
        let [own, shared] = ["orders", "shared"].map(|model| describe_cursor(&cursor, model, Some(sequence)));
        let lines = order.as_ref().and_then(|order| order.get("lines"));
        // NaN equals only its text.
        if own == "applied" && format!("{lines:?}") != format!("{:?}", Some(Bson::from(vec![value.clone()]))) {
            return Err("the lines of the order are not the value that was added".to_owned());
        }
        Ok(if own == shared { own } else { format!("{own}; in the shared document {shared}") })
    })
}

/// Where an event with odd fields ended.
async fn describe_odd(cluster: &TestCluster, number: usize, event: &Document) -> String {
    let rejected = cluster.coordination().collection::<Document>("rejected_events");
    let aggregate = event.get("aggregateId").cloned().unwrap_or(Bson::Null);
    wait_for("an odd event to be handled", SOON, async || {
        let found = rejected.find_one(doc! { "key": format!("odd-{number}") }).await.unwrap();
        if let Some(found) = found {
            return Ok::<_, &str>(format!("rejected: {}", found.get_str("reason").unwrap()));
        }
        let cursor = find_cursor(cluster, &aggregate).await.ok_or("neither rejected nor delivered")?;
        let [own, shared] = ["orders", "shared"].map(|model| describe_cursor(&cursor, model, None));
        Ok(if own == shared { own } else { format!("{own}; in the shared document {shared}") })
    })
    .await
}

/// Events whose envelope fields are odd.
fn odd_events() -> Vec<(String, Document)> {
    let mut odd = vec![
        ("no fields".to_owned(), doc! {}),
        (
            "a type that is a document".to_owned(),
            doc! { "aggregateId": "odd-1", "version": 1_i64, "type": { "$gt": "" } },
        ),
        ("a type of 100 KB".to_owned(), doc! { "aggregateId": "odd-2", "version": 1_i64, "type": "T".repeat(100_000) }),
        ("a version that is text".to_owned(), doc! { "aggregateId": "odd-3", "version": "1", "type": "Added" }),
        ("a version of NaN".to_owned(), doc! { "aggregateId": "odd-4", "version": f64::NAN, "type": "Added" }),
        ("the highest version".to_owned(), doc! { "aggregateId": "odd-5", "version": i64::MAX, "type": "Added" }),
        (
            "a payload that is text".to_owned(),
            doc! { "aggregateId": "odd-6", "version": 1_i64, "type": "Added", "payload": "x" },
        ),
    ];
    for (name, aggregate) in [
        ("a regular expression", regex(".*")),
        ("a condition", doc! { "$gt": 1 }.into()),
        ("null", Bson::Null),
        ("an array", vec![1].into()),
        ("60 levels deep", deep(60)),
        ("2,000 letters", "x".repeat(2_000).into()),
    ] {
        odd.push((
            format!("the aggregate is {name}"),
            doc! { "aggregateId": aggregate, "version": 1_i64, "type": "Added", "payload": { "line": 1 } },
        ));
    }
    odd
}
