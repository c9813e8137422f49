//! Aggregates whose events cannot be applied are parked, and no others.

use mongodb::bson::{Bson, Document, doc};
use pipeline::view::{ApplyOutcome, Config, DeliveredEvent, DiscardScope, Error, EventBody, OnPoison, ParkReason};
use serde_json::json;

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{
    TestApplier, ViewFixture, aggregate, all_delivered, complete, delivered, event, events_namespace,
};

/// Makes `$inc` fail: the total of the order is text.
async fn corrupt(fixture: &ViewFixture, order: &str) {
    let orders = fixture.views.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": order, "total": "not a number" }).await.unwrap();
}

async fn repair(fixture: &ViewFixture, order: &str) {
    fixture.views.collection::<Document>("orders").delete_one(doc! { "_id": order }).await.unwrap();
}

async fn drain(pod: &TestApplier, events: &[Document], orders: usize) -> Vec<ApplyOutcome> {
    let all = all_delivered(events);
    let appliers = (0..orders).map(|order| {
        let mine: Vec<DeliveredEvent> = all.iter().skip(order).step_by(orders).cloned().collect();
        let mut applier = pod.session_applier();
        async move { complete(applier.apply(mine).await) }
    });
    futures_util::future::join_all(appliers).await.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn retrying_poison_restores_the_read_model() {
    let fixture = ViewFixture::shop("poison").await;
    let pod = fixture.pod();
    let events = day(10, 6);
    corrupt(&fixture, "order-0003").await;
    let outcomes = drain(&pod, &events, 10).await;
    // version 1 is a `$set` and succeeds; 2 to 6 are queued
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Parked).count(), 5);
    let (orders, customers) = fold(&events);
    let others =
        |all: Vec<Document>| plain(all.into_iter().filter(|it| it.get_str("_id").ok() != Some("order-0003")).collect());
    assert_eq!(others(fixture.view("orders").await), others(orders.clone()));
    assert_eq!(plain(fixture.view("customers").await), plain(customers.clone()), "the other model continues");

    let store = fixture.parked_store();
    let list = store.list(10).await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].model.as_str(), list[0].parked.reason), ("orders", ParkReason::Poison));
    assert_eq!((list[0].parked.sequence, list[0].parked.waiting()), (Some(2), 5));
    let id = aggregate("order-0003");
    let shown = store.list_events(&id, &events_namespace(), "orders", 10).await.unwrap();
    assert_eq!(shown.iter().map(|event| event.sequence.unwrap()).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);

    let refused = store.retry(&id, &events_namespace(), "orders").await.unwrap_err();
    assert!(matches!(refused, Error::ReplayRefused { .. }), "{refused}");
    assert_eq!(store.list(10).await.unwrap()[0].parked.waiting(), 5, "a failed replay loses nothing");

    repair(&fixture, "order-0003").await;
    fixture.views.collection::<Document>("orders").insert_one(orders_at_first(&events)).await.unwrap();
    assert_eq!(store.retry(&id, &events_namespace(), "orders").await.unwrap(), 5);
    assert_eq!(plain(fixture.view("orders").await), plain(orders));
    assert_eq!(plain(fixture.view("customers").await), plain(customers));
    assert!(store.list(10).await.unwrap().is_empty());
    assert!(fixture.view("parked_events").await.is_empty());
    assert!(matches!(store.retry(&id, &events_namespace(), "orders").await, Err(Error::NotParked(_))));
}

/// The order after version 1, before it is poisoned.
fn orders_at_first(events: &[Document]) -> Document {
    let first = events.iter().find(|event| event.get_str("_id").ok() == Some("order-0003-1")).unwrap().clone();
    fold(&[first]).0.remove(0)
}

#[tokio::test]
async fn events_of_a_parked_aggregate_queue_in_order() {
    let fixture = ViewFixture::shop("behind").await;
    let pod = fixture.pod();
    let events = day(1, 6);
    corrupt(&fixture, "order-0000").await;
    let all = all_delivered(&events);
    pod.apply(all[..3].to_vec()).await;
    repair(&fixture, "order-0000").await;
    // the cause is gone, and the order of events is still kept
    assert_eq!(pod.apply(all[3..5].to_vec()).await, [ApplyOutcome::Parked, ApplyOutcome::Parked]);
    assert_eq!(pod.apply(all[..5].to_vec()).await, [ApplyOutcome::Duplicate; 5]);
    assert!(fixture.view("orders").await.is_empty());
    let store = fixture.parked_store();
    assert_eq!(store.retry(&aggregate("order-0000"), &events_namespace(), "orders").await.unwrap(), 4);
    assert_eq!(pod.apply(all[5..].to_vec()).await, [ApplyOutcome::Applied]);
    let seen = fixture.view("orders").await[0].get_array("seen").unwrap().clone();
    assert_eq!(seen, [2_i64, 3, 4, 5, 6].map(Bson::from));
}

