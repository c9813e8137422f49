//! Event values are data, whatever they look like and wherever an update puts them.

use mongodb::bson::raw::cstr;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, Regex, Timestamp, doc};
use pipeline::view::{ApplyOutcome, ReadModel, ReadModelDeclaration};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::fixture::{TestApplier, ViewFixture, all_delivered, event};
use crate::hostile_fold::{OperatorCase, operator_cases, same, same_content, seed};

#[tokio::test]
async fn an_operator_in_an_event_value_does_not_act() {
    let declared = json!({ "baskets": { "when": {
        "Added": { "$push": { "lines": { "sku": "$$event.payload.sku" } } },
        "Removed": { "$pull": { "lines": { "sku": "$$event.payload.sku" } } },
        "Noted": { "$push": { "notes": "$$event.payload.note" } },
        "Tagged": { "$addToSet": { "tags": "$$event.payload.tag" } },
    } } });
    let fixture = ViewFixture::new("operators", declared).await;
    let events = [
        event("a", 1, "Added", doc! { "sku": "map" }),
        event("a", 2, "Removed", doc! { "sku": { "$exists": true } }),
        event("a", 3, "Noted", doc! { "note": "first" }),
        event("a", 4, "Noted", doc! { "note": { "$each": [], "$slice": 0 } }),
        event("a", 5, "Tagged", doc! { "tag": { "$each": ["x", "y"] } }),
        event("a", 6, "Removed", doc! { "sku": regex(".*") }),
    ];
    assert_eq!(fixture.pod().apply(all_delivered(&events)).await, [ApplyOutcome::Applied; 6]);
    let expected = doc! {
        "_id": "a",
        "lines": [{ "sku": "map" }],
        "notes": ["first", { "$each": [], "$slice": 0 }],
        "tags": [{ "$each": ["x", "y"] }],
    };
    assert_eq!(fixture.view("baskets").await, [expected]);
}

#[tokio::test]
async fn a_condition_without_its_value_removes_nothing() {
    let declared = json!({ "baskets": { "when": {
        "Added": { "$push": { "lines": { "sku": "$$event.payload.sku" } } },
        "Removed": { "$pull": { "lines": { "sku": "$$event.payload.sku" } } },
        "Several": { "$push": { "lines": { "$each": "$$event.payload.lines", "$slice": 1 } } },
    } } });
    let fixture = ViewFixture::new("conditions", declared).await;
    let added = |version, sku: &str| event("a", version, "Added", doc! { "sku": sku });
    let events =
        [added(1, "map"), added(2, "oar"), event("a", 3, "Removed", doc! {}), event("a", 4, "Several", doc! {})];
    assert_eq!(fixture.pod().apply(all_delivered(&events)).await, [ApplyOutcome::Applied; 4]);
    assert_eq!(fixture.view("baskets").await, [doc! { "_id": "a", "lines": [{ "sku": "map" }, { "sku": "oar" }] }]);
}

#[tokio::test]
async fn a_value_that_cannot_be_wrapped_parks_its_event() {
    let declared = json!({ "baskets": { "when": {
        "Added": { "$push": { "tags": "$$event.payload.tag" } },
        "Removed": { "$pull": { "tags": { "$in": "$$event.payload.tags" } } },
    } } });
    let fixture = ViewFixture::new("unwrappable", declared).await;
    let events = [
        event("a", 1, "Added", doc! { "tag": "red" }),
        event("a", 2, "Removed", doc! { "tags": ["blue", regex(".*")] }),
    ];
    let outcomes = fixture.pod().apply(all_delivered(&events)).await;
    assert_eq!(outcomes, [ApplyOutcome::Applied, ApplyOutcome::Parked]);
    assert_eq!(fixture.view("baskets").await, [doc! { "_id": "a", "tags": ["red"] }]);
    let parked = fixture.parked_store().list(10).await.unwrap();
    assert!(parked[0].parked.detail.contains("`$in`"), "{}", parked[0].parked.detail);
}

