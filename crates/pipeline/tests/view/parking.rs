//! What cannot be applied waits, and nothing else does.

use mongodb::bson::{Bson, Document, doc};
use pipeline::view::{Body, Config, Delivered, Discard, Error, OnPoison, Outcome, Reason};
use serde_json::json;

use crate::fold::{day, fold, plain};
use crate::house::{House, Pod, aggregate, all_delivered, complete, delivered, event, events_namespace};

/// A value that `$inc` cannot take: the order's total is a text.
async fn spoil(house: &House, order: &str) {
    let orders = house.views.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": order, "total": "not a number" }).await.unwrap();
}

async fn mend(house: &House, order: &str) {
    house.views.collection::<Document>("orders").delete_one(doc! { "_id": order }).await.unwrap();
}

async fn drain(pod: &Pod, events: &[Document], orders: usize) -> Vec<Outcome> {
    let all = all_delivered(events);
    let feeds = (0..orders).map(|order| {
        let mine: Vec<Delivered> = all.iter().skip(order).step_by(orders).cloned().collect();
        let mut feed = pod.feed();
        async move { complete(feed.apply(mine).await) }
    });
    futures_util::future::join_all(feeds).await.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_parks_its_aggregate_in_its_model_and_retry_makes_it_as_if_nothing_had_been() {
    let house = House::shop("poison").await;
    let pod = house.pod();
    let events = day(10, 6);
    spoil(&house, "order-0003").await;
    let outcomes = drain(&pod, &events, 10).await;
    // version 1 is a `$set` and goes well; 2 to 6 wait
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Parked).count(), 5);
    let (orders, customers) = fold(&events);
    let others =
        |all: Vec<Document>| plain(all.into_iter().filter(|it| it.get_str("_id").ok() != Some("order-0003")).collect());
    assert_eq!(others(house.view("orders").await), others(orders.clone()));
    assert_eq!(plain(house.view("customers").await), plain(customers.clone()), "the other model goes on");

    let desk = house.desk();
    let list = desk.list(10).await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].model.as_str(), list[0].parked.reason), ("orders", Reason::Poison));
    assert_eq!((list[0].parked.sequence, list[0].parked.waiting()), (Some(2), 5));
    let id = aggregate("order-0003");
    let shown = desk.show(&id, &events_namespace(), "orders", 10).await.unwrap();
    assert_eq!(shown.iter().map(|event| event.sequence.unwrap()).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);

    let refused = desk.retry(&id, &events_namespace(), "orders").await.unwrap_err();
    assert!(matches!(refused, Error::StillRefused { .. }), "{refused}");
    assert_eq!(desk.list(10).await.unwrap()[0].parked.waiting(), 5, "nothing is lost by a replay that fails");

    mend(&house, "order-0003").await;
    house.views.collection::<Document>("orders").insert_one(orders_at_first(&events)).await.unwrap();
    assert_eq!(desk.retry(&id, &events_namespace(), "orders").await.unwrap(), 5);
    assert_eq!(plain(house.view("orders").await), plain(orders));
    assert_eq!(plain(house.view("customers").await), plain(customers));
    assert!(desk.list(10).await.unwrap().is_empty());
    assert!(house.view("parked_events").await.is_empty());
    assert!(matches!(desk.retry(&id, &events_namespace(), "orders").await, Err(Error::NotParked(_))));
}

/// What version 1 made of the order that is poisoned later.
fn orders_at_first(events: &[Document]) -> Document {
    let first = events.iter().find(|event| event.get_str("_id").ok() == Some("order-0003-1")).unwrap().clone();
    fold(&[first]).0.remove(0)
}

#[tokio::test]
async fn what_comes_while_an_aggregate_waits_queues_behind() {
    let house = House::shop("behind").await;
    let pod = house.pod();
    let events = day(1, 6);
    spoil(&house, "order-0000").await;
    let all = all_delivered(&events);
    pod.apply(all[..3].to_vec()).await;
    mend(&house, "order-0000").await;
    // the cause is gone, and still the order of events is kept
    assert_eq!(pod.apply(all[3..5].to_vec()).await, [Outcome::Parked, Outcome::Parked]);
    assert_eq!(pod.apply(all[..5].to_vec()).await, [Outcome::Duplicate; 5]);
    assert!(house.view("orders").await.is_empty());
    let desk = house.desk();
    assert_eq!(desk.retry(&aggregate("order-0000"), &events_namespace(), "orders").await.unwrap(), 4);
    assert_eq!(pod.apply(all[5..].to_vec()).await, [Outcome::Applied]);
    let seen = house.view("orders").await[0].get_array("seen").unwrap().clone();
    assert_eq!(seen, [2_i64, 3, 4, 5, 6].map(Bson::from));
}

