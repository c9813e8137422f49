//! Many transfers with one channel of outcomes, and the guard that holds them back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use servicebus::{Bulk, Encoded, Error, Kind, Message};
use testkit::proxy::{Direction, Fault, Proxy};

use crate::house::*;

async fn outcomes(bulk: &mut Bulk, count: usize) -> HashMap<u64, Result<(), Error>> {
    let mut all = Vec::new();
    while all.len() < count {
        let more = tokio::time::timeout(SOON, bulk.outcomes(&mut all, 1_000)).await;
        more.unwrap_or_else(|_| panic!("{} of {count} outcomes came", all.len()));
    }
    assert_eq!(all.len(), count);
    all.into_iter().collect()
}

fn numbered(numbers: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Encoded)> {
    numbers.map(|number| (number, in_session("s", number.to_string()).encode()))
}

#[tokio::test]
async fn many_transfers_share_one_channel_and_arrive_in_order() {
    let house = House::start().await;
    let mut bulk = house.client.sender(ORDERS).bulk().await.unwrap();
    assert!(bulk.message_limit().is_some() && bulk.batch_limit() > 0);
    // More than the credit: the rest waits for it.
    bulk.submit(numbered(0..5_000));
    let told = outcomes(&mut bulk, 5_000).await;
    assert!((0..5_000).all(|number| told[&number].is_ok()));
    let mut session = house.client.accept_session(ORDERS, "s").await.unwrap();
    let mut next = 0;
    while next < 5_000 {
        let messages = session.receive(500, SOON).await.unwrap();
        messages.iter().for_each(|message| {
            assert_eq!(message.body(), next.to_string());
            next += 1;
        });
        session.settler().complete(&messages).await.unwrap();
    }
}

#[tokio::test]
async fn each_transfer_has_its_own_outcome() {
    let house = House::start().await;
    let mut bulk = house.client.sender(ORDERS).bulk().await.unwrap();
    let bad = (1, Message::new("no session").encode());
    bulk.submit(numbered(0..1).chain([bad]).chain(numbered(2..3)));
    let told = outcomes(&mut bulk, 3).await;
    assert!(told[&0].is_ok() && told[&2].is_ok());
    assert_eq!(told[&1].as_ref().unwrap_err().kind(), Kind::NotAllowed);
}

#[tokio::test]
async fn no_outcome_is_lost_with_the_connection_not_even_of_what_is_handed_over_later() {
    let house = House::start().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    let client = House::client_by(proxy.address(), patient());
    let mut bulk = client.sender(ORDERS).bulk().await.unwrap();
    proxy.inject(Fault::Withhold(Direction::ToClient)).await;
    bulk.submit(numbered(0..3_000));
    proxy.inject(Fault::Reset).await;
    let told = outcomes(&mut bulk, 3_000).await;
    assert!(told.values().all(|outcome| outcome.as_ref().unwrap_err().kind() == Kind::ConnectionLost));
    assert!(bulk.ended().is_some());
    bulk.submit(numbered(0..10));
    let told = outcomes(&mut bulk, 10).await;
    assert!(told.values().all(|outcome| outcome.as_ref().unwrap_err().is_retryable()));
}

#[tokio::test]
async fn an_overdue_outcome_ends_the_connection_and_everyones_wait() {
    let house = House::start().await;
    let proxy = Proxy::start(house.broker.address()).await.unwrap();
    let client = House::client_by(proxy.address(), patient());
    let mut bulk = client.sender(ORDERS).bulk().await.unwrap();
    proxy.inject(Fault::Freeze).await;
    bulk.submit(numbered(0..10));
    bulk.suspect();
    let told = outcomes(&mut bulk, 10).await;
    assert!(told.values().all(|outcome| outcome.as_ref().unwrap_err().kind() == Kind::ConnectionLost));
}

#[tokio::test]
async fn a_guard_that_says_no_holds_back_even_what_waits_for_credit() {
    let house = House::start().await;
    let open = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicU64::new(0));
    let guard = {
        let (open, asked) = (Arc::clone(&open), Arc::clone(&asked));
        // Shuts by itself in the middle of what is handed over at once.
        Arc::new(move || asked.fetch_add(1, SeqCst) < 700 && open.load(SeqCst))
    };
    let sender = house.client.sender(ORDERS).guarded(guard);
    let mut bulk = sender.bulk().await.unwrap();
    bulk.submit(numbered(0..3_000));
    let told = outcomes(&mut bulk, 3_000).await;
    assert!((0..700).all(|number| told[&number].is_ok()));
    assert!((700..3_000).all(|number| matches!(told[&number], Err(Error::Withheld { .. }))));
    open.store(false, SeqCst);
    let error = sender.send_message(&in_session("s", "late")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (Kind::Withheld, false));

    let mut session = house.client.accept_session(ORDERS, "s").await.unwrap();
    assert_eq!(receive_all(&mut session, 200).await.len(), 200);
    let messages = house.client.entity_exists(ORDERS).await.unwrap();
    assert!(messages);
    // A sender without the guard is not held back.
    house.client.sender(ORDERS).send_message(&in_session("t", "x")).await.unwrap();
}

#[tokio::test]
async fn an_entity_is_there_or_not_and_its_link_tells_of_its_end() {
    let house = House::start().await;
    assert!(house.client.entity_exists(READ_MODELS).await.unwrap());
    assert!(house.client.entity_exists(ORDERS).await.unwrap());
    assert!(!house.client.entity_exists("events/Subscriptions/nobody").await.unwrap());
    let client = house.client.clone();
    let disturbed = tokio::spawn(async move { client.entity_disturbed(READ_MODELS).await });
    assert!(house.client.entity_exists(READ_MODELS).await.unwrap());
    house.broker.stop().await;
    let error = tokio::time::timeout(SOON, disturbed).await.unwrap().unwrap();
    assert_eq!(error.kind(), Kind::ConnectionLost);
}
