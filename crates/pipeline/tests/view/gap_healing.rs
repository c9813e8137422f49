//! Gaps, regressions, and questions that only the source can answer.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use pipeline::view::{ApplyOutcome, Arrivals, DeliveredEvent, OrderingMode, ParkReason, PipelineStart};
use testkit::wait::wait_for;

use crate::expected_fold::{day, fold, plain};
use crate::fixture::{ViewFixture, all_delivered, complete, delivered, event, position};

async fn reasons(fixture: &ViewFixture) -> Vec<ParkReason> {
    fixture.parked_store().list(10).await.unwrap().into_iter().map(|waiting| waiting.parked.reason).collect()
}

#[tokio::test]
async fn a_gap_is_healed_from_the_source() {
    let fixture = ViewFixture::shop("gap").await;
    let pod = fixture.pod();
    let events = day(3, 8);
    fixture.write_source(&events).await;
    let lost = |token: u32| [4, 7, 10, 13].contains(&token);
    let given: Vec<DeliveredEvent> =
        (1..).zip(&events).filter(|(token, _)| !lost(*token)).map(|(token, it)| delivered(it, token)).collect();
    let outcomes = pod.apply(given.clone()).await;
    assert_eq!(outcomes, vec![ApplyOutcome::Applied; given.len()]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
    let counts = pod.handle.counts();
    assert_eq!((counts.gaps_healed, counts.applied), (1, events.len() as u64), "{counts:?}");
    // the missing event is delivered late
    assert_eq!(pod.apply(vec![delivered(&events[3], 4)]).await, [ApplyOutcome::Duplicate]);
}

#[tokio::test]
async fn a_long_gap_is_healed_page_by_page() {
    let fixture = ViewFixture::shop("long_gap").await;
    let pod = fixture.pod();
    let events = day(1, 1300);
    fixture.write_source(&events).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(vec![all[0].clone(), all[1298].clone()]).await, [ApplyOutcome::Applied; 2]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events[..1299]).0));
    assert_eq!(pod.handle.counts().gaps_healed, 1);
}

#[tokio::test]
async fn events_committed_out_of_order_need_no_source() {
    let fixture = ViewFixture::shop("out_of_order").await;
    let pod = fixture.pod();
    let events = day(1, 12);
    // the positions are in the order of the commits, the sequences are not; the source has none of them
    let order = [2, 0, 1, 5, 4, 3, 6, 9, 10, 11, 7, 8];
    let committed: Vec<DeliveredEvent> =
        order.iter().zip(1..).map(|(event, token)| delivered(&events[*event], token)).collect();
    let mut applier = pod.session_applier();
    for batch in committed.chunks(6) {
        assert_eq!(complete(applier.apply(batch.to_vec()).await), [ApplyOutcome::Applied; 6]);
    }
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
    assert_eq!(pod.handle.counts().gaps_healed, 0);
    // a redelivered one is still a duplicate, which only the source can tell
    fixture.write_source(&events).await;
    assert_eq!(pod.apply(committed).await, [ApplyOutcome::Duplicate; 12]);
}

/// A session that brings one more event if it is waited for.
struct LateArrival(Option<DeliveredEvent>);

