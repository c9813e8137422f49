//! A paused read model gets nothing, loses nothing, and is right when it is resumed.

use std::collections::BTreeSet;

use mongodb::bson::{Document, doc};
use pipeline::view::{ApplyOutcome, ParkReason};

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{TestApplier, ViewFixture, all_delivered, delivered, event, events_namespace};

fn pause(pod: &TestApplier, models: &[&str]) {
    pod.handle.set_paused_models(models.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
}

async fn resume_all(fixture: &ViewFixture) -> u64 {
    let store = fixture.parked_store();
    let mut events = 0;
    for waiting in store.list_paused(None, 100).await.unwrap().aggregates {
        events += store.resume(&waiting.aggregate, &events_namespace(), &waiting.model).await.unwrap();
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_read_model_equals_the_fold() {
    let fixture = ViewFixture::shop("paused").await;
    let pod = fixture.pod();
    let events = day(6, 6);
    let all = all_delivered(&events);
    let (before, rest) = all.split_at(all.len() / 3);
    let (during, after) = rest.split_at(rest.len() / 2);
    pod.apply(before.to_vec()).await;
    let orders_before = plain(fixture.view("orders").await);
    pause(&pod, &["orders"]);
    let outcomes = pod.apply(during.to_vec()).await;
    assert!(outcomes.contains(&ApplyOutcome::Parked));
    assert_eq!(plain(fixture.view("orders").await), orders_before, "nothing is applied");
    let redelivered = pod.apply(during.to_vec()).await;
    assert!(redelivered.iter().all(|outcome| *outcome == ApplyOutcome::Duplicate), "what waits is not queued twice");
    // Another pod does not know of the pause any more: what it gets queues behind the others.
    pause(&pod, &[]);
    let (behind, last) = after.split_at(after.len() / 2);
    pod.apply(behind.to_vec()).await;
    assert!(resume_all(&fixture).await > 0);
    pod.apply(last.to_vec()).await;
    let (orders, customers) = fold(&events);
    assert_eq!(plain(fixture.view("orders").await), plain(orders));
    assert_eq!(plain(fixture.view("customers").await), plain(customers));
    assert!(fixture.parked_store().list(10).await.unwrap().is_empty());
    assert!(fixture.view("parked_events").await.is_empty());
}

/// Aggregates that another pause still holds must not hide the others.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_paused_aggregates_reach_every_aggregate() {
    let fixture = ViewFixture::shop("paused_pages").await;
    let pod = fixture.pod();
    pause(&pod, &["orders", "customers"]);
    pod.apply(all_delivered(&day(5, 2))).await;
    let store = fixture.parked_store();
    let (mut after, mut resumed) = (None, 0);
    loop {
        let page = store.list_paused(after.as_ref(), 1).await.unwrap();
        let Some(last) = page.last else { break };
        after = Some(last);
        for waiting in page.aggregates.iter().filter(|waiting| waiting.model == "orders") {
            store.resume(&waiting.aggregate, &events_namespace(), &waiting.model).await.unwrap();
            resumed += 1;
        }
    }
    assert_eq!(resumed, 5);
    let left = store.list_paused(None, 100).await.unwrap().aggregates;
    assert!(left.len() == 5 && left.iter().all(|waiting| waiting.model == "customers"), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_an_operator_is_not_applied_by_a_resume() {
    let fixture = ViewFixture::shop("paused_regressed").await;
    let pod = fixture.pod();
    let events: Vec<Document> = day(1, 4);
    let all = all_delivered(&events);
    pause(&pod, &["orders", "customers"]);
    pod.apply(all.clone()).await;
    // The source was restored: another event with a sequence that was applied, at a later position.
    let id = all[0].aggregate.value().as_str().unwrap();
    let mut other = event(id, 2, "Added", doc! { "customer": "customer-0", "price": 1 });
    other.insert("_id", "another");
    fixture.write_source(&events).await;
    pod.apply(vec![delivered(&other, 99)]).await;
    pause(&pod, &[]);
    assert_eq!(resume_all(&fixture).await, 0);
    let list = fixture.parked_store().list(10).await.unwrap();
    assert!(list.iter().all(|waiting| waiting.parked.reason == ParkReason::VersionRegressed), "{list:?}");
    assert!(fixture.view("orders").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_behind_a_pause_parks_from_there_on() {
    let fixture = ViewFixture::shop("paused_poison").await;
    let pod = fixture.pod();
    let events: Vec<Document> = day(1, 5);
    let orders = fixture.views.collection::<Document>("orders");
    let all = all_delivered(&events);
    let id = all[0].aggregate.value().as_str().unwrap().to_owned();
    pause(&pod, &["orders"]);
    pod.apply(all).await;
    // Makes `$inc` fail: the total of the order is text. The first event is a `$set`.
    orders.insert_one(doc! { "_id": &id, "total": "not a number" }).await.unwrap();
    pause(&pod, &[]);
    assert_eq!(resume_all(&fixture).await, 1);
    let list = fixture.parked_store().list(10).await.unwrap();
    let parked = &list[0].parked;
    assert_eq!((parked.reason, parked.sequence, parked.waiting()), (ParkReason::Poison, Some(2), 4));
    assert_eq!(resume_all(&fixture).await, 0, "an operator decides now");
}