#[tokio::test]
async fn a_discarded_event_is_kept_and_the_rest_goes_on() {
    let house = House::shop("discard").await;
    let pod = house.pod();
    let mut events = day(1, 5);
    events[2].insert("payload", doc! { "customer": "c", "price": "a lot" });
    assert_eq!(pod.apply(all_delivered(&events)).await[1..3], [Outcome::Applied, Outcome::Parked]);
    let (desk, id) = (house.desk(), aggregate("order-0000"));
    assert_eq!(desk.list(10).await.unwrap().len(), 2, "both models add up prices");
    for model in ["orders", "customers"] {
        assert_eq!(desk.discard(&id, &events_namespace(), model, Discard::First).await.unwrap(), 1);
    }
    let left: Vec<_> = desk.list(10).await.unwrap().into_iter().map(|it| (it.model, it.parked.waiting())).collect();
    assert_eq!(left, [("customers".to_owned(), 1), ("orders".to_owned(), 2)]);
    assert_eq!(desk.retry(&id, &events_namespace(), "orders").await.unwrap(), 2);
    assert_eq!(desk.discard(&id, &events_namespace(), "customers", Discard::All).await.unwrap(), 1);
    events.remove(2);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events).0));
    assert!(desk.list(10).await.unwrap().is_empty());
    let kept = house.view("parked_events").await;
    assert_eq!(kept.len(), 3, "discarded events are never dropped");
    assert!(kept.iter().all(|event| event.get_str("state").ok() == Some("discarded")));

    // parked again, the numbers of the queue begin again, and nothing stands in the way
    let again = event("order-0000", 6, "Added", doc! { "customer": "c", "price": "more" });
    assert_eq!(pod.apply(vec![delivered(&again, 60)]).await, [Outcome::Parked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_index_of_the_user_that_refuses_parks_one_aggregate() {
    let declared = json!({ "orders": {
        "when": { "Placed": { "$set": { "customer": "$$event.payload.customer" } } },
        "indexes": [{ "keys": { "customer": 1 }, "unique": true }],
    } });
    let house = House::new("unique", declared).await;
    let pod = house.pod();
    let placed = |order: &str, customer: &str| event(order, 1, "Placed", doc! { "customer": customer });
    let events = [placed("a", "x"), placed("b", "y"), placed("c", "x"), placed("d", "z")];
    let outcomes = pod.apply(all_delivered(&events)).await;
    let parked: Vec<_> = outcomes.iter().filter(|outcome| **outcome == Outcome::Parked).collect();
    assert_eq!(parked.len(), 1, "{outcomes:?}");
    assert_eq!(house.view("orders").await.len(), 3);
    let list = house.desk().list(10).await.unwrap();
    assert!(list[0].parked.detail.contains("11000"), "{}", list[0].parked.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_poisoned_aggregates_in_one_group_cost_the_others_nothing() {
    let house = House::shop("many").await;
    let pod = house.pod();
    let events = day(40, 3);
    for order in (0..40).step_by(4) {
        spoil(&house, &format!("order-{order:04}")).await;
    }
    let outcomes = pod.apply(all_delivered(&events)).await;
    let waiting = outcomes.iter().filter(|outcome| **outcome == Outcome::Parked).count();
    assert_eq!(house.desk().list(100).await.unwrap().len(), 10);
    // versions 2 and 3 of ten orders; of every fifth the third is a pipeline, which waits as well
    assert_eq!(waiting, 20);
    let healthy = |all: Vec<Document>| {
        let poisoned = |id: &str| id[6..].parse::<u32>().unwrap() % 4 == 0;
        plain(all.into_iter().filter(|it| !poisoned(it.get_str("_id").unwrap())).collect())
    };
    assert_eq!(healthy(house.view("orders").await), healthy(fold(&events).0));
    assert_eq!(plain(house.view("customers").await), plain(fold(&events).1));
}

#[tokio::test]
async fn a_marker_a_dead_letter_and_a_message_seen_too_often_park_and_can_be_replayed() {
    let house = House::shop("reasons").await;
    let pod = house.pod();
    let events = day(3, 2);
    house.write_source(&events).await;
    let mut all = all_delivered(&events);
    all[0].body = Body::Marker("rejected-7".into());
    all[1].dead_lettered = true;
    all[2].delivery_count = 1000;
    let outcomes = pod.apply(all).await;
    assert_eq!(outcomes, [Outcome::Parked; 6]);
    let desk = house.desk();
    let mut reasons: Vec<_> = desk.list(10).await.unwrap().iter().map(|it| it.parked.reason.as_str()).collect();
    reasons.dedup();
    assert_eq!(reasons, ["marker", "dead_lettered", "delivery_count"]);
    for order in 0..3 {
        for model in ["orders", "customers"] {
            desk.retry(&aggregate(&format!("order-000{order}")), &events_namespace(), model).await.unwrap();
        }
    }
    assert_eq!(plain(house.view("orders").await), plain(fold(&events).0));
    assert_eq!(plain(house.view("customers").await), plain(fold(&events).1));
}

#[tokio::test]
async fn a_marker_without_a_type_parks_in_every_model() {
    let house = House::shop("untyped").await;
    let pod = house.pod();
    let mut all = all_delivered(&day(1, 1));
    (all[0].body, all[0].event_type) = (Body::Marker("rejected-1".into()), None);
    assert_eq!(pod.apply(all).await, [Outcome::Parked]);
    assert_eq!(house.desk().list(10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_message_seen_often_is_applied_alone_and_well() {
    let house = House::shop("alone").await;
    let pod = house.pod();
    let events = day(4, 3);
    let mut all = all_delivered(&events);
    all[5].delivery_count = 6;
    assert_eq!(pod.apply(all).await, [Outcome::Applied; 12]);
    assert_eq!(pod.handle.counts().groups, 2);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn without_numbers_a_dead_letter_parks_though_its_successors_were_applied() {
    let house = House::shop("late_letter").await.by_position();
    let pod = house.pod();
    let events = day(1, 3);
    let mut all = all_delivered(&events);
    let mut letter = all.remove(1);
    pod.apply(all).await;
    letter.dead_lettered = true;
    assert_eq!(pod.apply(vec![letter.clone()]).await, [Outcome::Parked]);
    assert_eq!(pod.apply(vec![letter]).await, [Outcome::Duplicate], "given out again, it waits once");
    let cursor = house.cursor("order-0000").await.unwrap();
    assert_eq!(
        cursor.get_str("position").ok(),
        Some(&*crate::house::position(1, 3).key),
        "the cursor does not go back"
    );
}

#[tokio::test]
async fn poison_may_be_dead_lettered_besides() {
    let mut house = House::shop("letters").await;
    house.config = Config { on_poison: OnPoison::DeadLetter, ..house.config };
    let pod = house.pod();
    spoil(&house, "order-0000").await;
    let outcomes = pod.apply(all_delivered(&day(1, 4))).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::DeadLetter, Outcome::Parked, Outcome::Parked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_and_new_events_at_once_lose_nothing_and_keep_the_order() {
    let house = House::shop("at_once").await;
    let pod = house.pod();
    let events = day(1, 120);
    let all = all_delivered(&events);
    spoil(&house, "order-0000").await;
    pod.apply(all[..40].to_vec()).await;
    mend(&house, "order-0000").await;
    let (desk, id) = (house.desk(), aggregate("order-0000"));
    let mut feed = pod.feed();
    let coming = async {
        for batch in all[40..].chunks(2) {
            complete(feed.apply(batch.to_vec()).await);
        }
    };
    let replaying = async { desk.retry(&id, &events_namespace(), "orders").await.unwrap() };
    tokio::join!(coming, replaying);
    let _ = desk.retry(&id, &events_namespace(), "orders").await;
    let seen = house.view("orders").await[0].get_array("seen").unwrap().clone();
    assert_eq!(seen, (2_i64..=120).map(Bson::from).collect::<Vec<_>>());
}