#[test]
fn an_event_value_cannot_be_a_name_or_a_condition() {
    let refused = [
        json!({ "$rename": { "a": "$$event.payload.v" } }),
        json!({ "$currentDate": { "a": "$$event.payload.v" } }),
        json!({ "$bit": { "a": "$$event.payload.v" } }),
        json!({ "$pull": { "a": { "$or": "$$event.payload.v" } } }),
        json!({ "$pull": { "a": { "$or": ["$$event.payload.v"] } } }),
        json!({ "$pull": { "a": { "b": { "$not": "$$event.payload.v" } } } }),
        json!({ "$pull": { "a": { "$elemMatch": "$$event.payload.v" } } }),
        json!({ "$pull": { "a": { "b": { "$regex": "$$event.payload.v" } } } }),
        json!({ "$pull": { "a": { "$where": "$$event.payload.v" } } }),
        json!({ "$pull": { "a": { "b": { "$geoWithin": { "$box": "$$event.payload.v" } } } } }),
        json!({ "$future": { "a": "$$event.payload.v" } }),
    ];
    for update in refused {
        let declared: ReadModelDeclaration = serde_json::from_value(json!({ "when": { "E": update } })).unwrap();
        let problems = ReadModel::compile("baskets", &declared).err().unwrap_or_default();
        assert!(
            problems.iter().any(|problem| problem.problem.contains("value of the event")),
            "{update}: {problems:?}"
        );
    }
}

/// Values with operators, variables and odd names at any depth, and values of every type.
fn hostile() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["$set", "$$ROOT", "$n", "$$event.payload", "a", "", "a.b", "$", "\u{0}", "é"])
            .prop_map(Bson::from),
        (-3_i32..8).prop_map(Bson::Int32),
        (-3_i64..8).prop_map(Bson::Int64),
        (-3_i32..8).prop_map(|number| Bson::Double(f64::from(number) / 2.0)),
        any::<bool>().prop_map(Bson::Boolean),
        prop::sample::select(vec![
            Bson::Null,
            Bson::MinKey,
            Bson::MaxKey,
            regex(".*"),
            regex("^a"),
            DateTime::from_millis(0).into()
        ]),
        Just(Bson::Timestamp(Timestamp { time: 7, increment: 1 })),
        Just(Bson::JavaScriptCode("return true".into())),
        Just(Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 36] })),
    ];
    let names = prop::sample::select(vec![
        "$exists",
        "$each",
        "$slice",
        "$sort",
        "$position",
        "$gt",
        "$gte",
        "$ne",
        "$in",
        "$nin",
        "$not",
        "$or",
        "$nor",
        "$and",
        "$where",
        "$expr",
        "$regex",
        "$elemMatch",
        "$all",
        "$eq",
        "$type",
        "$literal",
        "$ref",
        "$id",
        "$db",
        "$set",
        "$",
        "a",
        "x",
        "sku",
        "a.b",
        "",
        "_id",
    ]);
    leaf.prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            prop::collection::vec((names.clone(), inner), 0..3).prop_map(|fields| Bson::Document(
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            )),
        ]
    })
}

/// Values that act in today's operators if they are not wrapped.
fn known_attacks() -> Vec<Bson> {
    let documents = [
        doc! { "$exists": true },
        doc! { "$each": [], "$slice": 0 },
        doc! { "$each": ["p", "q"] },
        doc! { "$each": [1], "$position": 0, "$sort": -1 },
        doc! { "$ne": "nothing" },
        doc! { "$gt": Bson::MinKey },
        doc! { "$nin": [] },
        doc! { "$regex": ".*" },
        doc! { "$not": { "$eq": 0 } },
        doc! { "$or": [{}] },
        doc! { "$expr": true },
        doc! { "$elemMatch": {} },
        doc! { "$type": "string" },
        doc! { "x": 1 },
        doc! { "x": 1, "$each": [1] },
        doc! { "x": { "$exists": true } },
        doc! {},
    ];
    let plain = [regex(".*"), Bson::Null, "a".into(), "$n".into(), vec!["a"].into(), Bson::Array(vec![regex(".*")])];
    let listed = documents.iter().map(|attack| Bson::Array(vec![attack.clone().into()]));
    let listed: Vec<_> = listed.collect();
    documents.into_iter().map(Bson::from).chain(plain).chain(listed).collect()
}

