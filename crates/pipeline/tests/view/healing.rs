//! Gaps, regressions, and what only the source can say.

use mongodb::bson::{Document, doc};
use pipeline::view::{Delivered, Mode, Outcome, Reason, Start};

use crate::fold::{day, fold, plain};
use crate::house::{House, all_delivered, delivered, event, position};

async fn reasons(house: &House) -> Vec<Reason> {
    house.desk().list(10).await.unwrap().into_iter().map(|waiting| waiting.parked.reason).collect()
}

#[tokio::test]
async fn a_gap_is_healed_from_the_source() {
    let house = House::shop("gap").await;
    let pod = house.pod();
    let events = day(3, 8);
    house.write_source(&events).await;
    let lost = |token: u32| [4, 7, 10, 13].contains(&token);
    let given: Vec<Delivered> =
        (1..).zip(&events).filter(|(token, _)| !lost(*token)).map(|(token, it)| delivered(it, token)).collect();
    let outcomes = pod.apply(given.clone()).await;
    assert_eq!(outcomes, vec![Outcome::Applied; given.len()]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events).0));
    let counts = pod.handle.counts();
    assert_eq!((counts.gaps_healed, counts.applied), (1, events.len() as u64), "{counts:?}");
    // what was missing comes at last
    assert_eq!(pod.apply(vec![delivered(&events[3], 4)]).await, [Outcome::Duplicate]);
}

#[tokio::test]
async fn a_long_gap_is_healed_page_by_page() {
    let house = House::shop("long_gap").await;
    let pod = house.pod();
    let events = day(1, 1300);
    house.write_source(&events).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(vec![all[0].clone(), all[1298].clone()]).await, [Outcome::Applied; 2]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events[..1299]).0));
    assert_eq!(pod.handle.counts().gaps_healed, 1);
}

#[tokio::test]
async fn a_gap_the_source_cannot_fill_parks_the_aggregate_and_nobody_else() {
    let house = House::shop("unhealable").await;
    let pod = house.pod();
    let mut events = day(2, 5);
    let all = all_delivered(&events);
    // version 3 of the first order exists nowhere
    let hole = events.remove(4);
    house.write_source(&events).await;
    let given: Vec<Delivered> = all.into_iter().filter(|event| event.key != *hole.get("_id").unwrap()).collect();
    let outcomes = pod.apply(given).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Parked).count(), 2);
    assert_eq!(reasons(&house).await, [Reason::Unhealable; 2]);
    let orders = house.view("orders").await;
    assert_eq!(orders[0].get_array("seen").unwrap().len(), 2);
    assert_eq!(orders[1].get_array("seen").unwrap().len(), 5);
}

#[tokio::test]
async fn an_aggregate_that_was_created_again_is_parked_and_not_skipped() {
    let house = House::shop("regressed").await;
    let pod = house.pod();
    let first_life = day(1, 5);
    pod.apply(all_delivered(&first_life)).await;
    let second_life: Vec<Document> = (1..=3_i64)
        .map(|version| {
            let mut event = event("order-0000", version, "Added", doc! { "customer": "new", "price": 1_i64 });
            event.insert("_id", format!("second-{version}"));
            event
        })
        .collect();
    house.write_source(&second_life).await;
    let again: Vec<Delivered> = (50..).zip(&second_life).map(|(token, event)| delivered(event, token)).collect();
    assert_eq!(pod.apply(again.clone()).await, [Outcome::Parked; 3]);
    assert_eq!(reasons(&house).await, [Reason::VersionRegressed; 2]);
    assert_eq!(pod.handle.counts().regressed, 1);
    assert_eq!(pod.apply(again).await, [Outcome::Duplicate; 3]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&first_life).0), "nothing of the second life is applied");
    // late, from the first life
    assert_eq!(pod.apply(vec![delivered(&first_life[4], 5)]).await, [Outcome::Duplicate]);
}

#[tokio::test]
async fn a_restored_source_is_parked_though_its_numbers_fit() {
    let house = House::shop("restored").await;
    let pod = house.pod();
    let events = day(1, 6);
    pod.apply(all_delivered(&events)).await;
    // restored to version 4, from where it went another way
    let mut other = event("order-0000", 5, "Added", doc! { "customer": "c", "price": 5_i64 });
    other.insert("_id", "another-5");
    house.write_source(&events[..4]).await;
    house.write_source(std::slice::from_ref(&other)).await;
    let restored = Delivered { position: Some(position(2, 1)), ..delivered(&other, 1) };
    assert_eq!(pod.apply(vec![restored]).await, [Outcome::Parked]);
    assert_eq!(reasons(&house).await, [Reason::VersionRegressed; 2]);
}

#[tokio::test]
async fn what_a_snapshot_saw_first_is_a_duplicate_on_the_stream() {
    let house = House::shop("snapshot").await;
    let pod = house.pod();
    let events = day(1, 6);
    house.write_source(&events).await;
    let snapshot: Vec<Delivered> =
        events.iter().map(|event| Delivered { position: Some(position(1, 1)), ..delivered(event, 1) }).collect();
    assert_eq!(pod.apply(snapshot).await, [Outcome::Applied; 6]);
    // versions 3 to 6 were committed after the snapshot began, and come again with their own positions
    let stream: Vec<Delivered> = (10..).zip(&events[2..]).map(|(token, event)| delivered(event, token)).collect();
    assert_eq!(pod.apply(stream).await, [Outcome::Duplicate; 4]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events).0));
}

#[tokio::test]
async fn from_the_beginning_the_first_is_what_the_source_holds_first() {
    let house = House::shop("first").await;
    let pod = house.pod();
    let events = day(1, 8);
    // versions 1 and 2 are archived; 3 and 4 were lost on the bus
    house.write_source(&events[2..]).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(all[4..].to_vec()).await, [Outcome::Applied; 4]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events[2..]).0));
}

#[tokio::test]
async fn from_now_on_any_is_the_first() {
    let mut house = House::shop("now").await;
    house.mode = Mode::Sequence { start: Start::Now, first: 1, filtered: false };
    let pod = house.pod();
    let events = day(1, 8);
    house.write_source(&events).await;
    let all = all_delivered(&events);
    assert_eq!(pod.apply(all[4..].to_vec()).await, [Outcome::Applied; 4]);
    assert_eq!(plain(house.view("orders").await), plain(fold(&events[4..]).0));
}