#[tokio::test]
async fn a_discarded_event_is_kept_and_the_queue_continues() {
    let fixture = ViewFixture::shop("discard").await;
    let pod = fixture.pod();
    let mut events = day(1, 5);
    events[2].insert("payload", doc! { "customer": "c", "price": "a lot" });
    assert_eq!(pod.apply(all_delivered(&events)).await[1..3], [ApplyOutcome::Applied, ApplyOutcome::Parked]);
    let (store, id) = (fixture.parked_store(), aggregate("order-0000"));
    assert_eq!(store.list(10).await.unwrap().len(), 2, "both models sum prices");
    for model in ["orders", "customers"] {
        assert_eq!(store.discard(&id, &events_namespace(), model, DiscardScope::First).await.unwrap(), 1);
    }
    let left: Vec<_> = store.list(10).await.unwrap().into_iter().map(|it| (it.model, it.parked.waiting())).collect();
    assert_eq!(left, [("customers".to_owned(), 1), ("orders".to_owned(), 2)]);
    assert_eq!(store.retry(&id, &events_namespace(), "orders").await.unwrap(), 2);
    assert_eq!(store.discard(&id, &events_namespace(), "customers", DiscardScope::All).await.unwrap(), 1);
    events.remove(2);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
    assert!(store.list(10).await.unwrap().is_empty());
    let kept = fixture.view("parked_events").await;
    assert_eq!(kept.len(), 3, "discarded events are never dropped");
    assert!(kept.iter().all(|event| event.get_str("state").ok() == Some("discarded")));

    // parked again, the queue numbers restart without a conflict
    let again = event("order-0000", 6, "Added", doc! { "customer": "c", "price": "more" });
    assert_eq!(pod.apply(vec![delivered(&again, 60)]).await, [ApplyOutcome::Parked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_index_violation_parks_one_aggregate() {
    let declared = json!({ "orders": {
        "when": { "Placed": { "$set": { "customer": "$$event.payload.customer" } } },
        "indexes": [{ "keys": { "customer": 1 }, "unique": true }],
    } });
    let fixture = ViewFixture::new("unique", declared).await;
    let pod = fixture.pod();
    let placed = |order: &str, customer: &str| event(order, 1, "Placed", doc! { "customer": customer });
    let events = [placed("a", "x"), placed("b", "y"), placed("c", "x"), placed("d", "z")];
    let outcomes = pod.apply(all_delivered(&events)).await;
    let parked: Vec<_> = outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Parked).collect();
    assert_eq!(parked.len(), 1, "{outcomes:?}");
    assert_eq!(fixture.view("orders").await.len(), 3);
    let list = fixture.parked_store().list(10).await.unwrap();
    assert!(list[0].parked.detail.contains("11000"), "{}", list[0].parked.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_poisoned_aggregates_do_not_affect_others() {
    let fixture = ViewFixture::shop("many").await;
    let pod = fixture.pod();
    let events = day(40, 3);
    for order in (0..40).step_by(4) {
        corrupt(&fixture, &format!("order-{order:04}")).await;
    }
    let outcomes = pod.apply(all_delivered(&events)).await;
    let waiting = outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Parked).count();
    assert_eq!(fixture.parked_store().list(100).await.unwrap().len(), 10);
    // versions 2 and 3 of ten orders; every fifth order ends with a pipeline, which is queued as well
    assert_eq!(waiting, 20);
    let healthy = |all: Vec<Document>| {
        let poisoned = |id: &str| id[6..].parse::<u32>().unwrap() % 4 == 0;
        plain(all.into_iter().filter(|it| !poisoned(it.get_str("_id").unwrap())).collect())
    };
    assert_eq!(healthy(fixture.view("orders").await), healthy(fold(&events).0));
    assert_eq!(plain(fixture.view("customers").await), plain(fold(&events).1));
}

#[tokio::test]
async fn markers_dead_letters_and_redelivered_events_can_be_replayed() {
    let fixture = ViewFixture::shop("reasons").await;
    let pod = fixture.pod();
    let events = day(3, 2);
    fixture.write_source(&events).await;
    let mut all = all_delivered(&events);
    all[0].body = EventBody::Marker("rejected-7".into());
    all[1].dead_lettered = true;
    all[2].delivery_count = 1000;
    let outcomes = pod.apply(all).await;
    assert_eq!(outcomes, [ApplyOutcome::Parked; 6]);
    let store = fixture.parked_store();
    let mut reasons: Vec<_> = store.list(10).await.unwrap().iter().map(|it| it.parked.reason.as_str()).collect();
    reasons.dedup();
    assert_eq!(reasons, ["marker", "dead_lettered", "delivery_count"]);
    for order in 0..3 {
        for model in ["orders", "customers"] {
            store.retry(&aggregate(&format!("order-000{order}")), &events_namespace(), model).await.unwrap();
        }
    }
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
    assert_eq!(plain(fixture.view("customers").await), plain(fold(&events).1));
}

#[tokio::test]
async fn a_marker_without_a_type_parks_in_every_model() {
    let fixture = ViewFixture::shop("untyped").await;
    let pod = fixture.pod();
    let mut all = all_delivered(&day(1, 1));
    (all[0].body, all[0].event_type) = (EventBody::Marker("rejected-1".into()), None);
    assert_eq!(pod.apply(all).await, [ApplyOutcome::Parked]);
    assert_eq!(fixture.parked_store().list(10).await.unwrap().len(), 2);
}

/// What the publisher sends in place of a refused message has neither body nor type.
fn to_marker(event: &mut DeliveredEvent) {
    (event.body, event.event_type) = (EventBody::Marker("rejected-1".into()), None);
}

#[tokio::test]
async fn a_replayed_marker_is_applied_as_the_source_has_it() {
    let fixture = ViewFixture::shop("marker_replay").await;
    let pod = fixture.pod();
    let events = day(1, 3);
    fixture.write_source(&events).await;
    let mut all = all_delivered(&events);
    to_marker(&mut all[1]);
    assert_eq!(pod.apply(all).await[1], ApplyOutcome::Parked);
    let (store, id) = (fixture.parked_store(), aggregate("order-0000"));
    for model in ["orders", "customers"] {
        store.retry(&id, &events_namespace(), model).await.unwrap();
    }
    assert!(store.list(10).await.unwrap().is_empty());
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
    assert_eq!(plain(fixture.view("customers").await), plain(fold(&events).1));
}

#[tokio::test]
async fn a_marker_that_the_source_lacks_stays_parked() {
    let fixture = ViewFixture::shop("marker_lost").await;
    let pod = fixture.pod();
    let events = day(1, 2);
    // another event has taken its id, as in a restored source
    let mut other = events[0].clone();
    other.insert("aggregateId", "order-0009");
    fixture.write_source(&[other]).await;
    let mut all = all_delivered(&events);
    to_marker(&mut all[0]);
    assert_eq!(pod.apply(all).await, [ApplyOutcome::Parked; 2]);
    let (store, id) = (fixture.parked_store(), aggregate("order-0000"));
    let waiting = async || store.list(10).await.unwrap().iter().map(|it| it.parked.waiting()).collect::<Vec<_>>();
    let before = waiting().await;
    let refused = store.retry(&id, &events_namespace(), "orders").await.unwrap_err().to_string();
    assert!(refused.contains("the source does not have it"), "{refused}");
    assert_eq!(before.len(), 2);
    assert_eq!(waiting().await, before);
    assert!(fixture.view("orders").await.is_empty());
}

#[tokio::test]
async fn an_often_redelivered_message_is_applied_alone() {
    let fixture = ViewFixture::shop("alone").await;
    let pod = fixture.pod();
    let events = day(4, 3);
    let mut all = all_delivered(&events);
    all[5].delivery_count = 4;
    assert_eq!(pod.apply(all).await, [ApplyOutcome::Applied; 12]);
    assert_eq!(pod.handle.counts().groups, 2);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn without_a_sequence_a_late_dead_letter_is_parked() {
    let fixture = ViewFixture::shop("late_letter").await.by_position();
    let pod = fixture.pod();
    let events = day(1, 3);
    let mut all = all_delivered(&events);
    let mut letter = all.remove(1);
    pod.apply(all).await;
    letter.dead_lettered = true;
    assert_eq!(pod.apply(vec![letter.clone()]).await, [ApplyOutcome::Parked]);
    assert_eq!(pod.apply(vec![letter]).await, [ApplyOutcome::Duplicate], "a redelivered dead letter is queued once");
    let detail = &fixture.parked_store().list(10).await.unwrap()[0].parked.detail;
    assert!(detail.contains("a retry may apply it twice"), "{detail}");
    let cursor = fixture.cursor("order-0000").await.unwrap();
    assert_eq!(
        cursor.get_str("position").ok(),
        Some(&*crate::fixture::position(1, 3).key),
        "the cursor does not go back"
    );
}

/// An event whose payload makes it nest so many levels.
fn nested_event(levels: usize) -> Document {
    let mut payload = doc! { "customer": "c", "price": 1_i64 };
    for _ in 2..levels {
        payload = doc! { "a": payload };
    }
    event("order-0000", 1, "Placed", payload)
}

#[tokio::test]
async fn a_dead_letter_that_was_applied_is_not_parked() {
    let events = day(1, 3);
    for (purpose, by_position) in [("applied_letter", false), ("applied_letter_position", true)] {
        let fixture = ViewFixture::shop(purpose).await;
        let fixture = if by_position { fixture.by_position() } else { fixture };
        let pod = fixture.pod();
        let all = all_delivered(&events);
        pod.apply(all.clone()).await;
        // its settlement was lost, and the bus dead-lettered it in the end
        let dead_letter = DeliveredEvent { dead_lettered: true, ..all[2].clone() };
        assert_eq!(pod.apply(vec![dead_letter]).await, [ApplyOutcome::Duplicate], "{purpose}");
        assert!(fixture.parked_store().list(10).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_body_too_deep_to_nest_is_kept_as_binary() {
    let fixture = ViewFixture::shop("deep").await;
    let pod = fixture.pod();
    let mut dead_letter = delivered(&nested_event(100), 1);
    dead_letter.dead_lettered = true;
    assert_eq!(pod.apply(vec![dead_letter]).await, [ApplyOutcome::Parked]);
    let kept = fixture.view("parked_events").await;
    assert!(kept.iter().all(|event| event.get("bodyBytes").is_some() && event.get("body").is_none()));
    let (store, id) = (fixture.parked_store(), aggregate("order-0000"));
    assert_eq!(store.retry(&id, &events_namespace(), "orders").await.unwrap(), 1);
    assert_eq!(fixture.view("orders").await.len(), 1);
}

#[tokio::test]
async fn poison_may_also_be_dead_lettered() {
    let mut fixture = ViewFixture::shop("letters").await;
    fixture.config = Config { on_poison: OnPoison::DeadLetter, ..fixture.config };
    let pod = fixture.pod();
    corrupt(&fixture, "order-0000").await;
    let outcomes = pod.apply(all_delivered(&day(1, 4))).await;
    assert_eq!(outcomes, [ApplyOutcome::Applied, ApplyOutcome::DeadLetter, ApplyOutcome::Parked, ApplyOutcome::Parked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_replays_and_new_events_keep_the_order() {
    let fixture = ViewFixture::shop("at_once").await;
    let pod = fixture.pod();
    let events = day(1, 120);
    let all = all_delivered(&events);
    corrupt(&fixture, "order-0000").await;
    pod.apply(all[..40].to_vec()).await;
    repair(&fixture, "order-0000").await;
    let (store, id) = (fixture.parked_store(), aggregate("order-0000"));
    let mut applier = pod.session_applier();
    let coming = async {
        for batch in all[40..].chunks(2) {
            complete(applier.apply(batch.to_vec()).await);
        }
    };
    let replaying = async { store.retry(&id, &events_namespace(), "orders").await.unwrap() };
    tokio::join!(coming, replaying);
    let _ = store.retry(&id, &events_namespace(), "orders").await;
    let seen = fixture.view("orders").await[0].get_array("seen").unwrap().clone();
    assert_eq!(seen, (2_i64..=120).map(Bson::from).collect::<Vec<_>>());
}