fn regex(pattern: &str) -> Bson {
    Bson::RegularExpression(Regex { pattern: pattern.try_into().unwrap(), options: cstr!("").into() })
}

fn generated(count: usize) -> Vec<Bson> {
    // A fixed seed: a failure repeats.
    let mut runner = TestRunner::deterministic();
    let strategy = hostile();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn models_of(cases: &[OperatorCase]) -> Value {
    let seed = json!({ "$set": {
        "n": "$$event.payload.n", "tags": "$$event.payload.tags", "lines": "$$event.payload.lines"
    } });
    let updates = cases.iter().map(|case| (case.name.to_owned(), case.update.clone()));
    let when: serde_json::Map<_, _> = updates.chain([("Seed".to_owned(), seed)]).collect();
    json!({ "things": { "when": when } })
}

/// Applies one operator to one document per value, and returns what differs from the fold.
async fn differences(fixture: &ViewFixture, pod: &TestApplier, case: &OperatorCase, values: &[Bson]) -> Vec<String> {
    let aggregate = |at: usize| format!("{}-{at}", case.name);
    let seeds: Vec<_> = (0..values.len()).map(|at| event(&aggregate(at), 1, "Seed", seed())).collect();
    let hostile = values.iter().enumerate();
    let hostile: Vec<_> = hostile.map(|(at, v)| event(&aggregate(at), 2, case.name, doc! { "v": v })).collect();
    assert!(pod.apply(all_delivered(&seeds)).await.iter().all(|outcome| *outcome == ApplyOutcome::Applied));
    let outcomes = pod.apply(all_delivered(&hostile)).await;
    let things = fixture.views.collection::<Document>("things");
    let mut differences = vec![];
    for (at, (value, outcome)) in values.iter().zip(outcomes).enumerate() {
        let mut found = things.find_one(doc! { "_id": aggregate(at) }).await.unwrap().unwrap();
        found.remove("_id");
        let mut folded = seed();
        let (wanted, expected) = match (case.fold)(&mut folded, value) {
            Some(()) => (ApplyOutcome::Applied, folded),
            None => (ApplyOutcome::Parked, seed()),
        };
        if outcome != wanted || !same_content(&found, &expected) {
            differences.push(format!("{} with {value}: {outcome:?}, {found}, expected {expected}", case.name));
        }
    }
    differences
}

#[tokio::test]
async fn every_operator_takes_hostile_values_as_data() {
    let cases = operator_cases();
    let fixture = ViewFixture::new("hostile", models_of(&cases)).await;
    let pod = fixture.pod();
    let values: Vec<_> = known_attacks().into_iter().chain(generated(60)).collect();
    let checks = cases.iter().map(|case| differences(&fixture, &pod, case, &values));
    let differences = futures_util::future::join_all(checks).await.concat();
    assert!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn hostile_keys_select_only_their_own_document() {
    let declared = json!({ "things": { "key": "$$event.payload.v", "when": {
        "Seen": { "$inc": { "seen": 1 } }, "Gone": "delete"
    } } });
    let fixture = ViewFixture::new("hostile_keys", declared).await;
    let pod = fixture.pod();
    let safe = event("safe", 1, "Seen", doc! { "v": "safe" });
    assert_eq!(pod.apply(all_delivered(&[safe])).await, [ApplyOutcome::Applied]);
    for (at, value) in known_attacks().into_iter().chain(generated(60)).enumerate() {
        let aggregate = format!("key-{at}");
        let events =
            [event(&aggregate, 1, "Seen", doc! { "v": &value }), event(&aggregate, 2, "Gone", doc! { "v": &value })];
        let outcomes = pod.apply(all_delivered(&events)).await;
        assert!(outcomes[0] == outcomes[1] || outcomes[1] == ApplyOutcome::Parked, "{value}: {outcomes:?}");
        let documents = fixture.view("things").await;
        assert_eq!(documents.len(), 1, "{value}: {documents:?}");
        assert!(same(&documents[0].clone().into(), &doc! { "_id": "safe", "seen": 1 }.into()), "{value}");
    }
}
