//! The update language and Rust projections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use pipeline::event::{AggregateId, Operation};
use pipeline::view::{
    Applier, ApplierSetup, ApplyObserver, ApplyOutcome, ApplyTimestamps, BatchEnd, DeliveredEvent, Error, EventBody,
    ModelSet, Projection, ProjectionError, ProjectionEvent, Statements,
};
use serde_json::json;

use crate::fixture::{TestApplier, ViewFixture, all_delivered, delivered, event};

#[tokio::test]
async fn event_text_that_starts_with_a_dollar_is_literal() {
    let declared = json!({ "notes": { "when": {
        "Doc": { "$set": { "note": "$$event.payload.note", "deep": { "list": ["$$event.payload.deep"] } } },
        "Pipe": [{ "$set": { "note": "$$event.payload.note", "deep": { "list": ["$$event.payload.deep"] } } }]
    } } });
    let fixture = ViewFixture::new("dollar", declared).await;
    let pod = fixture.pod();
    let payload = doc! { "note": "$5 off $$ROOT", "deep": { "$inc": { "a": "$b" } } };
    let events = [event("a", 1, "Doc", payload.clone()), event("b", 1, "Pipe", payload)];
    assert_eq!(pod.apply(all_delivered(&events)).await, [ApplyOutcome::Applied; 2]);
    for note in fixture.view("notes").await {
        assert_eq!(note.get_str("note").ok(), Some("$5 off $$ROOT"));
        let deep = note.get_document("deep").unwrap().get_array("list").unwrap();
        assert_eq!(deep, &[Bson::Document(doc! { "$inc": { "a": "$b" } })]);
    }
}

