//! Exactly once, in order, whoever applies.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use pipeline::event::AggregateId;
use pipeline::view::{Delivered, Outcome};

use crate::fold::{day, fold, plain};
use crate::house::{House, Pod, all_delivered, complete, delivered, event, position};

/// Each order is a session; every message comes twice, and runs of them again.
fn sessions(events: &[Document], orders: usize) -> Vec<Vec<Delivered>> {
    let all = all_delivered(events);
    let of_order = |order: usize| {
        let mine: Vec<_> = all.iter().skip(order).step_by(orders).cloned().collect();
        let half = mine.len() / 2;
        let mut session: Vec<_> = mine[..half].iter().flat_map(|event| [event.clone(), event.clone()]).collect();
        session.extend_from_slice(&mine[half / 2..]);
        session.extend_from_slice(&mine);
        session
    };
    (0..orders).map(of_order).collect()
}

/// As many feeds as sessions, in batches of seven.
async fn drain(pod: &Pod, sessions: Vec<Vec<Delivered>>) {
    let feeds = sessions.into_iter().map(|session| {
        let mut feed = pod.feed();
        async move {
            for batch in session.chunks(7) {
                complete(feed.apply(batch.to_vec()).await);
            }
        }
    });
    futures_util::future::join_all(feeds).await;
}

async fn assert_folded(house: &House, events: &[Document]) {
    let (orders, customers) = fold(events);
    assert_eq!(plain(house.view("orders").await), plain(orders));
    assert_eq!(plain(house.view("customers").await), plain(customers));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_takes_effect_once_and_in_order_however_often_it_comes() {
    let house = House::shop("once").await;
    let pod = house.pod();
    let events = day(40, 12);
    drain(&pod, sessions(&events, 40)).await;
    assert_folded(&house, &events).await;
    let counts = pod.handle.counts();
    assert_eq!(counts.applied, events.len() as u64);
    assert!(counts.duplicates >= counts.applied, "{counts:?}");
    assert!(counts.groups < counts.applied, "events are gathered: {counts:?}");
    pod.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_alone_does_as_well() {
    let house = House::shop("position").await.by_position();
    let pod = house.pod();
    let events = day(20, 8);
    drain(&pod, sessions(&events, 20)).await;
    assert_folded(&house, &events).await;
    pod.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_with_the_same_sessions_apply_once_between_them() {
    let house = House::shop("two_pods").await;
    let (one, other) = (house.pod(), house.other_pod().await);
    let events = day(12, 12);
    tokio::join!(drain(&one, sessions(&events, 12)), drain(&other, sessions(&events, 12)));
    assert_folded(&house, &events).await;
    let (one, other) = (one.handle.counts(), other.handle.counts());
    assert_eq!(one.applied + other.applied, events.len() as u64, "{one:?} {other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_document_of_three_pods_makes_progress() {
    let house = House::shop("hot").await;
    let pods = [house.pod(), house.other_pod().await, house.other_pod().await];
    let payload = doc! { "customer": "everybody", "price": 1_i64 };
    let events: Vec<Document> = (1..=20)
        .flat_map(|version| {
            let payload = payload.clone();
            (0..9).map(move |order| event(&format!("order-{order}"), version, "Added", payload.clone()))
        })
        .collect();
    let all = all_delivered(&events);
    let feeds = (0..9).map(|order| {
        let mine: Vec<_> = all.iter().skip(order).step_by(9).cloned().collect();
        let mut feed = pods[order % 3].feed();
        async move {
            for batch in mine.chunks(5) {
                complete(feed.apply(batch.to_vec()).await);
            }
        }
    });
    tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(feeds)).await.expect("progress");
    assert_folded(&house, &events).await;
}

#[tokio::test]
async fn a_late_message_of_a_deposed_leader_is_skipped() {
    let house = House::shop("deposed").await;
    let pod = house.pod();
    let events = day(1, 5);
    pod.apply(all_delivered(&events)).await;
    let late = Delivered { message_id: "another".into(), ..delivered(&events[2], 3) };
    assert_eq!(pod.apply(vec![late]).await, [Outcome::Duplicate]);
    assert_folded(&house, &events).await;
}

#[tokio::test]
async fn one_two_and_three_kinds_of_one_are_one_aggregate() {
    let house = House::shop("kinds").await;
    let pod = house.pod();
    let kinds: [Bson; 3] = [1.into(), 1_i64.into(), 1.0.into()];
    for (kind, version) in kinds.iter().zip(1_i64..) {
        let mut event = event("order", version, "Added", doc! { "customer": "c", "price": 1_i64 });
        event.insert("aggregateId", kind.clone());
        let event = delivered(&event, u32::try_from(version).unwrap());
        assert_eq!(pod.apply(vec![event]).await, [Outcome::Applied]);
    }
    assert_eq!(house.view("_headwater_cursors").await.len(), 1);
    assert_eq!(house.cursor(1).await.unwrap().get_i64("sequence").ok(), Some(3));
    assert_eq!(house.view("orders").await.len(), 1);
    assert!(AggregateId::new(Bson::Null).is_none());
}

#[tokio::test]
async fn the_cursor_says_what_was_applied() {
    let house = House::shop("cursor").await;
    let pod = house.pod();
    pod.apply(all_delivered(&day(1, 3))).await;
    let cursor = house.cursor("order-0000").await.unwrap();
    let expected = doc! {
        "_id": { "pipeline": "shop", "aggregate": "order-0000" },
        "epoch": 1_i64, "eventId": "order-0000-3", "format": 1_i64, "position": &*position(1, 3).key, "sequence": 3_i64,
    };
    let sorted = |document: Document| document.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(sorted(cursor), sorted(expected));
}

#[tokio::test]
async fn a_call_that_was_dropped_is_resolved_before_the_next_begins() {
    let house = House::shop("dropped").await.by_position();
    let pod = house.pod();
    let events = day(1, 60);
    let mut feed = pod.feed();
    for (at, batch) in all_delivered(&events).chunks(3).enumerate() {
        // Dropped while its transaction is under way, as a session does whose lock is lost.
        let dropped = tokio::time::timeout(Duration::from_micros(200 * at as u64), feed.apply(batch.to_vec())).await;
        if dropped.is_err() {
            complete(feed.apply(batch.to_vec()).await);
        }
    }
    assert_folded(&house, &events).await;
    pod.stop().await;
}

#[tokio::test]
async fn what_is_handed_in_after_the_stop_is_told_so() {
    let house = House::shop("stopped").await;
    let pod = house.pod();
    let (handle, events) = (pod.handle.clone(), all_delivered(&day(1, 2)));
    pod.stop().await;
    let applied = handle.feed().apply(events).await;
    assert!(applied.outcomes.is_empty());
    assert!(format!("{:?}", applied.end).contains("Stopped"), "{:?}", applied.end);
}
