//! The update language, event by event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::event::{AggregateId, Operation};
use pipeline::view::{
    Applier, Body, Delivered, End, Error, Event, Lived, Outcome, Projection, Refused, Setup, Statements, Witness,
};
use serde_json::json;

use crate::house::{House, Pod, all_delivered, delivered, event};

#[tokio::test]
async fn what_begins_with_a_dollar_in_an_event_is_a_text() {
    let declared = json!({ "notes": { "when": {
        "Doc": { "$set": { "note": "$$event.payload.note", "deep": { "list": ["$$event.payload.deep"] } } },
        "Pipe": [{ "$set": { "note": "$$event.payload.note", "deep": { "list": ["$$event.payload.deep"] } } }]
    } } });
    let house = House::new("dollar", declared).await;
    let pod = house.pod();
    let payload = doc! { "note": "$5 off $$ROOT", "deep": { "$inc": { "a": "$b" } } };
    let events = [event("a", 1, "Doc", payload.clone()), event("b", 1, "Pipe", payload)];
    assert_eq!(pod.apply(all_delivered(&events)).await, [Outcome::Applied; 2]);
    for note in house.view("notes").await {
        assert_eq!(note.get_str("note").ok(), Some("$5 off $$ROOT"));
        let deep = note.get_document("deep").unwrap().get_array("list").unwrap();
        assert_eq!(deep, &[Bson::Document(doc! { "$inc": { "a": "$b" } })]);
    }
}

#[tokio::test]
async fn a_key_that_looks_like_an_operator_is_a_key() {
    let declared = json!({ "things": { "key": "$$event.payload.key", "when": { "Seen": { "$inc": { "seen": 1 } } } } });
    let house = House::new("keys", declared).await;
    let pod = house.pod();
    let seen = |version, key: Bson| event("a", version, "Seen", doc! { "key": key });
    let first = seen(1, "plain".into());
    let second = seen(2, doc! { "n": 1, "m": 2 }.into());
    let third = seen(3, doc! { "$gt": "" }.into());
    let fourth = event("a", 4, "Seen", doc! {});
    let outcomes = pod.apply(all_delivered(&[first, second, third, fourth])).await;
    // MongoDB has no such `_id`, so the third waits, and with it the fourth
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied, Outcome::Parked, Outcome::Parked]);
    let things = house.view("things").await;
    assert_eq!(things.iter().map(|thing| thing.get_i32("seen").unwrap()).collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_document_that_is_deleted_and_made_again_holds_only_what_came_after() {
    let house = House::shop("delete").await;
    let pod = house.pod();
    let added = |version, price: i64| event("a", version, "Added", doc! { "customer": "c", "price": price });
    let cancelled = |version| event("a", version, "Cancelled", doc! {});
    let events = [added(1, 5), cancelled(2), added(3, 7), added(4, 1), cancelled(5), added(6, 2)];
    assert_eq!(pod.apply(all_delivered(&events)).await, [Outcome::Applied; 6]);
    let order = house.view("orders").await.remove(0);
    assert_eq!((order.get_i64("total").ok(), order.get_array("seen").unwrap()), (Some(2), &vec![6_i64.into()]));
    assert_eq!(house.view("customers").await[0].get_i64("spent").ok(), Some(15));
}

fn change(operation: Operation, key: i32, document: Document, token: u32) -> Delivered {
    let body = Body::Document(RawDocumentBuf::try_from(&document).unwrap());
    let stub = event("stub", 1, "stub", doc! {});
    Delivered {
        operation,
        aggregate: AggregateId::new(key.into()).unwrap(),
        key: key.into(),
        event_type: Some(operation.as_str().into()),
        sequence: None,
        body,
        ..delivered(&stub, token)
    }
}

#[tokio::test]
async fn a_mirror_is_what_the_source_is() {
    let house = House::new("mirror", json!({ "copies": { "mirror": true } })).await.by_position();
    let pod = house.pod();
    let changes = vec![
        change(Operation::Snapshot, 1, doc! { "_id": 1, "a": 1 }, 1),
        change(Operation::Insert, 2, doc! { "_id": 2, "$odd": true, "b": "$c" }, 2),
        change(Operation::Update, 1, doc! { "_id": 1, "a": 2, "n": { "m": 1 } }, 3),
        change(Operation::Insert, 3, doc! { "_id": 3 }, 4),
        change(Operation::Replace, 1, doc! { "_id": 1, "z": 1 }, 5),
        change(Operation::Delete, 3, doc! { "_id": 3 }, 6),
        change(Operation::Update, 1, doc! { "_id": 1, "a": 2 }, 3),
    ];
    let outcomes = pod.apply(changes).await;
    assert_eq!(outcomes[6], Outcome::Duplicate);
    let expected = [doc! { "_id": 1, "z": 1 }, doc! { "_id": 2, "$odd": true, "b": "$c" }];
    assert_eq!(house.view("copies").await, expected);
}

#[tokio::test]
async fn an_event_no_model_handles_moves_the_cursor_all_the_same() {
    let house = House::shop("unhandled").await;
    let pod = house.pod();
    let events = [event("a", 1, "Looked", doc! {}), event("a", 2, "Added", doc! { "customer": "c", "price": 1_i64 })];
    assert_eq!(pod.apply(all_delivered(&events)).await, [Outcome::Applied; 2]);
    assert_eq!(house.cursor("a").await.unwrap().get_i64("sequence").ok(), Some(2));
}

/// Counts events by type, and refuses one.
struct Tally;

impl Projection for Tally {
    fn name(&self) -> &str {
        "tally"
    }

    fn apply(&self, event: &Event<'_>, writes: &mut Statements) -> Result<(), Refused> {
        let name = event.event_type.clone().unwrap_or_default();
        if name == "Cancelled" {
            return Err(Refused::because("nobody cancels here"));
        }
        writes.update("tally", name, doc! { "$inc": { "count": 1 } })?;
        Ok(())
    }
}

#[tokio::test]
async fn a_projection_in_rust_writes_in_the_same_transaction_and_parks_what_it_refuses() {
    let mut house = House::shop("projection").await;
    house.models.push(std::sync::Arc::new(Tally));
    pipeline::view::prepare(&house.views, &house.models).await.unwrap();
    let pod = house.pod();
    let added = |version| event("a", version, "Added", doc! { "customer": "c", "price": 1_i64 });
    let events = [added(1), added(2), event("a", 3, "Cancelled", doc! {}), added(4)];
    let outcomes = pod.apply(all_delivered(&events)).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied, Outcome::Parked, Outcome::Parked]);
    assert_eq!(house.view("tally").await, [doc! { "_id": "Added", "count": 2 }]);
    let list = house.desk().list(10).await.unwrap();
    assert_eq!((list.len(), list[0].model.as_str()), (1, "tally"));
    assert_eq!(list[0].parked.detail, "nobody cancels here");
}