#[tokio::test]
async fn a_key_that_looks_like_an_operator_stays_a_key() {
    let declared = json!({ "things": { "key": "$$event.payload.key", "when": { "Seen": { "$inc": { "seen": 1 } } } } });
    let fixture = ViewFixture::new("keys", declared).await;
    let pod = fixture.pod();
    let seen = |version, key: Bson| event("a", version, "Seen", doc! { "key": key });
    let first = seen(1, "plain".into());
    let second = seen(2, doc! { "n": 1, "m": 2 }.into());
    let third = seen(3, doc! { "$gt": "" }.into());
    let fourth = event("a", 4, "Seen", doc! {});
    let outcomes = pod.apply(all_delivered(&[first, second, third, fourth])).await;
    // MongoDB refuses this `_id`, so the third event is parked, and the fourth behind it
    assert_eq!(outcomes, [ApplyOutcome::Applied, ApplyOutcome::Applied, ApplyOutcome::Parked, ApplyOutcome::Parked]);
    let things = fixture.view("things").await;
    assert_eq!(things.iter().map(|thing| thing.get_i32("seen").unwrap()).collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_recreated_document_holds_only_later_events() {
    let fixture = ViewFixture::shop("delete").await;
    let pod = fixture.pod();
    let added = |version, price: i64| event("a", version, "Added", doc! { "customer": "c", "price": price });
    let cancelled = |version| event("a", version, "Cancelled", doc! {});
    let events = [added(1, 5), cancelled(2), added(3, 7), added(4, 1), cancelled(5), added(6, 2)];
    assert_eq!(pod.apply(all_delivered(&events)).await, [ApplyOutcome::Applied; 6]);
    let order = fixture.view("orders").await.remove(0);
    assert_eq!((order.get_i64("total").ok(), order.get_array("seen").unwrap()), (Some(2), &vec![6_i64.into()]));
    assert_eq!(fixture.view("customers").await[0].get_i64("spent").ok(), Some(15));
}

fn change(operation: Operation, key: i32, document: Document, token: u32) -> DeliveredEvent {
    let body = EventBody::Document(RawDocumentBuf::try_from(&document).unwrap());
    let stub = event("stub", 1, "stub", doc! {});
    DeliveredEvent {
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
async fn a_mirror_equals_its_source() {
    let fixture = ViewFixture::new("mirror", json!({ "copies": { "mirror": true } })).await.by_position();
    let pod = fixture.pod();
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
    assert_eq!(outcomes[6], ApplyOutcome::Duplicate);
    let expected = [doc! { "_id": 1, "z": 1 }, doc! { "_id": 2, "$odd": true, "b": "$c" }];
    assert_eq!(fixture.view("copies").await, expected);
}

#[tokio::test]
async fn an_unhandled_event_still_moves_the_cursor() {
    let fixture = ViewFixture::shop("unhandled").await;
    let pod = fixture.pod();
    let events = [event("a", 1, "Looked", doc! {}), event("a", 2, "Added", doc! { "customer": "c", "price": 1_i64 })];
    assert_eq!(pod.apply(all_delivered(&events)).await, [ApplyOutcome::Applied; 2]);
    assert_eq!(fixture.cursor("a").await.unwrap().get_i64("sequence").ok(), Some(2));
}

/// Counts events by type, and refuses one.
struct EventTypeCounter;

impl Projection for EventTypeCounter {
    fn name(&self) -> &str {
        "event_types"
    }

    fn apply(&self, event: &ProjectionEvent<'_>, writes: &mut Statements) -> Result<(), ProjectionError> {
        let name = event.event_type.clone().unwrap_or_default();
        if name == "Cancelled" {
            return Err(ProjectionError::new("cancelling is not supported"));
        }
        writes.update("event_types", name, doc! { "$inc": { "count": 1 } })?;
        Ok(())
    }
}

#[tokio::test]
async fn a_rust_projection_writes_in_the_transaction_and_may_park() {
    let mut fixture = ViewFixture::shop("projection").await;
    fixture.models.push(std::sync::Arc::new(EventTypeCounter));
    pipeline::view::prepare(&fixture.views, &fixture.models).await.unwrap();
    let pod = fixture.pod();
    let added = |version| event("a", version, "Added", doc! { "customer": "c", "price": 1_i64 });
    let events = [added(1), added(2), event("a", 3, "Cancelled", doc! {}), added(4)];
    let outcomes = pod.apply(all_delivered(&events)).await;
    assert_eq!(outcomes, [ApplyOutcome::Applied, ApplyOutcome::Applied, ApplyOutcome::Parked, ApplyOutcome::Parked]);
    assert_eq!(fixture.view("event_types").await, [doc! { "_id": "Added", "count": 2 }]);
    let list = fixture.parked_store().list(10).await.unwrap();
    assert_eq!((list.len(), list[0].model.as_str()), (1, "event_types"));
    assert_eq!(list[0].parked.detail, "cancelling is not supported");
}

#[tokio::test]
async fn two_models_with_one_name_are_refused() {
    let fixture = ViewFixture::shop("names").await;
    let mut models = fixture.models.clone();
    models.extend(fixture.models.clone());
    let setup = ApplierSetup {
        config: fixture.config.clone(),
        database: (*fixture.views).clone(),
        pipeline: "shop".into(),
        mode: fixture.mode,
        by_collection: false,
        models: ModelSet::fixed(models),
        history: None,
    };
    assert!(matches!(Applier::new(setup), Err(Error::DuplicateModelName(_))));
}

#[tokio::test]
async fn indexes_are_created_at_start_and_a_restart_is_fine() {
    let declared = json!({ "orders": {
        "when": { "Placed": { "$set": { "a": 1 } } },
        "indexes": [{ "keys": { "customer": 1, "at": -1 } }, { "keys": { "code": 1 }, "unique": true, "name": "codes" }],
    } });
    let fixture = ViewFixture::new("indexes", declared).await;
    pipeline::view::prepare(&fixture.views, &fixture.models).await.unwrap();
    let mut names = fixture.views.collection::<Document>("orders").list_index_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["_id_", "codes", "customer_1_at_-1"]);
}

/// Panics on one event.
struct PanickingProjection;

impl Projection for PanickingProjection {
    fn name(&self) -> &str {
        "fragile"
    }

    fn apply(&self, event: &ProjectionEvent<'_>, _writes: &mut Statements) -> Result<(), ProjectionError> {
        assert_ne!(event.sequence, Some(2), "planted panic");
        Ok(())
    }
}

#[tokio::test]
async fn a_panicking_projection_parks_only_its_own_aggregate() {
    let mut fixture = ViewFixture::shop("panics").await;
    fixture.models.push(std::sync::Arc::new(PanickingProjection));
    pipeline::view::prepare(&fixture.views, &fixture.models).await.unwrap();
    let pod = fixture.pod();
    let outcomes = pod.apply(all_delivered(&crate::expected_fold::day(2, 2))).await;
    assert_eq!(outcomes, [ApplyOutcome::Applied, ApplyOutcome::Applied, ApplyOutcome::Parked, ApplyOutcome::Parked]);
    assert_eq!(fixture.view("orders").await.len(), 2);
    assert!(fixture.parked_store().list(10).await.unwrap().iter().all(|waiting| waiting.model == "fragile"));
}

#[tokio::test]
async fn one_key_in_two_collections_is_two_aggregates() {
    let declared =
        json!({ "copies": { "mirror": true, "from": "left" }, "others": { "mirror": true, "from": "right" } });
    let mut fixture = ViewFixture::new("two_collections", declared).await.by_position();
    fixture.by_collection = true;
    let pod = fixture.pod();
    let in_collection = |name: &str, change: DeliveredEvent| {
        let namespace = std::sync::Arc::new(pipeline::event::Namespace::new("shop", name));
        DeliveredEvent { namespace, ..change }
    };
    let left = in_collection("left", change(Operation::Insert, 1, doc! { "_id": 1, "a": "left" }, 9));
    let right = in_collection("right", change(Operation::Insert, 1, doc! { "_id": 1, "a": "right" }, 5));
    assert_eq!(pod.apply(vec![left, right]).await, [ApplyOutcome::Applied; 2]);
    assert_eq!(fixture.view("copies").await, [doc! { "_id": 1, "a": "left" }]);
    assert_eq!(fixture.view("others").await, [doc! { "_id": 1, "a": "right" }]);
}

/// Panics on its first calls, once per concurrent transaction.
struct PanickingObserver(AtomicU32);

impl ApplyObserver for PanickingObserver {
    fn needs_trace(&self) -> bool {
        false
    }

    fn record_applied(&self, _: &DeliveredEvent, _: ApplyTimestamps) {
        let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "planted panic");
    }
}

#[tokio::test]
async fn a_panicking_observer_costs_only_one_batch() {
    let fixture = ViewFixture::shop("faint").await;
    let times = u32::try_from(fixture.config.connections.get()).unwrap();
    let applier = Applier::new(fixture.setup(&fixture.views)).unwrap();
    let pod = TestApplier::of(applier.with_observer(Arc::new(PanickingObserver(AtomicU32::new(times)))));
    let added = event("a", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
    let first = pod.session_applier().apply(all_delivered(std::slice::from_ref(&added))).await;
    assert!(matches!(first.end, BatchEnd::Failed(_)), "{:?}", first.end);
    // The batch was committed and is a duplicate when redelivered; repeat until no panic is left.
    for _ in 1..times {
        let next = event("b", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
        let other = pod.session_applier().apply(all_delivered(&[next])).await;
        assert!(matches!(other.end, BatchEnd::Failed(_)), "{:?}", other.end);
    }
    assert_eq!(pod.apply(all_delivered(&[added])).await, [ApplyOutcome::Duplicate]);
    let last = event("c", 1, "Added", doc! { "customer": "c", "price": 1_i64 });
    assert_eq!(pod.apply(all_delivered(&[last])).await, [ApplyOutcome::Applied]);
    pod.stop().await;
}