impl Arrivals for LateArrival {
    fn gap_wait(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn next(&mut self, within: Duration) -> Option<Vec<DeliveredEvent>> {
        let is_waited_for = within > self.gap_wait() / 2;
        Some(self.0.take_if(|_| is_waited_for).into_iter().collect())
    }
}

#[tokio::test]
async fn a_gap_that_an_arrival_closes_asks_no_source() {
    let fixture = ViewFixture::shop("arrival").await;
    let pod = fixture.pod();
    let events = day(1, 3);
    fixture.write_source(&events).await;
    let mut all = all_delivered(&events);
    let mut late = LateArrival(Some(all.remove(1)));
    let applied = pod.session_applier().apply_with(all, &mut late).await;
    assert_eq!(complete(applied), [ApplyOutcome::Applied; 3]);
    assert_eq!(pod.handle.counts().gaps_healed, 0, "the source has it too, and was not asked");
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn a_wrong_cursor_position_hides_no_later_event() {
    let fixture = ViewFixture::shop("forged_position").await;
    let pod = fixture.pod();
    let events = day(1, 5);
    fixture.write_source(&events).await;
    let mut all = all_delivered(&events);
    all[1].position = Some(position(1, 4_000_000));
    assert_eq!(pod.apply(all).await, [ApplyOutcome::Applied; 5]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn a_source_that_lags_hides_no_earlier_event() {
    let mut fixture = ViewFixture::shop("lagging_source").await;
    fixture.config.gap_timeout = std::time::Duration::from_secs(60);
    let pod = fixture.pod();
    let events = day(1, 3);
    let last = all_delivered(&events).remove(2);
    let mut applier = pod.session_applier();
    let applied = tokio::spawn(async move { complete(applier.apply(vec![last]).await) });
    // after a failover a new primary may not show yet what the change stream has already delivered
    wait_for("a transaction that asks the source", std::time::Duration::from_secs(30), async || {
        let groups = pod.handle.counts().groups;
        if groups > 0 { Ok(()) } else { Err(groups) }
    })
    .await;
    fixture.write_source(&events).await;
    assert_eq!(applied.await.unwrap(), [ApplyOutcome::Applied]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn a_case_insensitive_source_heals_no_other_aggregate() {
    let fixture = ViewFixture::shop("collation").await;
    let collation = doc! { "locale": "en", "strength": 2 };
    fixture.source.run_command(doc! { "create": "events", "collation": collation }).await.unwrap();
    let pod = fixture.pod();
    let placed = |order: &str, version: i64| event(order, version, "Placed", doc! { "customer": order });
    // another aggregate for us, the same text for the collation
    fixture.write_source(&[placed("ORDER-A", 2), placed("order-a", 1), placed("order-a", 3)]).await;
    let events = [placed("order-a", 1), placed("order-a", 3)];
    assert_eq!(pod.apply(all_delivered(&events)).await, [ApplyOutcome::Applied, ApplyOutcome::Parked]);
    assert_eq!(reasons(&fixture).await, [ParkReason::Unhealable; 2]);
}

#[tokio::test]
async fn an_unhealable_gap_parks_only_its_own_aggregate() {
    let fixture = ViewFixture::shop("unhealable").await;
    let pod = fixture.pod();
    let mut events = day(2, 5);
    let all = all_delivered(&events);
    // version 3 of the first order exists nowhere
    let hole = events.remove(4);
    fixture.write_source(&events).await;
    let given: Vec<DeliveredEvent> = all.into_iter().filter(|event| event.key != *hole.get("_id").unwrap()).collect();
    let outcomes = pod.apply(given).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Parked).count(), 2);
    assert_eq!(reasons(&fixture).await, [ParkReason::Unhealable; 2]);
    let orders = fixture.view("orders").await;
    assert_eq!(orders[0].get_array("seen").unwrap().len(), 2);
    assert_eq!(orders[1].get_array("seen").unwrap().len(), 5);
}

#[tokio::test]
async fn an_event_without_its_sequence_is_parked_once() {
    let fixture = ViewFixture::shop("no_sequence").await;
    let pod = fixture.pod();
    // As a snapshot sends them: all at one position.
    let mut all = all_delivered(&day(2, 3));
    for event in &mut all {
        event.position = Some(position(1, 1));
        if event.aggregate == crate::fixture::aggregate("order-0000") {
            event.sequence = None;
        }
    }
    let expected = all.iter().map(|event| match event.sequence {
        None => ApplyOutcome::Parked,
        Some(_) => ApplyOutcome::Applied,
    });
    let expected: Vec<_> = expected.collect();
    assert_eq!(pod.apply(all.clone()).await, expected);
    assert_eq!(pod.apply(all).await, [ApplyOutcome::Duplicate; 6], "redelivered, and queued once");
    let parked = fixture.parked_store().list(10).await.unwrap();
    for waiting in &parked {
        assert_eq!((waiting.parked.reason, waiting.parked.waiting()), (ParkReason::Unhealable, 3));
        assert!(waiting.parked.detail.contains("no usable sequence"), "{}", waiting.parked.detail);
    }
    assert_eq!(parked.len(), 2, "in both read models");
}

#[tokio::test]
async fn a_recreated_aggregate_is_parked_and_not_skipped() {
    let fixture = ViewFixture::shop("regressed").await;
    let pod = fixture.pod();
    let first_aggregate = day(1, 5);
    pod.apply(all_delivered(&first_aggregate)).await;
    let second_aggregate: Vec<Document> = (1..=3_i64)
        .map(|version| {
            let mut event = event("order-0000", version, "Added", doc! { "customer": "new", "price": 1_i64 });
            event.insert("_id", format!("second-{version}"));
            event
        })
        .collect();
    fixture.write_source(&second_aggregate).await;
    let again: Vec<DeliveredEvent> =
        (50..).zip(&second_aggregate).map(|(token, event)| delivered(event, token)).collect();
    assert_eq!(pod.apply(again.clone()).await, [ApplyOutcome::Parked; 3]);
    assert_eq!(reasons(&fixture).await, [ParkReason::VersionRegressed; 2]);
    assert_eq!(pod.handle.counts().regressed, 1);
    assert_eq!(pod.apply(again).await, [ApplyOutcome::Duplicate; 3]);
    assert_eq!(
        plain(fixture.view("orders").await),
        plain(fold(&first_aggregate).0),
        "no event of the recreated aggregate is applied"
    );
    // a late event of the first aggregate
    assert_eq!(pod.apply(vec![delivered(&first_aggregate[4], 5)]).await, [ApplyOutcome::Duplicate]);
}

#[tokio::test]
async fn a_restored_source_is_parked_even_if_sequences_match() {
    let fixture = ViewFixture::shop("restored").await;
    let pod = fixture.pod();
    let events = day(1, 6);
    pod.apply(all_delivered(&events)).await;
    // restored to version 4, then continued with another event
    let mut other = event("order-0000", 5, "Added", doc! { "customer": "c", "price": 5_i64 });
    other.insert("_id", "another-5");
    fixture.write_source(&events[..4]).await;
    fixture.write_source(std::slice::from_ref(&other)).await;
    let restored = DeliveredEvent { position: Some(position(2, 1)), ..delivered(&other, 1) };
    assert_eq!(pod.apply(vec![restored]).await, [ApplyOutcome::Parked]);
    assert_eq!(reasons(&fixture).await, [ParkReason::VersionRegressed; 2]);
}

#[tokio::test]
async fn events_read_by_a_snapshot_are_duplicates_on_the_stream() {
    let fixture = ViewFixture::shop("snapshot").await;
    let pod = fixture.pod();
    let events = day(1, 6);
    fixture.write_source(&events).await;
    let snapshot: Vec<DeliveredEvent> =
        events.iter().map(|event| DeliveredEvent { position: Some(position(1, 1)), ..delivered(event, 1) }).collect();
    assert_eq!(pod.apply(snapshot).await, [ApplyOutcome::Applied; 6]);
    // versions 3 to 6 were committed after the snapshot began, and are delivered again with their own positions
    let stream: Vec<DeliveredEvent> = (10..).zip(&events[2..]).map(|(token, event)| delivered(event, token)).collect();
    assert_eq!(pod.apply(stream).await, [ApplyOutcome::Duplicate; 4]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn the_first_event_is_the_first_one_the_source_holds() {
    let fixture = ViewFixture::shop("first").await;
    let pod = fixture.pod();
    let events = day(1, 8);
    // versions 1 and 2 are archived; 3 and 4 were lost on the bus
    fixture.write_source(&events[2..]).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(all[4..].to_vec()).await, [ApplyOutcome::Applied; 4]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events[2..]).0));
}

#[tokio::test]
async fn an_event_below_the_start_of_its_aggregate_is_parked() {
    let mut fixture = ViewFixture::shop("below_start").await;
    fixture.mode = OrderingMode::Sequence { start: PipelineStart::Now, first: 1, filtered: false };
    let pod = fixture.pod();
    let events = day(1, 8);
    fixture.write_source(&events).await;
    assert_eq!(pod.apply(vec![delivered(&events[4], 1)]).await, [ApplyOutcome::Applied]);
    // committed after version 5, by another writer: it is in the source, and was never applied
    assert_eq!(pod.apply(vec![delivered(&events[3], 2)]).await, [ApplyOutcome::Parked]);
    assert_eq!(reasons(&fixture).await, [ParkReason::VersionRegressed; 2]);
}

#[tokio::test]
async fn a_pipeline_that_starts_now_accepts_any_first_event() {
    let mut fixture = ViewFixture::shop("now").await;
    fixture.mode = OrderingMode::Sequence { start: PipelineStart::Now, first: 1, filtered: false };
    let pod = fixture.pod();
    let events = day(1, 8);
    fixture.write_source(&events).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(all[4..].to_vec()).await, [ApplyOutcome::Applied; 4]);
    assert_eq!(plain(fixture.view("orders").await), plain(fold(&events[4..]).0));
}