#[tokio::test]
async fn two_models_of_one_name_are_refused() {
    let house = House::shop("names").await;
    let mut models = house.models.clone();
    models.extend(house.models.clone());
    let setup = Setup {
        config: house.config.clone(),
        database: (*house.views).clone(),
        pipeline: "shop".into(),
        mode: house.mode,
        by_collection: false,
        models,
        history: None,
    };
    assert!(matches!(Applier::new(setup), Err(Error::NameTaken(_))));
}

#[tokio::test]
async fn indexes_are_made_at_start_and_starting_again_is_fine() {
    let declared = json!({ "orders": {
        "when": { "Placed": { "$set": { "a": 1 } } },
        "indexes": [{ "keys": { "customer": 1, "at": -1 } }, { "keys": { "code": 1 }, "unique": true, "name": "codes" }],
    } });
    let house = House::new("indexes", declared).await;
    pipeline::view::prepare(&house.views, &house.models).await.unwrap();
    let mut names = house.views.collection::<Document>("orders").list_index_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["_id_", "codes", "customer_1_at_-1"]);
}

/// Falls over an event it does not like.
struct Fragile;

impl Projection for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn apply(&self, event: &Event<'_>, _writes: &mut Statements) -> Result<(), Refused> {
        assert_ne!(event.sequence, Some(2), "it does not like twos");
        Ok(())
    }
}

#[tokio::test]
async fn a_projection_that_panics_parks_its_aggregate_and_the_others_go_on() {
    let mut house = House::shop("panics").await;
    house.models.push(std::sync::Arc::new(Fragile));
    pipeline::view::prepare(&house.views, &house.models).await.unwrap();
    let pod = house.pod();
    let outcomes = pod.apply(all_delivered(&crate::fold::day(2, 2))).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied, Outcome::Parked, Outcome::Parked]);
    assert_eq!(house.view("orders").await.len(), 2);
    assert!(house.desk().list(10).await.unwrap().iter().all(|waiting| waiting.model == "fragile"));
}

#[tokio::test]
async fn in_a_source_of_documents_one_key_in_two_collections_is_two_aggregates() {
    let declared =
        json!({ "copies": { "mirror": true, "from": "left" }, "others": { "mirror": true, "from": "right" } });
    let mut house = House::new("two_collections", declared).await.by_position();
    house.by_collection = true;
    let pod = house.pod();
    let in_collection = |name: &str, change: Delivered| {
        let namespace = std::sync::Arc::new(pipeline::event::Namespace::new("shop", name));
        Delivered { namespace, ..change }
    };
    let left = in_collection("left", change(Operation::Insert, 1, doc! { "_id": 1, "a": "left" }, 9));
    let right = in_collection("right", change(Operation::Insert, 1, doc! { "_id": 1, "a": "right" }, 5));
    assert_eq!(pod.apply(vec![left, right]).await, [Outcome::Applied; 2]);
    assert_eq!(house.view("copies").await, [doc! { "_id": 1, "a": "left" }]);
    assert_eq!(house.view("others").await, [doc! { "_id": 1, "a": "right" }]);
}

/// Its first word is a panic, once for each of the transactions that run side by side.
struct Faint(AtomicU32);

impl Witness for Faint {
    fn traces(&self) -> bool {
        false
    }

    fn applied(&self, _: &Delivered, _: Lived) {
        let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "it cannot look on");
    }
}

#[tokio::test]
async fn a_witness_that_panics_costs_a_session_its_turn_and_nobody_the_rest() {
    let house = House::shop("faint").await;
    let times = u32::try_from(house.config.connections.get()).unwrap();
    let applier = Applier::new(house.setup(&house.views)).unwrap();
    let pod = Pod::of(applier.witnessed_by(Arc::new(Faint(AtomicU32::new(times)))));
    let added = event("a", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
    let first = pod.feed().apply(all_delivered(std::slice::from_ref(&added))).await;
    assert!(matches!(first.end, End::Failed(_)), "{:?}", first.end);
    // It was committed, and is known when its session is accepted again; and so on until nobody is left to panic.
    for _ in 1..times {
        let next = event("b", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
        let other = pod.feed().apply(all_delivered(&[next])).await;
        assert!(matches!(other.end, End::Failed(_)), "{:?}", other.end);
    }
    assert_eq!(pod.apply(all_delivered(&[added])).await, [Outcome::Duplicate]);
    let last = event("c", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
    assert_eq!(pod.apply(all_delivered(&[last])).await, [Outcome::Applied]);
    pod.stop().await;
}
