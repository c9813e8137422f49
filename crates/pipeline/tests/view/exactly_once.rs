//! Exactly once and in order, whichever pod applies.

use std::num::NonZeroUsize;
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use pipeline::event::{AggregateId, Term};
use pipeline::view::{ApplyOutcome, DeliveredEvent};
use testkit::wait::{try_wait_for, wait_for};

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{TestApplier, ViewFixture, all_delivered, complete, delivered, event, position};

/// Each order is a session; every message is delivered twice, and some runs again.
fn sessions(events: &[Document], orders: usize) -> Vec<Vec<DeliveredEvent>> {
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

/// One session applier per session, in batches of seven.
async fn drain(pod: &TestApplier, sessions: Vec<Vec<DeliveredEvent>>) {
    let appliers = sessions.into_iter().map(|session| {
        let mut applier = pod.session_applier();
        async move {
            for batch in session.chunks(7) {
                complete(applier.apply(batch.to_vec()).await);
            }
        }
    });
    futures_util::future::join_all(appliers).await;
}

async fn assert_folded(fixture: &ViewFixture, events: &[Document]) {
    let (orders, customers) = fold(events);
    assert_eq!(plain(fixture.view("orders").await), plain(orders));
    assert_eq!(plain(fixture.view("customers").await), plain(customers));
}

#[tokio::test(flavor = "multi_thread")]
async fn redelivered_events_take_effect_once_and_in_order() {
    let fixture = ViewFixture::shop("once").await;
    let pod = fixture.pod();
    let events = day(40, 12);
    drain(&pod, sessions(&events, 40)).await;
    assert_folded(&fixture, &events).await;
    let counts = pod.handle.counts();
    assert_eq!(counts.applied, events.len() as u64);
    assert!(counts.duplicates >= counts.applied, "{counts:?}");
    assert!(counts.groups < counts.applied, "events are grouped: {counts:?}");
    pod.stop().await;
}

#[tokio::test]
async fn a_redelivered_first_event_switches_cursor_reads_back_on() {
    let fixture = ViewFixture::shop("word").await;
    let pod = fixture.pod();
    let events = day(3, 1);
    let mut applier = pod.session_applier();
    assert_eq!(complete(applier.apply(all_delivered(&events)).await), [ApplyOutcome::Applied; 3]);
    assert_eq!(pod.handle.counts().conflicts, 0, "there was no cursor");
    assert_eq!(complete(applier.apply(all_delivered(&events)).await), [ApplyOutcome::Duplicate; 3]);
    assert_eq!(pod.handle.counts().conflicts, 1, "the cursor existed");
    assert_eq!(complete(applier.apply(all_delivered(&events)).await), [ApplyOutcome::Duplicate; 3]);
    assert_eq!(pod.handle.counts().conflicts, 1, "the cursor was read first");
    assert_folded(&fixture, &events).await;
    pod.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_alone_apply_exactly_once() {
    let fixture = ViewFixture::shop("position").await.by_position();
    let pod = fixture.pod();
    let events = day(20, 8);
    drain(&pod, sessions(&events, 20)).await;
    assert_folded(&fixture, &events).await;
    pod.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_with_the_same_sessions_apply_once_between_them() {
    let fixture = ViewFixture::shop("two_pods").await;
    let (one, other) = (fixture.pod(), fixture.other_pod().await);
    let events = day(12, 12);
    tokio::join!(drain(&one, sessions(&events, 12)), drain(&other, sessions(&events, 12)));
    assert_folded(&fixture, &events).await;
    let (one, other) = (one.handle.counts(), other.handle.counts());
    assert_eq!(one.applied + other.applied, events.len() as u64, "{one:?} {other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_make_progress_on_a_hot_document() {
    let fixture = ViewFixture::shop("hot").await;
    let pods = [fixture.pod(), fixture.other_pod().await, fixture.other_pod().await];
    let payload = doc! { "customer": "everybody", "price": 1_i64 };
    let events: Vec<Document> = (1..=20)
        .flat_map(|version| {
            let payload = payload.clone();
            (0..9).map(move |order| event(&format!("order-{order}"), version, "Added", payload.clone()))
        })
        .collect();
    let all = all_delivered(&events);
    let appliers = (0..9).map(|order| {
        let mine: Vec<_> = all.iter().skip(order).step_by(9).cloned().collect();
        let mut applier = pods[order % 3].session_applier();
        async move {
            for batch in mine.chunks(5) {
                complete(applier.apply(batch.to_vec()).await);
            }
        }
    });
    tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(appliers)).await.expect("progress");
    assert_folded(&fixture, &events).await;
    let conflicts: u64 = pods.iter().map(|pod| pod.handle.counts().conflicts).sum();
    assert!(conflicts > 0, "without conflicts this test shows nothing");
}

#[tokio::test]
async fn a_late_message_of_a_deposed_leader_is_skipped() {
    let fixture = ViewFixture::shop("deposed").await;
    let pod = fixture.pod();
    let events = day(1, 5);
    // The leader of term 2 has published everything; a message of term 1 arrives after it.
    let of_term = |term, event| DeliveredEvent { term: Term::new(term), ..event };
    pod.apply(all_delivered(&events).into_iter().map(|event| of_term(2, event)).collect()).await;
    let late = DeliveredEvent { message_id: "another".into(), ..of_term(1, delivered(&events[2], 3)) };
    assert_eq!(pod.apply(vec![late]).await, [ApplyOutcome::Duplicate]);
    assert_folded(&fixture, &events).await;
}

#[tokio::test]
async fn numeric_types_of_one_id_are_one_aggregate() {
    let fixture = ViewFixture::shop("kinds").await;
    let pod = fixture.pod();
    let kinds: [Bson; 3] = [1.into(), 1_i64.into(), 1.0.into()];
    for (kind, version) in kinds.iter().zip(1_i64..) {
        let mut event = event("order", version, "Added", doc! { "customer": "c", "price": 1_i64 });
        event.insert("aggregateId", kind.clone());
        let event = delivered(&event, u32::try_from(version).unwrap());
        assert_eq!(pod.apply(vec![event]).await, [ApplyOutcome::Applied]);
    }
    assert_eq!(fixture.view("_headwater_cursors").await.len(), 1);
    assert_eq!(fixture.cursor(1).await.unwrap().get_i64("sequence").ok(), Some(3));
    assert_eq!(fixture.view("orders").await.len(), 1);
    assert!(AggregateId::new(Bson::Null).is_none());
}

#[tokio::test]
async fn the_cursor_records_what_was_applied() {
    let fixture = ViewFixture::shop("cursor").await;
    let pod = fixture.pod();
    pod.apply(all_delivered(&day(1, 3))).await;
    let cursor = fixture.cursor("order-0000").await.unwrap();
    let expected = doc! {
        "_id": { "pipeline": "shop", "aggregate": "order-0000" },
        "epoch": 1_i64, "eventId": "order-0000-3", "format": 1_i64, "position": &*position(1, 3).key, "sequence": 3_i64,
    };
    let sorted = |document: Document| document.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(sorted(cursor), sorted(expected));
}

#[tokio::test]
async fn a_cancelled_apply_resolves_before_the_next_starts() {
    let fixture = ViewFixture::shop("dropped").await.by_position();
    let pod = fixture.pod();
    let events = day(1, 60);
    let mut applier = pod.session_applier();
    for (at, batch) in all_delivered(&events).chunks(3).enumerate() {
        // Cancelled while its transaction runs, as by a session that lost its lock.
        let dropped = tokio::time::timeout(Duration::from_micros(200 * at as u64), applier.apply(batch.to_vec())).await;
        if dropped.is_err() {
            complete(applier.apply(batch.to_vec()).await);
        }
    }
    assert_folded(&fixture, &events).await;
    pod.stop().await;
}

#[tokio::test]
async fn a_batch_does_not_overtake_a_cancelled_one() {
    let fixture = ViewFixture::shop("overtake").await.by_position();
    let pod = fixture.pod();
    let events = day(1, 20);
    let all = all_delivered(&events);
    let mut applier = pod.session_applier();
    // GIVEN a foreign transaction that locks the customer's document, so that all but the last event are retried
    let mut foreign = lock_customer(&fixture).await;
    // WHEN their call is cancelled, and the session continues with the last
    {
        let mut dropped = std::pin::pin!(applier.apply(all[..19].to_vec()));
        assert!(futures_util::poll!(dropped.as_mut()).is_pending());
        wait_for_conflict(&pod).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(500), applier.apply(all[19..].to_vec())).await;
    foreign.abort_transaction().await.unwrap();
    // THEN the last event waited for the others
    assert!(early.is_err(), "{early:?}");
    assert_eq!(complete(applier.apply(all[19..].to_vec()).await), [ApplyOutcome::Applied]);
    assert_folded(&fixture, &events).await;
}

#[tokio::test]
async fn a_retried_batch_is_not_split() {
    let fixture = ViewFixture::shop("one_piece").await.by_position();
    let pod = fixture.pod();
    let payload = doc! { "customer": "customer-0", "price": 1_i64 };
    let added = (1..=10).map(|version| event("order-0", version, "Added", payload.clone()));
    let paid = (11..=20).map(|version| event("order-0", version, "Paid", doc! { "amount": 1_i64 }));
    let events: Vec<Document> = added.chain(paid).collect();
    let mut foreign = lock_customer(&fixture).await;
    let unlock = async {
        wait_for_conflict(&pod).await;
        // Time for a second half to overtake the first, if the batch were split.
        let _ = try_wait_for("nothing", Duration::from_millis(500), async || match pod.handle.counts().applied {
            0 => Err(()),
            _ => Ok(()),
        })
        .await;
        foreign.abort_transaction().await.unwrap();
    };
    let mut applier = pod.session_applier();
    let (applied, ()) = tokio::join!(applier.apply(all_delivered(&events)), unlock);
    assert_eq!(complete(applied), [ApplyOutcome::Applied; 20]);
    assert_folded(&fixture, &events).await;
}

/// One connection, and a foreign transaction that locks a document for as long as the others take.
#[tokio::test]
async fn only_events_on_a_locked_document_wait() {
    let mut fixture = ViewFixture::shop("held").await;
    fixture.config.connections = NonZeroUsize::MIN;
    let pod = fixture.pod();
    let events = day(14, 4);
    let all = all_delivered(&events);
    let of_order = |order: usize| all.iter().skip(order).step_by(14).cloned().collect::<Vec<_>>();
    // Two of the fourteen orders belong to the locked customer.
    let (wanting, others): (Vec<_>, Vec<_>) = (0..14).partition(|order| order % 7 == 0);
    let wanting: Vec<_> = wanting.into_iter().map(of_order).collect();
    let mut foreign = lock_customer(&fixture).await;
    let handle = pod.handle.clone();
    let waiting = tokio::spawn(async move {
        let waits = wanting.into_iter().map(|session| {
            let mut applier = handle.session_applier();
            async move { complete(applier.apply(session).await) }
        });
        futures_util::future::join_all(waits).await
    });
    wait_for_conflict(&pod).await;
    for order in others {
        pod.apply(of_order(order)).await;
    }
    assert!(!waiting.is_finished());
    foreign.abort_transaction().await.unwrap();
    assert_eq!(waiting.await.unwrap(), [[ApplyOutcome::Applied; 4]; 2]);
    assert_folded(&fixture, &events).await;
}

/// Writers of this customer conflict until the returned transaction ends.
async fn lock_customer(fixture: &ViewFixture) -> mongodb::ClientSession {
    let mut session = fixture.views.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let kept = doc! { "_id": "customer-0", "orders": 0 };
    fixture.views.collection::<Document>("customers").insert_one(kept).session(&mut session).await.unwrap();
    session
}

async fn wait_for_conflict(pod: &TestApplier) {
    wait_for("a conflict", Duration::from_secs(10), async || match pod.handle.counts().conflicts {
        0 => Err(pod.handle.counts()),
        _ => Ok(()),
    })
    .await;
}

#[tokio::test]
async fn a_batch_submitted_after_the_stop_fails() {
    let fixture = ViewFixture::shop("stopped").await;
    let pod = fixture.pod();
    let (handle, events) = (pod.handle.clone(), all_delivered(&day(1, 2)));
    pod.stop().await;
    let applied = handle.session_applier().apply(events).await;
    assert!(applied.outcomes.is_empty());
    assert!(format!("{:?}", applied.end).contains("Stopped"), "{:?}", applied.end);
}
