//! Exactly once, in order, whoever applies.

use std::num::NonZeroUsize;
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use pipeline::event::AggregateId;
use pipeline::view::{Delivered, Outcome};
use testkit::wait::{try_wait_for, wait_for};

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

#[tokio::test]
async fn who_says_that_it_is_the_first_is_not_taken_at_its_word_for_long() {
    let house = House::shop("word").await;
    let pod = house.pod();
    let events = day(3, 1);
    let mut feed = pod.feed();
    assert_eq!(complete(feed.apply(all_delivered(&events)).await), [Outcome::Applied; 3]);
    assert_eq!(pod.handle.counts().conflicts, 0, "no cursor was there");
    assert_eq!(complete(feed.apply(all_delivered(&events)).await), [Outcome::Duplicate; 3]);
    assert_eq!(pod.handle.counts().conflicts, 1, "a cursor was there after all");
    assert_eq!(complete(feed.apply(all_delivered(&events)).await), [Outcome::Duplicate; 3]);
    assert_eq!(pod.handle.counts().conflicts, 1, "it was looked for");
    assert_folded(&house, &events).await;
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
    let conflicts: u64 = pods.iter().map(|pod| pod.handle.counts().conflicts).sum();
    assert!(conflicts > 0, "nobody met anybody: nothing is shown");
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
async fn what_follows_a_dropped_call_does_not_overtake_it() {
    let house = House::shop("overtake").await.by_position();
    let pod = house.pod();
    let events = day(1, 20);
    let all = all_delivered(&events);
    let mut feed = pod.feed();
    // GIVEN somebody who keeps the customer's document, so that all but the last event must be tried again and again
    let mut somebody = keep_customer(&house).await;
    // WHEN their call is dropped, and the session goes on with the last
    {
        let mut dropped = std::pin::pin!(feed.apply(all[..19].to_vec()));
        assert!(futures_util::poll!(dropped.as_mut()).is_pending());
        until_a_conflict(&pod).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(500), feed.apply(all[19..].to_vec())).await;
    somebody.abort_transaction().await.unwrap();
    // THEN the last waited for the others
    assert!(early.is_err(), "{early:?}");
    assert_eq!(complete(feed.apply(all[19..].to_vec()).await), [Outcome::Applied]);
    assert_folded(&house, &events).await;
}

#[tokio::test]
async fn a_batch_that_must_be_tried_again_stays_in_one_piece() {
    let house = House::shop("one_piece").await.by_position();
    let pod = house.pod();
    let payload = doc! { "customer": "customer-0", "price": 1_i64 };
    let added = (1..=10).map(|version| event("order-0", version, "Added", payload.clone()));
    let paid = (11..=20).map(|version| event("order-0", version, "Paid", doc! { "amount": 1_i64 }));
    let events: Vec<Document> = added.chain(paid).collect();
    let mut somebody = keep_customer(&house).await;
    let let_go = async {
        until_a_conflict(&pod).await;
        // Time for a second half to overtake the first, if there were two.
        let _ = try_wait_for("nothing", Duration::from_millis(500), async || match pod.handle.counts().applied {
            0 => Err(()),
            _ => Ok(()),
        })
        .await;
        somebody.abort_transaction().await.unwrap();
    };
    let mut feed = pod.feed();
    let (applied, ()) = tokio::join!(feed.apply(all_delivered(&events)), let_go);
    assert_eq!(complete(applied), [Outcome::Applied; 20]);
    assert_folded(&house, &events).await;
}

/// One connection, and somebody who holds a document for as long as the others take.
#[tokio::test]
async fn who_wants_a_document_that_somebody_holds_waits_and_the_others_do_not() {
    let mut house = House::shop("held").await;
    house.config.connections = NonZeroUsize::MIN;
    let pod = house.pod();
    let events = day(14, 4);
    let all = all_delivered(&events);
    let of_order = |order: usize| all.iter().skip(order).step_by(14).cloned().collect::<Vec<_>>();
    // Of fourteen orders, two are the held customer's.
    let (wanting, others): (Vec<_>, Vec<_>) = (0..14).partition(|order| order % 7 == 0);
    let wanting: Vec<_> = wanting.into_iter().map(of_order).collect();
    let mut somebody = keep_customer(&house).await;
    let handle = pod.handle.clone();
    let waiting = tokio::spawn(async move {
        let waits = wanting.into_iter().map(|session| {
            let mut feed = handle.feed();
            async move { complete(feed.apply(session).await) }
        });
        futures_util::future::join_all(waits).await
    });
    until_a_conflict(&pod).await;
    for order in others {
        pod.apply(of_order(order)).await;
    }
    assert!(!waiting.is_finished());
    somebody.abort_transaction().await.unwrap();
    assert_eq!(waiting.await.unwrap(), [[Outcome::Applied; 4]; 2]);
    assert_folded(&house, &events).await;
}

/// Whoever writes this customer conflicts until the transaction that is returned ends.
async fn keep_customer(house: &House) -> mongodb::ClientSession {
    let mut session = house.views.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let kept = doc! { "_id": "customer-0", "orders": 0 };
    house.views.collection::<Document>("customers").insert_one(kept).session(&mut session).await.unwrap();
    session
}

async fn until_a_conflict(pod: &Pod) {
    wait_for("a conflict", Duration::from_secs(10), async || match pod.handle.counts().conflicts {
        0 => Err(pod.handle.counts()),
        _ => Ok(()),
    })
    .await;
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
